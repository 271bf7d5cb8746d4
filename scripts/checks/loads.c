// Loads both libraries of the driver and initializes them.
#include <dlfcn.h>
#include <stdio.h>
int main(void) {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!cuda || !nvml) return puts(dlerror()), 1;
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(cuda, "cuInit");
    int (*nvml_init)(void) = (int (*)(void))dlsym(nvml, "nvmlInit_v2");
    printf("cuInit %d nvmlInit_v2 %d\n", init(0), nvml_init());
    return 0;
}
