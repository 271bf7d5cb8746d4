/* NVML's lists of the first device's processes.
 *   lists hold MIB    makes a context, allocates, prints its pid, and stays
 *   lists busy        the same, with kernels
 *   lists show        prints the entries of each list
 *   lists private N   prints the processes that a private function lists on device N
 *   lists calls       prints the results of wrong and short calls (the session has one process) */
#include "driver.h"
#include <errno.h>

typedef struct { unsigned pid; unsigned long long used; } info_v1;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu, compute; } info_v2;
typedef struct { info_v2 info; unsigned long long protected; } detail;
typedef struct { unsigned version, mode, count; detail *list; } details;
typedef struct { unsigned pid; unsigned long long time; unsigned sm, mem, enc, dec; } sample;
typedef struct { unsigned long long time; unsigned pid, sm, mem, enc, dec, jpg, ofa; } use;
typedef struct { unsigned version, count; unsigned long long last; use *list; } uses;
typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;

#define ROOM 16
#define DETAILS ((unsigned)sizeof(details) | 1u << 24)
#define USES ((unsigned)sizeof(uses) | 1u << 24)

static void *nvml, *device;

static int (*list_function(const char *name))(void *, unsigned *, void *) {
    int (*function)(void *, unsigned *, void *);
    *(void **)&function = need(nvml, name);
    return function;
}

static void show_v1(const char *name) {
    info_v1 list[ROOM];
    unsigned count = ROOM;
    ok(list_function(name)(device, &count, list));
    printf("%s:", name);
    for (unsigned i = 0; i < count; i++)
        printf(" %u/%llu", list[i].pid, list[i].used);
    printf("\n");
}

static void show(const char *name) {
    info_v2 list[ROOM];
    unsigned count = ROOM;
    ok(list_function(name)(device, &count, list));
    printf("%s:", name);
    for (unsigned i = 0; i < count; i++)
        printf(" %u/%llu", list[i].pid, list[i].used);
    printf("\n");
}

static void show_all(void) {
    int (*get_details)(void *, details *);
    int (*utilization)(void *, sample *, unsigned *, unsigned long long);
    int (*uses_of)(void *, uses *);
    *(void **)&get_details = need(nvml, "nvmlDeviceGetRunningProcessDetailList");
    *(void **)&utilization = need(nvml, "nvmlDeviceGetProcessUtilization");
    *(void **)&uses_of = need(nvml, "nvmlDeviceGetProcessesUtilizationInfo");
    show_v1("nvmlDeviceGetComputeRunningProcesses");
    show("nvmlDeviceGetComputeRunningProcesses_v2");
    show("nvmlDeviceGetComputeRunningProcesses_v3");
    show_v1("nvmlDeviceGetGraphicsRunningProcesses");
    show("nvmlDeviceGetGraphicsRunningProcesses_v3");
    show("nvmlDeviceGetMPSComputeRunningProcesses_v3");
    detail list[ROOM];
    details of = {DETAILS, 3, ROOM, list};
    ok(get_details(device, &of));
    printf("details:");
    for (unsigned i = 0; i < of.count; i++)
        printf(" %u/%llu", list[i].info.pid, list[i].info.used);
    sample samples[ROOM];
    unsigned count = ROOM;
    int result = utilization(device, samples, &count, 0);
    printf("\nutilization:");
    for (unsigned i = 0; result == 0 && i < count; i++)
        printf(" %u/%u", samples[i].pid, samples[i].sm);
    use found[ROOM];
    uses all = {USES, ROOM, 0, found};
    result = uses_of(device, &all);
    printf("\nuses:");
    for (unsigned i = 0; result == 0 && i < all.count; i++)
        printf(" %u/%u", found[i].pid, found[i].sm);
    printf("\n");
}

