/* Reaches the driver in the way that its first argument names, then prints whether the limit applies. */
#include "driver.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static void use(void *library) {
    struct driver d = driver_of(library);
    start_driver(&d);
    say_limit(&d);
}

/* Prints the result of each step in a copy of the driver that may be unusable. */
static void try_copy(void *library) {
    struct driver d = driver_of(library);
    CUdevice device = 0;
    CUcontext context = NULL;
    CUdeviceptr memory;
    int init = d.init(0), get = d.device_get(&device, 0);
    int create = d.ctx_create(&context, 0, device);
    printf("init2=%d get2=%d create2=%d much2=%d\n", init, get, create,
           d.mem_alloc(&memory, TOO_MUCH));
}

static pthread_barrier_t together;

static void *rounds(void *unused) {
    (void)unused;
    pthread_barrier_wait(&together);
    for (int round = 0; round < 100; round++) {
        void *library = open_driver(RTLD_NOW);
        struct driver d = driver_of(library);
        size_t bytes = 0;
        ok(d.init(0));
        ok(d.total_mem(&bytes, 0));
        if (bytes != 1024 * MIB)
            exit(96);
        dlclose(library);
    }
    return NULL;
}

static int child(void (*what)(void *), void *argument) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        what(argument);
        fflush(NULL);
        _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static void open_and_use(void *unused) {
    (void)unused;
    use(open_driver(RTLD_NOW));
}

