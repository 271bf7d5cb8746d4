/* Memory that exists before its context, and after it. */
#include "any.h"

typedef unsigned long long handle_t;

int main(void) {
    struct props props = on_device(0);
    CUcontext context;
    CUdeviceptr pooled;
    CUstream stream;
    handle_t early;
    void *pool;
    library = open_driver(RTLD_NOW);
    must("cuInit", 0);

    /* Created before there is any context, whose size is measured afterwards. */
    must("cuMemCreate", &early, 300 * MIB, &props, 0ull);
    must("cuDevicePrimaryCtxRetain", &context, 0);
    must("cuCtxSetCurrent", context);
    size_t all = left() + 300 * MIB;
    must("cuMemPoolCreate", &pool, &props);
    must("cuStreamCreate", &stream, 0);
    must("cuMemAllocFromPoolAsync", &pooled, 320 * MIB, pool, stream);
    must("cuStreamSynchronize", stream);
    is_left(all - 620 * MIB);

    /* What is in a pool of the program's outlives the primary context, and its pool. */
    must("cuDevicePrimaryCtxReset_v2", 0);
    must("cuDevicePrimaryCtxRetain", &context, 0);
    must("cuCtxSetCurrent", context);
    is_left(all - 620 * MIB);
    must("cuMemPoolDestroy", pool);
    is_left(all - 620 * MIB);
    must("cuDevicePrimaryCtxReset_v2", 0);
    must("cuDevicePrimaryCtxRetain", &context, 0);
    must("cuCtxSetCurrent", context);
    is_left(all - 620 * MIB);
    must("cuMemFree_v2", pooled);
    is_left(all - 300 * MIB);
    must("cuMemRelease", early);
    printf("left=%zu\n", left() / MIB);
    return 0;
}
