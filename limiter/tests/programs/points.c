/* A driver in which each call is a cancellation point for as many milliseconds as the program requests: which calls
 * of the real driver are cancellation points is unknown. */
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

volatile int points_ms, points_met;

static int point(void) {
    points_met++;
    poll(NULL, 0, points_ms);
    return 0;
}

int cuInit(unsigned flags) { return flags ? 1 : point(); }

int cuDeviceGetCount(int *count) {
    *count = 1;
    return point();
}

int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    static const unsigned char gpu[16] = {0x5a, 0x1c, 0xe0, 0, 0, 0, 0x40, 0, 0x80};
    memcpy(uuid, gpu, sizeof gpu);
    return device ? 101 : point();
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    *bytes = (size_t)8 << 30;
    return device ? 101 : point();
}

int cuCtxGetDevice(int *device) {
    *device = 0;
    return point();
}

int cuCtxGetCurrent(void **context) {
    *context = (void *)&point;
    return point();
}

int cuMemAlloc_v2(unsigned long long *address, size_t bytes) {
    *address = (unsigned long long)(size_t)malloc(16);
    return bytes ? point() : 1;
}

int cuMemFree_v2(unsigned long long address) {
    free((void *)(size_t)address);
    return point();
}

int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **params, void **extra) {
    int expected = gx == 1 && gy == 2 && gz == 3 && bx == 4 && by == 5 && bz == 6 && shared == 7 &&
                   !stream && params == (void *)8 && extra == (void *)9 && f;
    return expected ? point() : 1;
}
