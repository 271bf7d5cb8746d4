/* Memory of other interfaces, tiles of sparse arrays, multicast objects: memory stays charged as long as anything
 * keeps it alive. */
#include "any.h"
#include <fcntl.h>

typedef unsigned long long handle_t;
typedef void *CUexternalMemory, *CUarray;

struct external {
    int type, padding, fd, rest[3];
    unsigned long long size;
    unsigned flags, reserved[16];
};
struct buffer {
    unsigned long long offset, size;
    unsigned flags, reserved[16];
};
struct array3d {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};
/* CUarrayMapInfo for a box of a level */
struct tiles {
    int resource_type;
    CUarray array;
    int subresource_type, padding;
    unsigned level, layer, x, y, z, width, height, depth;
    int operation, handle_type;
    handle_t handle;
    unsigned long long offset;
    unsigned devices, flags, reserved[2];
};
struct sparse {
    unsigned tile[3], first_level;
    unsigned long long tail;
    unsigned flags, reserved[4];
};
struct multicast {
    unsigned devices;
    size_t size;
    unsigned long long handle_types, flags;
};

#define SPARSE 0x40u
#define TILE_POOL 1

static size_t whole;

/* A descriptor; the driver owns it once it has imported it. */
static int open_file(void) { return open("/dev/null", O_RDONLY); }

static CUexternalMemory import(int type, unsigned long long size) {
    CUexternalMemory memory = NULL;
    struct external description = {.type = type, .fd = open_file(), .size = size};
    must("cuImportExternalMemory", &memory, &description);
    return memory;
}

static void external_memory(const struct driver *d) {
    CUdeviceptr mapped;
    struct buffer all = {.size = 128 * MIB};
    CUexternalMemory memory = import(1, 128 * MIB);
    is_left(whole - 128 * MIB);
    must("cuExternalMemoryGetMappedBuffer", &mapped, memory, &all);
    is_left(whole - 128 * MIB);
    ok(d->mem_free(mapped));
    must("cuDestroyExternalMemory", memory);
    is_left(whole);
    /* In the other order. */
    memory = import(1, 128 * MIB);
    must("cuExternalMemoryGetMappedBuffer", &mapped, memory, &all);
    must("cuDestroyExternalMemory", memory);
    is_left(whole - 128 * MIB);
    ok(d->mem_free(mapped));
    is_left(whole);
    struct external much = {.type = 1, .fd = open_file(), .size = 1024 * MIB};
    expect(OUT_OF_MEMORY, "cuImportExternalMemory", &memory, &much);
    is_left(whole);
}

static void sparse_arrays(void) {
    struct array3d description = {.width = 4096, .height = 4096, .format = 0x20, .channels = 4, .flags = SPARSE};
    struct sparse properties;
    struct props pool = on_device(0);
    CUarray array;
    handle_t first, second;
    pool.rest[2] = TILE_POOL;
    /* 256 MiB of addresses, and no memory. */
    must("cuArray3DCreate_v2", &array, &description);
    is_left(whole);
    must("cuArrayGetSparseProperties", &properties, array);
    must("cuMemCreate", &first, 4 * MIB, &pool, 0ull);
    must("cuMemCreate", &second, 4 * MIB, &pool, 0ull);
    struct tiles map[] = {
        {.array = array, .width = 2 * properties.tile[0], .height = properties.tile[1], .depth = 1,
         .operation = 1, .handle = first, .devices = 1},
        {.array = array, .x = 2 * properties.tile[0], .width = properties.tile[0], .height = properties.tile[1],
         .depth = 1, .operation = 1, .handle = second, .devices = 1},
    };
    must("cuMemMapArrayAsync", map, 2, NULL);
    must("cuMemRelease", first);
    must("cuMemRelease", second);
    is_left(whole - 8 * MIB);
    /* One tile of the first's two. */
    struct tiles unmap = {.array = array, .width = properties.tile[0], .height = properties.tile[1], .depth = 1,
                          .operation = 2, .devices = 1};
    must("cuMemMapArrayAsync", &unmap, 1, NULL);
    is_left(whole - 8 * MIB);
    unmap.x = properties.tile[0];
    must("cuMemMapArrayAsync", &unmap, 1, NULL);
    is_left(whole - 4 * MIB);
    must("cuArrayDestroy", array);
    is_left(whole);
}

static void multicast_objects(void) {
    struct props shared = on_device(0);
    struct multicast team = {.devices = 1, .size = 64 * MIB};
    handle_t object, memory;
    must("cuMulticastCreate", &object, &team);
    must("cuMulticastAddDevice", object, 0);
    must("cuMemCreate", &memory, 32 * MIB, &shared, 0ull);
    must("cuMulticastBindMem", object, (size_t)0, memory, (size_t)0, 32 * MIB, 0ull);
    must("cuMemRelease", memory);
    is_left(whole - 32 * MIB);
    must("cuMulticastUnbind", object, 0, (size_t)0, 32 * MIB);
    is_left(whole);
    /* What is still bound ends with the object. */
    must("cuMemCreate", &memory, 32 * MIB, &shared, 0ull);
    must("cuMulticastBindMem_v2", object, 0, 32 * MIB, memory, (size_t)0, 32 * MIB, 0ull);
    must("cuMemRelease", memory);
    is_left(whole - 32 * MIB);
    must("cuMemRelease", object);
    is_left(whole);
}

int main(void) {
    library = open_driver(RTLD_NOW);
    struct driver d = driver_of(library);
    start_driver(&d);
    whole = left();
    external_memory(&d);
    sparse_arrays();
    multicast_objects();
    printf("left=%zu\n", whole / MIB);
    return 0;
}
