/* Pools in odd orders: memory that they release is uncharged at once. */
#include "any.h"

typedef void *CUmemoryPool;

#define RELEASE_THRESHOLD 4

static CUmemoryPool made(int device) {
    CUmemoryPool pool;
    struct props props = on_device(device);
    must("cuMemPoolCreate", &pool, &props);
    return pool;
}

int main(void) {
    library = open_driver(RTLD_NOW);
    struct driver d = driver_of(library);
    CUcontext context = start_driver(&d);
    CUstream stream;
    ok(d.stream_create(&stream, 1));
    const size_t whole = left();
    uint64_t keep = UINT64_MAX;
    CUdeviceptr first, second, plain;
    CUmemoryPool pool = made(0), standard;
    must("cuDeviceGetDefaultMemPool", &standard, 0);

    /* A pool keeps what is freed into it, until it is trimmed. */
    must("cuMemPoolSetAttribute", pool, RELEASE_THRESHOLD, &keep);
    must("cuMemAllocFromPoolAsync", &first, 256 * MIB, pool, stream);
    must("cuMemFreeAsync", first, stream);
    ok(d.stream_synchronize(stream));
    is_left(whole - 256 * MIB);
    must("cuMemPoolTrimTo", pool, 64 * MIB);
    is_left(whole - 64 * MIB);
    must("cuMemPoolTrimTo", pool, (size_t)0);
    is_left(whole);

    /* What it keeps makes room for others, the program's own pool for the device's too. */
    must("cuMemAllocFromPoolAsync", &first, 320 * MIB, pool, stream);
    must("cuMemFreeAsync", first, stream);
    ok(d.stream_synchronize(stream));
    ok(d.mem_alloc(&plain, 448 * MIB));
    ok(d.mem_free(plain));
    must("cuMemAllocFromPoolAsync", &first, 320 * MIB, pool, stream);
    must("cuMemFreeAsync", first, stream);
    ok(d.stream_synchronize(stream));
    must("cuMemAllocAsync", &second, 320 * MIB, stream);
    expect(OUT_OF_MEMORY, "cuMemAllocFromPoolAsync", &first, 320 * MIB, pool, stream);
    must("cuMemFreeAsync", second, stream);
    must("cuMemPoolTrimTo", standard, (size_t)0);
    must("cuMemPoolTrimTo", pool, (size_t)0);
    is_left(whole);

    /* Freed by the call for plain memory, and by a null stream. */
    must("cuMemAllocFromPoolAsync", &first, 64 * MIB, pool, NULL);
    must("cuMemFree_v2", first);
    must("cuMemAllocAsync_ptsz", &first, 64 * MIB, NULL);
    must("cuMemFreeAsync_ptsz", first, NULL);
    must("cuMemPoolTrimTo", standard, (size_t)0);
    must("cuMemPoolTrimTo", pool, (size_t)0);
    is_left(whole);

    /* Linear memory may be freed in the order of a stream. */
    ok(d.mem_alloc(&plain, 64 * MIB));
    must("cuMemFreeAsync", plain, stream);
    is_left(whole);

    /* A lower threshold, and a pool that is destroyed before what it has given out. */
    must("cuMemAllocFromPoolAsync", &first, 128 * MIB, pool, stream);
    must("cuMemAllocFromPoolAsync", &second, 128 * MIB, pool, stream);
    must("cuMemFreeAsync", second, stream);
    must("cuMemPoolDestroy", pool);
    is_left(whole - 128 * MIB);
    must("cuMemFreeAsync", first, stream);
    ok(d.stream_synchronize(stream));
    is_left(whole);

    /* Errors cost nothing. */
    if (call("cuMemAllocAsync", NULL, 64 * MIB, stream) == 0)
        return 2;
    if (call("cuMemAllocAsync", &first, (size_t)0, stream) == 0)
        return 3;
    if (call("cuMemFreeAsync", (CUdeviceptr)12345, stream) == 0)
        return 4;
    if (call("cuMemPoolDestroy", standard) == 0)
        return 5;
    expect(OUT_OF_MEMORY, "cuMemAllocAsync", &first, 1024 * MIB, stream);
    is_left(whole);

    /* A context ends with what was allocated in it. */
    must("cuMemAllocAsync", &first, 128 * MIB, stream);
    ok(d.mem_alloc(&plain, 128 * MIB));
    ok(d.ctx_destroy(context));
    if (call("cuMemFree_v2", plain) == 0)
        return 6;
    start_driver(&d);
    must("cuDeviceGetDefaultMemPool", &standard, 0);
    must("cuMemPoolTrimTo", standard, (size_t)0);
    size_t again = left();
    if (again < whole - 128 * MIB || again > whole)
        return 7;
    printf("left=%zu\n", whole / MIB);
    return 0;
}
