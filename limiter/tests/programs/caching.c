/* What a caching allocator does when it is refused: it releases its cache and tries again at once. Also arrays with
 * few dimensions, whose refusals cost nothing. */
#include "any.h"

typedef unsigned long long handle_t;
typedef void *CUarray;

struct array3d {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};

int main(void) {
    library = open_driver(RTLD_NOW);
    struct driver d = driver_of(library);
    start_driver(&d);
    const size_t whole = left();
    CUdeviceptr cached[8], wanted, at;
    handle_t handle, more;
    struct props props = on_device(0);

    /* Segments: plain allocations of some size, then one of another. */
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 8; i++)
            ok(d.mem_alloc(&cached[i], 64 * MIB));
        expect(OUT_OF_MEMORY, "cuMemAlloc_v2", &wanted, 100 * MIB);
        for (int i = 0; i < 2; i++)
            ok(d.mem_free(cached[i]));
        ok(d.mem_alloc(&wanted, 100 * MIB));
        for (int i = 2; i < 8; i++)
            ok(d.mem_free(cached[i]));
        ok(d.mem_free(wanted));
        is_left(whole);
    }

    /* Expandable segments: unmapped, released, made again. */
    must("cuMemAddressReserve", &at, 512 * MIB, (size_t)0, (CUdeviceptr)0, 0ull);
    for (int round = 0; round < 10; round++) {
        must("cuMemCreate", &handle, 400 * MIB, &props, 0ull);
        must("cuMemMap", at, 400 * MIB, (size_t)0, handle, 0ull);
        expect(OUT_OF_MEMORY, "cuMemCreate", &more, 200 * MIB, &props, 0ull);
        must("cuMemUnmap", at, 400 * MIB);
        must("cuMemRelease", handle);
        must("cuMemCreate", &more, 200 * MIB, &props, 0ull);
        must("cuMemRelease", more);
        is_left(whole);
    }

    /* An unused dimension counts once; rows come in eights. */
    CUarray array;
    struct array3d line = {.width = 65536, .format = 0x20, .channels = 4};
    must("cuArray3DCreate_v2", &array, &line);
    is_left(whole - 8 * MIB);
    must("cuArrayDestroy", array);
    is_left(whole);
    if (call("cuArrayDestroy", array) == 0)
        return 2;
    struct array3d nothing = {.format = 0x20, .channels = 4}, odd = {.width = 1024, .format = 0x20, .channels = 3};
    if (call("cuArray3DCreate_v2", &array, &nothing) == 0 || call("cuArray3DCreate_v2", &array, &odd) == 0)
        return 3;
    if (call("cuArray3DCreate_v2", &array, NULL) == 0 || call("cuArray3DCreate_v2", NULL, &line) == 0)
        return 4;
    if (call("cuMemAlloc_v2", &wanted, (size_t)0) == 0 || call("cuMemAlloc_v2", NULL, MIB) == 0)
        return 5;
    is_left(whole);
    printf("left=%zu\n", whole / MIB);
    return 0;
}
