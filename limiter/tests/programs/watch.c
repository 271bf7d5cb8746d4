/* Asks NVML over and over how much of the first device is in use, until its standard input ends; then
 * says the most that it saw. */
#include "driver.h"
#include <fcntl.h>

struct memory {
    unsigned long long total, free, used;
};

int main(void) {
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW), *device;
    int (*start)(void), (*by_index)(unsigned, void **), (*info)(void *, struct memory *);
    if (!nvml)
        return 2;
    *(void **)&start = need(nvml, "nvmlInit_v2");
    *(void **)&by_index = need(nvml, "nvmlDeviceGetHandleByIndex_v2");
    *(void **)&info = need(nvml, "nvmlDeviceGetMemoryInfo");
    ok(start());
    ok(by_index(0, &device));
    fcntl(0, F_SETFL, O_NONBLOCK);
    unsigned long long highest = 0;
    char byte;
    while (read(0, &byte, 1) != 0) {
        struct memory memory;
        ok(info(device, &memory));
        if (memory.used > highest)
            highest = memory.used;
    }
    printf("highest=%llu\n", highest);
    return 0;
}
