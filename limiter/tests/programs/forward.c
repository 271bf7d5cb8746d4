/* A libcuda.so.1 that forwards each call to another libcuda.so.1, named by REAL, like WSL's loader and interposed
 * tools. It loads that one at once, or with LAZY in cuInit. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

#define FUNCTIONS(F) \
    F(cuDriverGetVersion) F(cuDeviceGet) F(cuDeviceGetCount) F(cuDeviceTotalMem_v2) F(cuDeviceGetUuid_v2) \
    F(cuDeviceGetAttribute) F(cuCtxCreate_v2) F(cuCtxDestroy_v2) F(cuCtxSetCurrent) F(cuCtxGetCurrent) \
    F(cuCtxGetDevice) F(cuCtxSynchronize) F(cuMemAlloc_v2) F(cuMemFree_v2) F(cuMemGetInfo_v2) F(cuModuleLoadData) \
    F(cuModuleGetFunction) F(cuLaunchKernel) F(cuStreamCreate) F(cuStreamDestroy_v2) F(cuStreamSynchronize) \
    F(cuStreamBeginCapture_v2) F(cuStreamEndCapture)

#define PLACE(name) static void *to_##name;
FUNCTIONS(PLACE)
static int (*init)(unsigned);

static void load(void) {
    void *real = dlopen(getenv("REAL"), RTLD_NOW | RTLD_LOCAL);
    if (!real)
        exit(98);
    *(void **)&init = dlsym(real, "cuInit");
#define FIND(name) to_##name = dlsym(real, #name);
    FUNCTIONS(FIND)
}

__attribute__((constructor)) static void begin(void) {
    if (!getenv("LAZY"))
        load();
}

int cuInit(unsigned flags) {
    if (!init)
        load();
    return init(flags);
}

#define FORWARD(name) \
    __attribute__((naked)) void name(void) { \
        __asm__("push %%rax\n pop %%rax\n mov %0, %%r11\n jmp *%%r11" ::"m"(to_##name)); \
    }
FUNCTIONS(FORWARD)
