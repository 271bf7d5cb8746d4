/* Changes its environment after its start, then prints what its session allows it on its first device. */
#include "driver.h"
#include <sys/resource.h>
#include <sys/wait.h>

extern char **environ;

static char *node;

static void change(const char *how, char **arguments) {
    if (!strcmp(how, "clear")) {
        clearenv();
    } else if (!strcmp(how, "null")) {
        environ = NULL;
    } else if (!strcmp(how, "unset")) {
        for (; *arguments; arguments++)
            unsetenv(*arguments);
    } else if (!strcmp(how, "put")) {
        for (; *arguments; arguments++)
            putenv(*arguments);
    } else if (!strcmp(how, "overwrite")) {
        /* Like setproctitle: the bytes that the kernel laid out for the program. */
        for (char **variable = environ; *variable; variable++)
            memset(*variable, 'x', strlen(*variable));
    }
    /* Identifies the simulated node. */
    setenv("SLUICE_FAKE_NODE", node, 1);
}

static void use(const struct driver *d) {
    CUdevice device;
    CUcontext context;
    size_t free, total;
    ok(d->device_get(&device, 0));
    ok(d->ctx_create(&context, 0, device));
    ok(d->mem_info(&free, &total));
    printf("total=%zu ", total / MIB);
    say_limit(d);
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "nothing";
    node = strdup(getenv("SLUICE_FAKE_NODE"));
    if (!strncmp(how, "visible", 7)) {
        /* visible VALUE: set before the driver starts; then hidden again, with or without one more call. */
        setenv("CUDA_VISIBLE_DEVICES", argv[2], 1);
        struct driver d = driver_of(open_driver(RTLD_NOW));
        ok(d.init(0));
        if (strcmp(how, "visible"))
            unsetenv("CUDA_VISIBLE_DEVICES");
        if (!strcmp(how, "visible-again"))
            ok(d.init(0));
        use(&d);
        return 0;
    }
    if (!strcmp(how, "copy")) {
        /* A second copy of the limiter, loaded while the environment says something else. */
        clearenv();
        setenv("SLUICE_FAKE_NODE", node, 1);
        if (!dlmopen(LM_ID_NEWLM, argv[2], RTLD_NOW)) {
            fprintf(stderr, "%s\n", dlerror());
            return 94;
        }
    } else if (!strcmp(how, "exhausted")) {
        /* No descriptor is left when the limiter looks for the session's page. */
        struct driver d = driver_of(open_driver(RTLD_NOW));
        ok(d.init(0));
        rlim_t used = (rlim_t)dup(0);
        close((int)used);
        struct rlimit none = {used, used};
        if (setrlimit(RLIMIT_NOFILE, &none))
            return 93;
        CUdevice device;
        CUcontext context;
        CUdeviceptr memory;
        ok(d.device_get(&device, 0));
        printf("context=%d ", d.ctx_create(&context, 0, device));
        printf("much=%d\n", d.mem_alloc(&memory, TOO_MUCH));
        return 0;
    } else if (!strcmp(how, "child")) {
        clearenv();
        setenv("SLUICE_FAKE_NODE", node, 1);
        pid_t child = fork();
        if (child != 0) {
            int status;
            waitpid(child, &status, 0);
            return WEXITSTATUS(status);
        }
    } else {
        change(how, argv + 2);
    }
    struct driver d = driver_of(open_driver(RTLD_NOW));
    ok(d.init(0));
    use(&d);
    return 0;
}
