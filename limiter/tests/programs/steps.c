/* Takes steps on the first device, each an argument, and says how each ended:
 *   load:MIB    a module with a variable of so many MiB      unload   the last one
 *   heap:MIB    the kernels' heap                            alloc:MIB, free
 *   pool:MIB    a stream-ordered allocation, freed at once: the pool keeps it
 *   used        what the session uses, in MiB                sleep:MS
 *   settle      waits until what is used has been the same for 0.3 s
 *   churn:MS    allocates and frees in four threads          threads  names of the threads
 *   fork        the next steps are a child's, with a context of its own */
#include "driver.h"
#include <dirent.h>
#include <pthread.h>
#include <sys/wait.h>

static struct driver d;
static void *library;
static CUmodule modules[16];
static CUdeviceptr held[256];
static int module_count, held_count;
static CUcontext context;

static size_t used(void) {
    size_t free, total;
    ok(d.mem_info(&free, &total));
    return (total - free) / MIB;
}

static void nap(long ms) { usleep((useconds_t)ms * 1000); }

static volatile int churning;

static void *churn(void *number) {
    size_t size = ((size_t)number * 7 + 3) * MIB;
    int (*alloc)(CUdeviceptr *, size_t, CUstream);
    int (*release)(CUdeviceptr, CUstream);
    *(void **)&alloc = need(library, "cuMemAllocAsync");
    *(void **)&release = need(library, "cuMemFreeAsync");
    ok(d.ctx_set(context));
    while (churning) {
        CUdeviceptr one, other;
        ok(d.mem_alloc(&one, size));
        ok(alloc(&other, size / 2, NULL));
        ok(release(other, NULL));
        ok(d.mem_free(one));
    }
    return NULL;
}

static void threads(void) {
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *task;
    int keepers = 0;
    while ((task = readdir(tasks))) {
        char path[300], line[200];
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        FILE *status = task->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (!status)
            continue;
        int keeper = 0;
        while (fgets(line, sizeof line, status)) {
            if (!strcmp(line, "Name:\tsluice-keeper\n"))
                keeper = 1;
            /* All but SIGKILL and SIGSTOP (and those of the C library). */
            if (keeper && !strncmp(line, "SigBlk:\tfffffff", 15))
                keepers++;
        }
        fclose(status);
    }
    closedir(tasks);
    printf("keepers=%d ", keepers);
}

static void step(const char *what, long n) {
    CUresult result = 0;
    if (!strcmp(what, "load")) {
        char image[300];
        snprintf(image, sizeof image,
                 ".version 7.0\n.target sm_70\n.address_size 64\n.global .align 8 .b8 v[%zu];\n"
                 ".visible .entry k() { ret; }\n",
                 (size_t)n * MIB);
        result = d.module_load(&modules[module_count], image);
        module_count += result == 0;
    } else if (!strcmp(what, "unload")) {
        int (*unload)(CUmodule);
        *(void **)&unload = need(library, "cuModuleUnload");
        result = unload(modules[--module_count]);
    } else if (!strcmp(what, "heap")) {
        int (*limit)(int, size_t);
        *(void **)&limit = need(library, "cuCtxSetLimit");
        result = limit(2, (size_t)n * MIB);
    } else if (!strcmp(what, "alloc")) {
        result = d.mem_alloc(&held[held_count], (size_t)n * MIB);
        held_count += result == 0;
    } else if (!strcmp(what, "free")) {
        result = d.mem_free(held[--held_count]);
    } else if (!strcmp(what, "pool")) {
        int (*alloc)(CUdeviceptr *, size_t, CUstream);
        int (*release)(CUdeviceptr, CUstream);
        int (*pool_of)(void **, CUdevice);
        int (*set)(void *, int, void *);
        *(void **)&alloc = need(library, "cuMemAllocAsync");
        *(void **)&release = need(library, "cuMemFreeAsync");
        *(void **)&pool_of = need(library, "cuDeviceGetDefaultMemPool");
        *(void **)&set = need(library, "cuMemPoolSetAttribute");
        void *pool;
        uint64_t all = ~0ull;
        CUdeviceptr memory;
        ok(pool_of(&pool, 0));
        ok(set(pool, 4, &all));
        ok(alloc(&memory, (size_t)n * MIB, NULL));
        result = release(memory, NULL);
        ok(d.ctx_synchronize());
    } else if (!strcmp(what, "used")) {
        printf("used=%zu ", used());
        return;
    } else if (!strcmp(what, "settle")) {
        size_t last = 0;
        for (int same = 0, tries = 0; same < 6 && tries < 100; tries++) {
            size_t now = used();
            same = now == last ? same + 1 : 0;
            last = now;
            nap(50);
        }
        printf("settled=%zu ", last);
        return;
    } else if (!strcmp(what, "sleep")) {
        nap(n);
        return;
    } else if (!strcmp(what, "churn")) {
        pthread_t thread[4];
        churning = 1;
        for (size_t i = 0; i < 4; i++)
            pthread_create(&thread[i], NULL, churn, (void *)i);
        nap(n);
        churning = 0;
        for (int i = 0; i < 4; i++)
            pthread_join(thread[i], NULL);
        return;
    } else if (!strcmp(what, "threads")) {
        threads();
        return;
    } else if (!strcmp(what, "fork")) {
        fflush(stdout);
        pid_t child = fork();
        if (child) {
            int status;
            waitpid(child, &status, 0);
            printf("child=%d ", status);
            fflush(stdout);
            exit(0);
        }
        context = start_driver(&d);
        return;
    } else {
        exit(96);
    }
    printf("%s=%d ", what, result);
}

int main(int argc, char **argv) {
    library = open_driver(RTLD_NOW);
    d = driver_of(library);
    if (argc > 1 && strcmp(argv[1], "fork"))
        context = start_driver(&d);
    for (int i = 1; i < argc; i++) {
        char *colon = strchr(argv[i], ':');
        if (colon)
            *colon = 0;
        step(argv[i], colon ? atol(colon + 1) : 0);
        fflush(stdout);
    }
    printf("\n");
    return 0;
}
