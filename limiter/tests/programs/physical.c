/* Physical memory in odd orders, from threads with and without a context. */
#include "any.h"
#include <pthread.h>

typedef unsigned long long handle_t;

static CUresult create(handle_t *handle, size_t bytes) {
    struct props props = on_device(0);
    return call("cuMemCreate", handle, bytes, &props, 0ull);
}

static CUdeviceptr reserve(size_t bytes) {
    CUdeviceptr address;
    must("cuMemAddressReserve", &address, bytes, (size_t)0, (CUdeviceptr)0, 0ull);
    return address;
}

static size_t whole;

/* A thread that has no context can take and give back. */
static void *without_context(void *handle) {
    handle_t more;
    ok(create(&more, 64 * MIB));
    ok(create(handle, 128 * MIB));
    must("cuMemRelease", more);
    return NULL;
}

int main(void) {
    library = open_driver(RTLD_NOW);
    struct driver d = driver_of(library);
    start_driver(&d);
    whole = left();
    handle_t handle, again, other;
    pthread_t thread;

    /* What is refused, or not on a device, costs nothing. */
    expect(OUT_OF_MEMORY, "cuMemCreate", &handle, (size_t)4096 * MIB, &(struct props){.type = 1, .location = {1, 0}}, 0ull);
    if (call("cuMemCreate", &handle, 2 * MIB, NULL, 0ull) == 0 || create(NULL, 2 * MIB) == 0)
        return 2;
    if (create(&handle, 3) == 0)
        return 3;
    struct props odd = on_device(77);
    if (call("cuMemCreate", &handle, 2 * MIB, &odd, 0ull) == 0)
        return 4;
    is_left(whole);

    ok_(pthread_create(&thread, NULL, without_context, &handle), "pthread_create");
    pthread_join(thread, NULL);
    is_left(whole - 128 * MIB);

    /* The mapping outlives the handle, and a reference taken from it outlives the mapping. */
    CUdeviceptr at = reserve(256 * MIB);
    must("cuMemMap", at, 128 * MIB, (size_t)0, handle, 0ull);
    must("cuMemRelease", handle);
    is_left(whole - 128 * MIB);
    must("cuMemRetainAllocationHandle", &again, (void *)(at + 64 * MIB));
    must("cuMemUnmap", at, 128 * MIB);
    is_left(whole - 128 * MIB);
    must("cuMemMap", at + 128 * MIB, 128 * MIB, (size_t)0, again, 0ull);
    must("cuMemRelease", again);
    ok(create(&other, 64 * MIB));
    must("cuMemMap", at, 64 * MIB, (size_t)0, other, 0ull);
    must("cuMemRelease", other);
    is_left(whole - 192 * MIB);
    /* What is not mapped as a whole is not unmapped. */
    if (call("cuMemUnmap", at, 32 * MIB) == 0)
        return 5;
    is_left(whole - 192 * MIB);
    must("cuMemUnmap", at, 64 * MIB);
    is_left(whole - 128 * MIB);
    must("cuMemUnmap", at + 128 * MIB, 128 * MIB);
    is_left(whole);
    if (call("cuMemRelease", other) == 0)
        return 6;
    is_left(whole);

    /* Twice the same memory under one roof: an import of what is one's own. */
    struct props shared = on_device(0);
    shared.handle_types = 1;
    int file = -1;
    must("cuMemCreate", &handle, 128 * MIB, &shared, 0ull);
    must("cuMemExportToShareableHandle", &file, handle, 1, 0ull);
    must("cuMemImportFromShareableHandle", &again, (void *)(intptr_t)file, 1);
    is_left(whole - 128 * MIB);
    must("cuMemRelease", again);
    is_left(whole - 128 * MIB);
    must("cuMemRelease", handle);
    close(file);
    is_left(whole);

    /* All of it, again and again. */
    for (int round = 0; round < 3; round++) {
        handle_t held[8];
        for (int i = 0; i < 8; i++)
            ok(create(&held[i], 64 * MIB));
        if (create(&handle, 2 * MIB) != OUT_OF_MEMORY)
            return 7;
        for (int i = 0; i < 8; i++)
            must("cuMemRelease", held[(i * 3 + round) % 8]);
        is_left(whole);
    }
    printf("left=%zu\n", whole / MIB);
    return 0;
}
