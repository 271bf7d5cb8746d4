/* Prints what NVML and the driver report about the memory of each device that they list. NVML gets a filled
 * structure, so that changes by a refused call show. With an argument, the driver is not loaded. */
#include "driver.h"

struct memory {
    unsigned long long total, free, used;
};

int main(int argc, char **argv) {
    (void)argv;
    if (argc < 2) {
        void *library = open_driver(RTLD_NOW);
        struct driver d = driver_of(library);
        int count, (*devices)(int *);
        *(void **)&devices = need(library, "cuDeviceGetCount");
        ok(d.init(0));
        ok(devices(&count));
        for (int device = 0; device < count; device++) {
            size_t total = 7;
            printf("cuda%d=%d ", device, d.total_mem(&total, device));
            printf("cuda%d_total=%zu\n", device, total);
        }
    }
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!nvml)
        return 0;
    int (*start)(void), (*devices)(unsigned *), (*by_index)(unsigned, void **);
    int (*info)(void *, struct memory *);
    *(void **)&start = need(nvml, "nvmlInit_v2");
    *(void **)&devices = need(nvml, "nvmlDeviceGetCount_v2");
    *(void **)&by_index = need(nvml, "nvmlDeviceGetHandleByIndex_v2");
    *(void **)&info = need(nvml, "nvmlDeviceGetMemoryInfo");
    unsigned count;
    ok(start());
    ok(devices(&count));
    for (unsigned device = 0; device < count; device++) {
        void *handle;
        struct memory m = {7, 7, 7};
        ok(by_index(device, &handle));
        printf("nvml%u=%d ", device, info(handle, &m));
        printf("nvml%u_total=%llu nvml%u_sum=%llu\n", device, m.total, device, m.free + m.used);
    }
    return 0;
}
