/* Calls each function of a generated list with null, valid and unaligned pointers, and prints the results. A call
 * that faults is reported as well; the program continues with the next function, in a new process image. */
#include "driver.h"
#include <signal.h>

/* A letter for each argument: a pointer, a size, a device of NVML, another number. */
struct function {
    const char *name, *arguments;
};
static const struct function functions[] = {
#include CALLS
};

#define COUNT (sizeof functions / sizeof *functions)
#define MOST 14

static char *self, doing[64];
static _Alignas(64) char memory[1 << 16];
static const char *now_calling;

static void faulted(int signal) {
    (void)signal;
    char next[16];
    snprintf(next, sizeof next, "%d", atoi(doing) + 1);
    dprintf(1, "%s faults\n", now_calling);
    execl(self, self, next, (char *)0);
    _exit(9);
}

static void *library_of(const char *name) {
    static void *cuda, *nvml;
    void **found = name[0] == 'c' ? &cuda : &nvml;
    if (!*found)
        *found = dlopen(name[0] == 'c' ? "libcuda.so.1" : "libnvidia-ml.so.1", RTLD_NOW);
    return *found;
}

/* `null`: the pointer that is null; the others have this offset. */
static void try(const struct function *f, int null, int offset, long size, void *device) {
    typedef int (*any)(long, long, long, long, long, long, long, long, long, long, long, long, long, long);
    any call = (any)dlsym(library_of(f->name), f->name);
    long a[MOST] = {0};
    int pointers = 0;
    for (int at = 0; f->arguments[at]; at++)
        switch (f->arguments[at]) {
        case 'p':
            a[at] = null == pointers || null < 0 ? 0 : (long)(memory + 4096 * pointers + offset);
            pointers++;
            break;
        case 's':
            a[at] = size;
            break;
        case 'n':
            a[at] = (long)device;
        }
    if (!call || (null >= pointers && offset == 0))
        return;
    memset(memory, 0, sizeof memory);
    char what[128];
    snprintf(what, sizeof what, "%s %d+%d %ld", f->name, null, offset, size);
    now_calling = what;
    alarm(60);
    int result = call(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13]);
    dprintf(1, "%s: %d\n", what, result);
    /* A context takes much. */
    CUcontext *made = (CUcontext *)a[0];
    if (result == 0 && made && strstr(f->name, "CtxCreate") && f->name[2] != 'G')
        ((CUresult(*)(CUcontext))dlsym(library_of("cu"), "cuCtxDestroy_v2"))(*made);
}

int main(int count, char **arguments) {
    self = arguments[0];
    struct driver d = driver_of(open_driver(RTLD_NOW));
    CUcontext context = start_driver(&d);
    void *nvml = library_of("nvml"), *device;
    ((int (*)(void))need(nvml, "nvmlInit_v2"))();
    ((int (*)(unsigned, void **))need(nvml, "nvmlDeviceGetHandleByIndex_v2"))(0, &device);
    for (int number = SIGBUS; number; number = number == SIGBUS ? SIGSEGV : number == SIGSEGV ? SIGABRT : 0) {
        struct sigaction action = {.sa_handler = faulted, .sa_flags = SA_NODEFER};
        sigaction(number, &action, NULL);
    }
    for (size_t at = count > 1 ? (size_t)atoi(arguments[1]) : 0; at < COUNT; at++) {
        snprintf(doing, sizeof doing, "%zu", at);
        for (int size = 0; size < 2; size++) {
            for (int null = -1; null < MOST; null++) {
                ok(d.ctx_set(context));
                try(functions + at, null, 0, size * 4096, device);
            }
            ok(d.ctx_set(context));
            try(functions + at, MOST - 1, 1, size * 4096, device);
        }
    }
    puts("end");
    return 0;
}
