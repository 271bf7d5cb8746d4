/* Prints what the driver and NVML report about the memory of each device: once without an allocation and once with
 * one of 256 MiB. */
#include "driver.h"

struct memory {
    unsigned long long total, free, used;
};
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

static void say(const struct driver *d, void *nvml, int device, const char *when) {
    int (*by_index)(unsigned, void **);
    int (*info)(void *, struct memory *);
    int (*info_v2)(void *, struct memory_v2 *);
    *(void **)&by_index = need(nvml, "nvmlDeviceGetHandleByIndex_v2");
    *(void **)&info = need(nvml, "nvmlDeviceGetMemoryInfo");
    *(void **)&info_v2 = need(nvml, "nvmlDeviceGetMemoryInfo_v2");
    size_t free = 0, total = 0, size = 0;
    void *handle;
    struct memory m;
    struct memory_v2 m2 = {.version = (unsigned)sizeof m2 | 2u << 24};
    ok(d->mem_info(&free, &total));
    ok(d->total_mem(&size, device));
    ok(by_index((unsigned)device, &handle));
    ok(info(handle, &m));
    ok(info_v2(handle, &m2));
    printf("%s%d_info_free=%zu %s%d_info_total=%zu %s%d_total_mem=%zu ", when, device, free, when,
           device, total, when, device, size);
    printf("%s%d_nvml_free=%llu %s%d_nvml_total=%llu %s%d_nvml_used=%llu ", when, device, m.free,
           when, device, m.total, when, device, m.used);
    printf("%s%d_nvml2_free=%llu %s%d_nvml2_total=%llu %s%d_nvml2_used=%llu\n", when, device,
           m2.free, when, device, m2.total, when, device, m2.used);
}

int main(void) {
    struct driver d = driver_of(open_driver(RTLD_NOW));
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    int (*start)(void);
    *(void **)&start = need(nvml, "nvmlInit_v2");
    ok(start());
    ok(d.init(0));
    for (int device = 0; device < 2; device++) {
        CUcontext context;
        CUdeviceptr memory;
        ok(d.ctx_create(&context, 0, device));
        say(&d, nvml, device, "before");
        ok(d.mem_alloc(&memory, 256 * MIB));
        say(&d, nvml, device, "after");
    }
    return 0;
}