/* As nvidia-smi does it. */
static void private(unsigned number) {
    static const unsigned char id[16] = "\xc4\xfe\x3e\x6c\xc9\x8f\x6c\x4e\xa3\x27\xee\x69\x6e\x12\xf7\xc4";
    int (*get_table)(const void **, const unsigned char *);
    int (*by_index)(unsigned, void **);
    int (*pids)(void *, unsigned *, unsigned *);
    *(void **)&get_table = need(nvml, "nvmlInternalGetExportTable");
    *(void **)&by_index = need(nvml, "nvmlDeviceGetHandleByIndex_v2");
    const void *table;
    ok(get_table(&table, id));
    ok(by_index(number, &device));
    *(const void **)&pids = ((const void *const *)table)[1];
    for (unsigned round = 0; round < 2; round++) {
        unsigned list[ROOM], count = ROOM;
        errno = 0;
        int result = pids(device, &count, list);
        printf("private=%d errno=%d\nround%u:", result, errno, round);
        for (unsigned i = 0; result == 0 && i < count; i++)
            printf(" %u/0", list[i]);
        printf("\n");
    }
}

static void calls(void) {
    const char *name = "nvmlDeviceGetComputeRunningProcesses_v3";
    info_v2 list[ROOM];
    unsigned count = 0;
    int result = list_function(name)(device, &count, NULL);
    printf("ask=%d asked=%u ", result, count);
    count = 0;
    result = list_function(name)(device, &count, list);
    printf("short=%d shorted=%u ", result, count);
    printf("null_count=%d ", list_function(name)(device, NULL, list));
    count = 2;
    printf("null_list=%d ", list_function(name)(device, &count, NULL));
    printf("no_device=%d ", list_function(name)(NULL, &count, list));
    int (*get_details)(void *, details *);
    *(void **)&get_details = need(nvml, "nvmlDeviceGetRunningProcessDetailList");
    details of = {DETAILS, 0, 0, NULL};
    result = get_details(device, &of);
    printf("details=%d detailed=%u ", result, of.count);
    of.version = 1;
    printf("details_version=%d ", get_details(device, &of));
    of.version = DETAILS;
    of.mode = 9;
    printf("details_mode=%d null_details=%d ", get_details(device, &of), get_details(device, NULL));
    int (*utilization)(void *, sample *, unsigned *, unsigned long long);
    *(void **)&utilization = need(nvml, "nvmlDeviceGetProcessUtilization");
    printf("idle=%d null_uses=%d ", utilization(device, NULL, &count, 0),
           utilization(device, NULL, NULL, 0));
    int (*info)(void *, memory *);
    int (*info_v2)(void *, memory_v2 *);
    *(void **)&info = need(nvml, "nvmlDeviceGetMemoryInfo");
    *(void **)&info_v2 = need(nvml, "nvmlDeviceGetMemoryInfo_v2");
    memory_v2 v2 = {.version = (unsigned)sizeof v2 | 1u << 24};
    printf("null_memory=%d null_memory_v2=%d memory_version=%d ", info(device, NULL),
           info_v2(device, NULL), info_v2(device, &v2));
    printf("memory_device=%d\n", info(NULL, &(memory){0}));
}

int main(int argc, char **argv) {
    if (argc < 2)
        return 96;
    if (strcmp(argv[1], "hold") == 0 || strcmp(argv[1], "busy") == 0) {
        struct driver d = driver_of(open_driver(RTLD_NOW));
        CUdeviceptr held;
        start_driver(&d);
        if (argc > 2)
            ok(d.mem_alloc(&held, (size_t)atoi(argv[2]) * MIB));
        CUfunction kernel = spin_kernel(&d);
        printf("pid=%d\n", getpid());
        fflush(stdout);
        for (;;) {
            if (argv[1][0] == 'b')
                ok(spin(&d, kernel, 5000, NULL));
            usleep(10000);
        }
    }
    nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    int (*start)(void);
    int (*by_index)(unsigned, void **);
    *(void **)&start = need(nvml, "nvmlInit_v2");
    *(void **)&by_index = need(nvml, "nvmlDeviceGetHandleByIndex_v2");
    ok(start());
    ok(by_index(0, &device));
    if (strcmp(argv[1], "show") == 0)
        show_all();
    else if (strcmp(argv[1], "private") == 0 && argc > 2)
        private(atoi(argv[2]));
    else
        calls();
    return 0;
}