/* What the kernel refuses from now on, also in programs executed later, and with which error. */
static void deny(const char *what, int error) {
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define IF(what, value, yes, no) BPF_JUMP(BPF_JMP | what | BPF_K, value, yes, no)
#define ANSWER(answer) BPF_STMT(BPF_RET | BPF_K, answer)
#define ANSWERS ANSWER(SECCOMP_RET_ERRNO | error), ANSWER(SECCOMP_RET_ALLOW)
    /* Memory that is writable and executable, or becomes executable: as MemoryDenyWriteExecute of systemd has it. */
    struct sock_filter writable_code[] = {
        LOAD(nr),
        IF(BPF_JEQ, SYS_mprotect, 0, 2),
        LOAD(args[2]),
        IF(BPF_JSET, PROT_EXEC, 4, 5),
        IF(BPF_JEQ, SYS_mmap, 0, 4),
        LOAD(args[2]),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, PROT_WRITE | PROT_EXEC),
        IF(BPF_JEQ, PROT_WRITE | PROT_EXEC, 0, 1),
        ANSWERS,
    };
    /* Memory that becomes code, and nothing else. */
    struct sock_filter code[] = {
        LOAD(nr), IF(BPF_JEQ, SYS_mprotect, 0, 3), LOAD(args[2]), IF(BPF_JEQ, PROT_READ | PROT_EXEC, 0, 1), ANSWERS,
    };
    /* Every way of writing code. */
    struct sock_filter all[] = {
        LOAD(nr), IF(BPF_JEQ, SYS_pwrite64, 3, 0), IF(BPF_JEQ, SYS_mprotect, 0, 3),
        LOAD(args[2]), IF(BPF_JSET, PROT_EXEC, 0, 1), ANSWERS,
    };
    struct sock_fprog programs[] = {
        {sizeof writable_code / sizeof *writable_code, writable_code},
        {sizeof code / sizeof *code, code},
        {sizeof all / sizeof *all, all},
    };
    struct sock_fprog *program = !strcmp(what, "code") ? &programs[1] : programs + 2 * !strcmp(what, "all");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program) != 0) {
        perror("seccomp");
        exit(95);
    }
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    if (!strcmp(how, "now")) {
        use(open_driver(RTLD_NOW));
    } else if (!strcmp(how, "lazy")) {
        use(open_driver(RTLD_LAZY | RTLD_GLOBAL));
    } else if (!strcmp(how, "library")) {
        /* The library's constructor does everything. */
        if (!dlopen(argv[2], RTLD_NOW)) {
            fprintf(stderr, "%s\n", dlerror());
            return 98;
        }
    } else if (!strcmp(how, "unload-limiter")) {
        void *limiter = dlopen(argv[2], RTLD_NOW);
        if (!limiter || dlclose(limiter) != 0) {
            fprintf(stderr, "%s\n", dlerror());
            return 98;
        }
        use(open_driver(RTLD_NOW));
    } else if (!strcmp(how, "namespace")) {
        use(dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW));
    } else if (!strcmp(how, "second-copy")) {
        use(open_driver(RTLD_NOW));
        try_copy(dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW));
    } else if (!strcmp(how, "then")) {
        use(open_driver(RTLD_NOW));
        printf("loaded=%d\n", dlopen(argv[2], RTLD_NOW) != NULL);
    } else if (!strcmp(how, "path")) {
        use(dlopen(argv[2], RTLD_NOW));
    } else if (!strcmp(how, "path-busy")) {
        struct driver d = driver_of(dlopen(argv[2], RTLD_NOW));
        start_driver(&d);
        CUfunction kernel = spin_kernel(&d);
        for (int i = 0; i < 100; i++)
            ok(spin(&d, kernel, 100, NULL));
        ok(d.ctx_synchronize());
        say_limit(&d);
    } else if (!strcmp(how, "second-path")) {
        use(open_driver(RTLD_NOW));
        try_copy(dlopen(argv[2], RTLD_NOW | RTLD_LOCAL));
    } else if (!strcmp(how, "second-path-alone")) {
        void *first = open_driver(RTLD_NOW);
        void *second = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
        dlclose(first);
        try_copy(second);
    } else if (!strcmp(how, "two-copies")) {
        void *first = open_driver(RTLD_NOW);
        void *second = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
        try_copy(second);
        struct driver d = driver_of(first);
        printf("init1=%d\n", d.init(0));
    } else if (!strcmp(how, "reopen")) {
        for (int i = 0; i < 50; i++)
            dlclose(open_driver(RTLD_NOW));
        use(open_driver(RTLD_NOW));
    } else if (!strcmp(how, "close")) {
        void *library = open_driver(RTLD_NOW);
        struct driver d = driver_of(library);
        start_driver(&d);
        CUfunction kernel = spin_kernel(&d);
        for (int i = 0; i < 100; i++)
            ok(spin(&d, kernel, 100, NULL));
        dlclose(library);
        usleep(300000);
        d = driver_of(open_driver(RTLD_NOW));
        say_limit(&d);
    } else if (!strcmp(how, "twice")) {
        int (*init)(unsigned);
        void *library = dlopen(argv[2], RTLD_NOW);
        *(void **)&init = need(library, "cuInit");
        printf("right=%d wrong=%d\n", init(0), init(1));
    } else if (!strcmp(how, "threads")) {
        pthread_t threads[8];
        pthread_barrier_init(&together, NULL, 8);
        for (int i = 0; i < 8; i++)
            pthread_create(&threads[i], NULL, rounds, NULL);
        for (int i = 0; i < 8; i++)
            pthread_join(threads[i], NULL);
        use(open_driver(RTLD_NOW));
    } else if (!strcmp(how, "proc-address")) {
        void *library = open_driver(RTLD_NOW);
        struct driver d = driver_of(library);
        CUresult (*get)(const char *, void **, int, uint64_t, int *);
        *(void **)&get = need(library, "cuGetProcAddress_v2");
        void *found = NULL;
        ok(get("cuInit", &found, 2000, 0, NULL));
        *(void **)&d.init = found;
        ok(get("cuCtxCreate", &found, 4000, 0, NULL));
        *(void **)&d.ctx_create = found;
        ok(get("cuMemAlloc", &found, 3020, 0, NULL));
        *(void **)&d.mem_alloc = found;
        start_driver(&d);
        say_limit(&d);
    } else if (!strcmp(how, "fork-before-init")) {
        void *library = open_driver(RTLD_NOW);
        int status = child(use, library);
        printf("status=%d\n", status);
    } else if (!strcmp(how, "fork-before-load")) {
        printf("status=%d\n", child(open_and_use, NULL));
    } else if (!strcmp(how, "fork-after-init")) {
        void *library = open_driver(RTLD_NOW);
        struct driver d = driver_of(library);
        start_driver(&d);
        /* The real driver is unusable in such a child; whatever it answers, it must not grant memory beyond the
         * limit. */
        int status = child(try_copy, library);
        say_limit(&d);
        printf("status=%d\n", status);
    } else if (!strcmp(how, "exec")) {
        execl("/proc/self/exe", argv[0], "now", NULL);
    } else if (!strcmp(how, "exec-hardened")) {
        deny("writable-code", 1);
        execl("/proc/self/exe", argv[0], "now", NULL);
    } else if (!strcmp(how, "exec-denied")) {
        deny(argv[2], atoi(argv[3]));
        argv[3] = argv[0];
        execv("/proc/self/exe", argv + 3);
    } else if (!strcmp(how, "denied")) {
        deny(argv[2], atoi(argv[3]));
        use(open_driver(RTLD_NOW));
    } else if (!strcmp(how, "exec-after-init")) {
        struct driver d = driver_of(open_driver(RTLD_NOW));
        start_driver(&d);
        execl("/proc/self/exe", argv[0], "now", NULL);
    } else if (!strcmp(how, "exec-something-else")) {
        use(open_driver(RTLD_NOW));
        execlp("sleep", "sleep", "20", NULL);
    } else {
        return 64;
    }
    return 0;
}
