/* Takes steps on the first device, each an argument, and says how each ended:
 *   load:MIB    a module with a variable of so many MiB      unload   the last one
 *   image:MIB   a module with so much code                   use      a kernel of the last one
 *   heap:MIB    the kernels' heap                            alloc:MIB, free
 *   pool:MIB    a stream-ordered allocation, freed at once: the pool keeps it
 *   used        what the session uses, in MiB                sleep:MS
 *   total:MIB   waits until the driver tells so much
 *   settle      waits until what is used has been the same for 0.3 s
 *   churn:MS    allocates and frees in four threads          threads  names of the threads
 *   pitch:MIB, managed:MIB, async:MIB   other ways to allocate     freeasync
 *   create:MIB  physical memory          fill     writes the last allocation, and reads it
 *   where       whether it is managed    ipc, bring   shares it, brings it to the device
 *   busy:MS     a kernel                 sync     waits for it    info    what the driver tells
 *   nosleep     no thread can sleep from now on
 *   nvml:TIMES  starts NVML and ends it so often
 *   fork        the next steps are a child's, with a context of its own */
#include "driver.h"
#include <dirent.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
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

static void nap(long ms) { poll(NULL, 0, (int)ms); }

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
    int reconcilers = 0;
    while ((task = readdir(tasks))) {
        char path[300], line[200];
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        FILE *status = task->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (!status)
            continue;
        int reconciler = 0;
        while (fgets(line, sizeof line, status)) {
            if (!strcmp(line, "Name:\tsluice-memory\n"))
                reconciler = 1;
            /* All but SIGKILL and SIGSTOP (and those of the C library). */
            if (reconciler && !strncmp(line, "SigBlk:\tfffffff", 15))
                reconcilers++;
        }
        fclose(status);
    }
    closedir(tasks);
    printf("reconcilers=%d ", reconcilers);
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
    } else if (!strcmp(what, "image")) {
        size_t bytes = (size_t)n * MIB;
        char *image = malloc(bytes + 1);
        memset(image, 'x', bytes);
        static const char begin[] =
            ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k() { ret; }\n//";
        memcpy(image, begin, sizeof begin - 1);
        image[bytes] = 0;
        result = d.module_load(&modules[module_count], image);
        module_count += result == 0;
        free(image);
    } else if (!strcmp(what, "use")) {
        CUfunction function;
        result = d.module_function(&function, modules[module_count - 1], "k");
    } else if (!strcmp(what, "unload")) {
        int (*unload)(CUmodule);
        *(void **)&unload = need(library, "cuModuleUnload");
        result = unload(modules[--module_count]);
    } else if (!strcmp(what, "heap")) {
        int (*limit)(int, size_t);
        *(void **)&limit = need(library, "cuCtxSetLimit");
        result = limit(2, (size_t)n * MIB);
    } else if (!strcmp(what, "nosleep")) {
        /* From now on every sleep fails in the kernel, in any thread. */
        struct sock_filter filter[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clock_nanosleep, 1, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_nanosleep, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
        result = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
                 syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0;
    } else if (!strcmp(what, "nvml")) {
        /* Starts NVML, and ends it so often. */
        void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
        int (*init)(void), (*end)(void);
        *(void **)&init = need(nvml, "nvmlInit_v2");
        *(void **)&end = need(nvml, "nvmlShutdown");
        result = init();
        while (n-- > 0)
            end();
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
    } else if (!strcmp(what, "pitch")) {
        int (*alloc)(CUdeviceptr *, size_t *, size_t, size_t, unsigned);
        *(void **)&alloc = need(library, "cuMemAllocPitch_v2");
        size_t pitch = 0;
        result = alloc(&held[held_count], &pitch, 1000, (size_t)n * 1024, 4);
        held_count += result == 0;
        printf("row=%zu ", pitch);
    } else if (!strcmp(what, "managed")) {
        int (*alloc)(CUdeviceptr *, size_t, unsigned);
        *(void **)&alloc = need(library, "cuMemAllocManaged");
        result = alloc(&held[held_count], (size_t)n * MIB, 1);
        held_count += result == 0;
    } else if (!strcmp(what, "async")) {
        int (*alloc)(CUdeviceptr *, size_t, CUstream);
        *(void **)&alloc = need(library, "cuMemAllocAsync");
        result = alloc(&held[held_count], (size_t)n * MIB, NULL);
        held_count += result == 0;
    } else if (!strcmp(what, "freeasync")) {
        int (*release)(CUdeviceptr, CUstream);
        *(void **)&release = need(library, "cuMemFreeAsync");
        result = release(held[--held_count], NULL);
    } else if (!strcmp(what, "create")) {
        struct { int type, handles, where, id; void *meta; unsigned char flags[8]; } prop = {1, 0, 1, 0, 0, {0}};
        int (*create)(unsigned long long *, size_t, void *, unsigned long long);
        *(void **)&create = need(library, "cuMemCreate");
        unsigned long long handle;
        result = create(&handle, (size_t)n * MIB, &prop, 0);
    } else if (!strcmp(what, "fill")) {
        int (*fill)(CUdeviceptr, unsigned char, size_t);
        int (*read)(void *, CUdeviceptr, size_t);
        *(void **)&fill = need(library, "cuMemsetD8_v2");
        *(void **)&read = need(library, "cuMemcpyDtoH_v2");
        unsigned char bytes[4096] = {0};
        ok(fill(held[held_count - 1], 0x5a, sizeof bytes));
        ok(read(bytes, held[held_count - 1], sizeof bytes));
        for (size_t i = 0; i < sizeof bytes; i++)
            result |= bytes[i] != 0x5a;
    } else if (!strcmp(what, "where")) {
        int (*attribute)(void *, int, CUdeviceptr);
        *(void **)&attribute = need(library, "cuPointerGetAttribute");
        unsigned managed = 9;
        ok(attribute(&managed, 8, held[held_count - 1]));
        printf("is_managed=%u ", managed);
        return;
    } else if (!strcmp(what, "ipc")) {
        int (*export)(void *, CUdeviceptr);
        *(void **)&export = need(library, "cuIpcGetMemHandle");
        char handle[64];
        result = export(handle, held[held_count - 1]);
    } else if (!strcmp(what, "bring")) {
        int (*advise)(CUdeviceptr, size_t, int, CUdevice);
        int (*prefetch)(CUdeviceptr, size_t, CUdevice, CUstream);
        *(void **)&advise = need(library, "cuMemAdvise");
        *(void **)&prefetch = need(library, "cuMemPrefetchAsync");
        /* From its start, and from the middle; with every advice that may move it. */
        for (int at = 0; at < 2; at++) {
            CUdeviceptr part = held[held_count - 1] + (size_t)at * MIB;
            result |= advise(part, MIB, 1, 0) | advise(part, MIB, 3, 0) | advise(part, MIB, 4, 0);
            result |= prefetch(part, MIB, 0, NULL);
        }
    } else if (!strcmp(what, "busy")) {
        result = spin(&d, spin_kernel(&d), (uint64_t)n * 1000, NULL);
    } else if (!strcmp(what, "sync")) {
        result = d.ctx_synchronize();
    } else if (!strcmp(what, "capture")) {
        /* Frees the last allocation and allocates, both while a stream is captured. */
        int (*alloc)(CUdeviceptr *, size_t, CUstream);
        int (*release)(CUdeviceptr, CUstream);
        *(void **)&alloc = need(library, "cuMemAllocAsync");
        *(void **)&release = need(library, "cuMemFreeAsync");
        CUstream stream;
        CUgraph graph;
        CUdeviceptr memory;
        ok(d.stream_create(&stream, 1));
        ok(d.begin_capture(stream, 2));
        printf("captured_free=%d ", release(held[held_count - 1], stream));
        result = alloc(&memory, (size_t)n * MIB, stream);
        ok(d.end_capture(stream, &graph));
    } else if (!strcmp(what, "destroy")) {
        result = d.ctx_destroy(context);
        if (result == 0)
            ok(d.ctx_create(&context, 0, 0));
    } else if (!strcmp(what, "info")) {
        size_t free, total, size;
        ok(d.mem_info(&free, &total));
        ok(d.total_mem(&size, 0));
        printf("free=%zu total=%zu size=%zu ", free / MIB, total / MIB, size / MIB);
        return;
    } else if (!strcmp(what, "used")) {
        printf("used=%zu ", used());
        return;
    } else if (!strcmp(what, "reimport")) {
        /* Memory that is mapped from an import of what the program itself has exported and released. */
        int (*create)(unsigned long long *, size_t, const void *, unsigned long long);
        int (*export)(void *, unsigned long long, int, unsigned long long);
        int (*import)(unsigned long long *, void *, int);
        int (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
        int (*map)(CUdeviceptr, size_t, size_t, unsigned long long, unsigned long long);
        int (*release)(unsigned long long);
        *(void **)&create = need(library, "cuMemCreate");
        *(void **)&export = need(library, "cuMemExportToShareableHandle");
        *(void **)&import = need(library, "cuMemImportFromShareableHandle");
        *(void **)&reserve = need(library, "cuMemAddressReserve");
        *(void **)&map = need(library, "cuMemMap");
        *(void **)&release = need(library, "cuMemRelease");
        /* Pinned, shared by descriptor, on device 0. */
        unsigned props[8] = {1, 1, 1, 0};
        unsigned long long first, second;
        CUdeviceptr at;
        int file;
        ok(create(&first, (size_t)n * MIB, props, 0));
        ok(export(&file, first, 1, 0));
        ok(import(&second, (void *)(intptr_t)file, 1));
        ok(reserve(&at, (size_t)n * MIB, 0, 0, 0));
        ok(map(at, (size_t)n * MIB, 0, second, 0));
        ok(release(first));
        result = release(second);
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
    } else if (!strcmp(what, "total")) {
        size_t free, total;
        do {
            nap(1);
            ok(d.mem_info(&free, &total));
        } while (total / MIB != (size_t)n);
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
