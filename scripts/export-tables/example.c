/* A driver with private tables, and a program that asks for them, for the test of `cargo xtask export-tables`.
 * Compiled three times: with -DDRIVER -DCUDA and with -DDRIVER as libraries, and without either as the program. */
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#ifdef DRIVER
long cuMemAlloc_v2(long a, long b) { return a * 10 + b; }
long cuNotPatched(long a, long b) { return a - b; }
static long hidden(long a, long b, long c, long d, long e, long f, long g) { return a + b + c + d + e + f + g; }
static double exact(double a, long b, double c) { return a * b + c; }

__asm__("leads: jmp cuMemAlloc_v2@PLT\n");
extern char leads[] __attribute__((visibility("hidden")));

static const void *const sized[] = {(void *)48, (void *)hidden, (void *)cuMemAlloc_v2, NULL, leads, (void *)exact};
static const void *const endless[] = {(void *)cuNotPatched, NULL, (void *)hidden, (void *)0x12345678, (void *)hidden};

/* As the CUDA runtime does, a program may look whether its tables are the driver's own. */
const void *own_table(int number) { return number == 1 ? (const void *)sized : (const void *)endless; }

static int get(const void **table, const unsigned char *id) {
    if (id[0] > 2)
        return 1;
    *table = id[0] == 1 ? sized : endless;
    return 0;
}

#ifdef CUDA
int cuGetExportTable(const void **table, const unsigned char *id) { return get(table, id); }
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    (void)version, (void)flags, (void)status;
    *function = !strcmp(name, "cuGetExportTable") ? (void *)cuGetExportTable : NULL;
    return *function ? 0 : 500;
}
#else
int nvmlInternalGetExportTable(const void **table, const unsigned char *id) { return get(table, id); }
int nvmlInit_v2(void) { return 0; }
#endif

#else
typedef int get_table(const void **table, const unsigned char *id);
typedef int get_address(const char *name, void **function, int version, uint64_t flags, int *status);
typedef long seven(long a, long b, long c, long d, long e, long f, long g);
typedef const void *own(int number);
typedef double mixed(double a, long b, double c);

static int use(get_table *get, own *own_table) {
    unsigned char id[16] = {1, 0xab};
    const void *found, *again;
    if (get(&found, id) || get(&again, id) || found != again || found != own_table(1))
        return 1;
    const void *const *table = found;
    seven *hidden = (seven *)table[1];
    mixed *exact = (mixed *)table[5];
    for (int i = 0; i < 3; i++)
        if (hidden(1, 2, 3, 4, 5, 6, 7) != 28 || exact(1.5, 4, 0.25) != 6.25)
            return 2;
    if (((seven *)table[4])(4, 2, 0, 0, 0, 0, 0) != 42)
        return 3;
    id[0] = 2;
    if (get(&found, id) || found != own_table(2))
        return 4;
    table = found;
    if (table[3] != (void *)0x12345678 || ((seven *)table[4])(1, 1, 1, 1, 1, 1, 1) != 7)
        return 8;
    id[0] = 3;
    return get(&found, id) ? 0 : 5;
}

int main(void) {
    /* As the threads of libcuda. */
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!cuda || !nvml || !dlsym(nvml, "nvmlInit_v2") || dlsym(RTLD_NEXT, "main"))
        return 6;
    get_address *look_up = (get_address *)dlsym(cuda, "cuGetProcAddress_v2");
    void *get = NULL;
    if (look_up("cuGetExportTable", &get, 12000, 0, NULL))
        return 7;
    int status = use((get_table *)get, (own *)dlsym(cuda, "own_table"));
    if (!status)
        status = use((get_table *)dlsym(nvml, "nvmlInternalGetExportTable"), (own *)dlsym(nvml, "own_table"));
    printf("status %d\n", status);
    return status;
}
#endif
