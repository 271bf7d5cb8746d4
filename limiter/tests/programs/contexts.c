/* Contexts of every kind, and what ends with them. */
#include "any.h"

typedef void *CUgreenCtx;

/* CUdevResource */
struct resource {
    int type;
    char padding[92];
    unsigned char body[48];
};

int main(void) {
    library = open_driver(RTLD_NOW);
    struct driver d = driver_of(library);
    CUcontext context, green_context, primary;
    CUgreenCtx green;
    CUdeviceptr memory;
    struct resource resource;
    void *description;
    ok(d.init(0));

    /* For graphics: a context like others. */
    must("cuGLCtxCreate_v2", &context, 0, 0);
    const size_t whole = left();
    ok(d.ctx_destroy(context));
    must("cuVDPAUCtxCreate_v2", &context, 0, 0, 0, NULL);
    is_left(whole);
    ok(d.mem_alloc(&memory, 128 * MIB));
    ok(d.ctx_destroy(context));

    /* A green context makes the primary context, which takes what a context takes, and ends it. */
    must("cuDeviceGetDevResource", 0, &resource, 1);
    must("cuDevResourceGenerateDesc", &description, &resource, 1);
    must("cuGreenCtxCreate", &green, description, 0, 1);
    must("cuCtxFromGreenCtx", &green_context, green);
    ok(d.ctx_set(green_context));
    size_t with_green = left();
    if (with_green > whole || with_green < whole - 64 * MIB)
        return 2;
    ok(d.mem_alloc(&memory, 128 * MIB));
    is_left(with_green - 128 * MIB);
    must("cuGreenCtxDestroy", green);
    must("cuCtxCreate_v2", &context, 0, 0);
    is_left(whole);
    ok(d.ctx_destroy(context));

    /* Beside a primary context it takes little; what was allocated in it stays with the primary one. */
    must("cuDevicePrimaryCtxRetain", &primary, 0);
    ok(d.ctx_set(primary));
    is_left(whole);
    must("cuGreenCtxCreate", &green, description, 0, 1);
    must("cuCtxFromGreenCtx", &green_context, green);
    size_t beside = left();
    if (beside > whole || beside < whole - 64 * MIB)
        return 3;
    ok(d.ctx_set(green_context));
    ok(d.mem_alloc(&memory, 128 * MIB));
    ok(d.ctx_set(primary));
    ok(d.mem_free(memory));
    is_left(beside);
    must("cuGreenCtxDestroy", green);
    is_left(whole);

    /* A reset takes everything. */
    ok(d.mem_alloc(&memory, 128 * MIB));
    must("cuDevicePrimaryCtxReset_v2", 0);
    must("cuDevicePrimaryCtxRetain", &primary, 0);
    ok(d.ctx_set(primary));
    is_left(whole);
    if (d.mem_free(memory) == 0)
        return 4;
    is_left(whole);
    printf("left=%zu\n", whole / MIB);
    return 0;
}
