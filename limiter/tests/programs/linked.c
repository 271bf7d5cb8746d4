/* A program that is linked against the driver, and uses it in a constructor of its own. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

int cuInit(unsigned);
int cuDeviceGet(int *, int);
int cuCtxCreate_v2(void **, unsigned, int);
int cuMemAlloc_v2(uint64_t *, size_t);

static int early = -1;

__attribute__((constructor)) static void before_main(void) { early = cuInit(0); }

int main(void) {
    int device;
    void *context;
    uint64_t memory;
    if (early != 0 || cuDeviceGet(&device, 0) != 0 || cuCtxCreate_v2(&context, 0, device) != 0)
        return 97;
    printf("little=%d ", cuMemAlloc_v2(&memory, (size_t)64 << 20));
    printf("much=%d\n", cuMemAlloc_v2(&memory, (size_t)2048 << 20));
    return 0;
}
