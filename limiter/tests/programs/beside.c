/* What has been started once cuInit has returned: beside [ends]. With "ends" the process ends at once. */
#include "driver.h"

int main(int argc, char **argv) {
    int (*count)(unsigned *) = NULL;
    unsigned devices = 0;
    int nvml = 0;
    struct driver d = driver_of(open_driver(RTLD_NOW));
    (void)argv;
    ok(d.init(0));
    if (argc > 1)
        return 0;
    for (int tries = 0; tries < 5000 && !nvml; tries++) {
        void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_NOLOAD);
        if (library)
            *(void **)&count = dlsym(library, "nvmlDeviceGetCount_v2");
        nvml = count && count(&devices) == 0;
        usleep(1000);
    }
    printf("nvml=%d devices=%u\n", nvml, devices);
    return 0;
}
