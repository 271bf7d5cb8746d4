/* Copies and fills: "every" calls each function once and prints the effect on memory; "capture" captures copies
 * into graphs while another thread copies; "forbidden" makes the calls that a capture forbids; "anywhere" copies
 * back to back between addresses of unknown location, by functions that detect it. */
#include "driver.h"
#include <pthread.h>

typedef void *CUarray, *CUgraphExec;
typedef uint32_t CUdeviceptr_v1;
typedef unsigned long long flags_t;

/* Bytes of every buffer: 4 layers of 16 rows of 64 bytes. */
enum { WIDTH = 64, HEIGHT = 16, DEPTH = 4, BYTES = WIDTH * HEIGHT * DEPTH };
enum { HOST = 1, DEVICE = 2, ARRAY = 3, UNIFIED = 4 };

typedef struct {
    size_t x, y;
    unsigned kind;
    const void *host;
    CUdeviceptr device;
    CUarray array;
    size_t pitch;
} side_2d;

typedef struct {
    side_2d from, to;
    size_t width, height;
} copy_2d;

typedef struct {
    size_t x, y, z, lod;
    unsigned kind;
    const void *host;
    CUdeviceptr device;
    CUarray array;
    void *context;
    size_t pitch, height;
} side_3d;

typedef struct {
    side_3d from, to;
    size_t width, height, depth;
} copy_3d;

/* The forms of CUDA 2, as the header has them: the sides of the first are not padded. */
typedef struct {
    unsigned from_x, from_y, from_kind;
    const void *from_host;
    CUdeviceptr_v1 from_device;
    CUarray from_array;
    unsigned from_pitch;
    unsigned to_x, to_y, to_kind;
    const void *to_host;
    CUdeviceptr_v1 to_device;
    CUarray to_array;
    unsigned to_pitch;
    unsigned width, height;
} copy_2d_v1;

typedef struct {
    unsigned x, y, z, lod, kind;
    const void *host;
    CUdeviceptr_v1 device;
    CUarray array;
    void *reserved;
    unsigned pitch, height;
} side_3d_v1;

typedef struct {
    side_3d_v1 from, to;
    unsigned width, height, depth;
} copy_3d_v1;

typedef struct {
    int kind, id;
} location;

typedef struct {
    int order;
    location from, to;
    unsigned flags;
} attributes;

typedef struct {
    int kind;
    union {
        struct {
            CUdeviceptr address;
            size_t row, height;
            location hint;
        } pointer;
        struct {
            CUarray array;
            size_t x, y, z;
        } array;
    } body;
} operand;

typedef struct {
    operand from, to;
    size_t width, height, depth;
    int order;
    unsigned flags;
} batched_3d;

typedef struct {
    size_t width, height;
    unsigned format, channels;
} array_descriptor;

typedef struct {
    size_t width, height, depth;
    unsigned format, channels, flags;
} array_3d_descriptor;

static struct driver d;
static CUcontext context;
static void *library;
static CUstream stream;
/* Two of each: on the device, below 4 GiB on the device, arrays, on the host; and managed memory. */
static CUdeviceptr memory[2], managed;
static CUdeviceptr_v1 low[2];
static CUarray line[2], solid[2];
static unsigned char host[2][BYTES];

static CUresult (*to_device)(CUdeviceptr, const void *, size_t);
static CUresult (*to_host)(void *, CUdeviceptr, size_t);
static CUresult (*to_array)(CUarray, size_t, const void *, size_t);
static CUresult (*from_array)(void *, CUarray, size_t, size_t);
static CUresult (*copy_layers)(const copy_3d *);

static void prepare(void) {
    CUresult (*alloc_v1)(CUdeviceptr_v1 *, unsigned), (*array_create)(CUarray *, const array_descriptor *);
    CUresult (*array_3d_create)(CUarray *, const array_3d_descriptor *);
    CUresult (*alloc_managed)(CUdeviceptr *, size_t, unsigned);
    *(void **)&alloc_v1 = need(library, "cuMemAlloc");
    *(void **)&array_create = need(library, "cuArrayCreate_v2");
    *(void **)&array_3d_create = need(library, "cuArray3DCreate_v2");
    *(void **)&alloc_managed = need(library, "cuMemAllocManaged");
    *(void **)&to_device = need(library, "cuMemcpyHtoD_v2");
    *(void **)&to_host = need(library, "cuMemcpyDtoH_v2");
    *(void **)&to_array = need(library, "cuMemcpyHtoA_v2");
    *(void **)&from_array = need(library, "cuMemcpyAtoH_v2");
    *(void **)&copy_layers = need(library, "cuMemcpy3D_v2");
    array_descriptor flat = {BYTES, 0, 1, 1};
    array_3d_descriptor deep = {WIDTH, HEIGHT, DEPTH, 1, 1, 0};
    for (int i = 0; i < 2; i++) {
        ok(d.mem_alloc(&memory[i], BYTES));
        ok(alloc_v1(&low[i], BYTES));
        ok(array_create(&line[i], &flat));
        ok(array_3d_create(&solid[i], &deep));
    }
    ok(alloc_managed(&managed, BYTES, 1));
    ok(d.stream_create(&stream, 1));
}

static void copy_solid(int i, unsigned char *buffer, int out) {
    side_3d on_host = {.kind = HOST, .host = buffer, .pitch = WIDTH, .height = HEIGHT};
    side_3d in_array = {.kind = ARRAY, .array = solid[i]};
    copy_3d copy = {out ? in_array : on_host, out ? on_host : in_array, WIDTH, HEIGHT, DEPTH};
    ok(copy_layers(&copy));
}

/* Fills every buffer with a pattern of its own. */
static void reset(void) {
    unsigned char buffer[BYTES];
    for (int i = 0; i < 2; i++) {
        for (int kind = 0; kind < 5; kind++) {
            for (int at = 0; at < BYTES; at++)
                buffer[at] = (unsigned char)(at * (2 * kind + 3) + at / 251 + 17 * i + kind);
            switch (kind) {
            case 0: ok(to_device(memory[i], buffer, BYTES)); break;
            case 1: ok(to_device(low[i], buffer, BYTES)); break;
            case 2: ok(to_array(line[i], 0, buffer, BYTES)); break;
            case 3: copy_solid(i, buffer, 0); break;
            default: memcpy(host[i], buffer, BYTES);
            }
        }
    }
    ok(d.ctx_synchronize());
}

static uint64_t mixed(uint64_t hash, const unsigned char *bytes) {
    for (int at = 0; at < BYTES; at++)
        hash = (hash ^ bytes[at]) * 0x100000001b3u;
    return hash;
}

/* A digest of all buffers. */
static uint64_t state(void) {
    unsigned char buffer[BYTES];
    uint64_t hash = 0xcbf29ce484222325u;
    ok(d.ctx_synchronize());
    for (int i = 0; i < 2; i++) {
        ok(to_host(buffer, memory[i], BYTES));
        hash = mixed(hash, buffer);
        ok(to_host(buffer, low[i], BYTES));
        hash = mixed(hash, buffer);
        ok(from_array(buffer, line[i], 0, BYTES));
        hash = mixed(hash, buffer);
        copy_solid(i, buffer, 1);
        hash = mixed(hash, buffer);
        hash = mixed(hash, host[i]);
    }
    return hash;
}

/* Calls one function and prints: name, result, whether memory changed, its digest. */
#define CALL(name, types, ...)                                                                     \
    do {                                                                                           \
        CUresult(*function) types;                                                                 \
        *(void **)&function = dlsym(library, #name);                                               \
        if (!function) {                                                                           \
            printf(#name " absent\n");                                                             \
            break;                                                                                 \
        }                                                                                          \
        reset();                                                                                   \
        uint64_t before = state();                                                                 \
        CUresult result = function(__VA_ARGS__);                                                   \
        uint64_t after = state();                                                                  \
        printf(#name " %d %s %016lx\n", result, after == before ? "same" : "changed", after);      \
    } while (0)
#define BOTH(name, suffix, types, ...)                                                             \
    CALL(name, types, __VA_ARGS__);                                                                \
    CALL(name##suffix, types, __VA_ARGS__)

#define PART (BYTES / 2)

static void linear(void) {
    BOTH(cuMemcpy, _ptds, (CUdeviceptr, CUdeviceptr, size_t), memory[0], (CUdeviceptr)host[0], PART);
    BOTH(cuMemcpyAsync, _ptsz, (CUdeviceptr, CUdeviceptr, size_t, CUstream), memory[0], memory[1], PART, stream);
    BOTH(cuMemcpyHtoD_v2, _ptds, (CUdeviceptr, const void *, size_t), memory[0], host[0], PART);
    BOTH(cuMemcpyHtoDAsync_v2, _ptsz, (CUdeviceptr, const void *, size_t, CUstream), memory[1], host[1], PART, stream);
    BOTH(cuMemcpyDtoH_v2, _ptds, (void *, CUdeviceptr, size_t), host[0], memory[0], PART);
    BOTH(cuMemcpyDtoHAsync_v2, _ptsz, (void *, CUdeviceptr, size_t, CUstream), host[1], memory[1], PART, stream);
    BOTH(cuMemcpyDtoD_v2, _ptds, (CUdeviceptr, CUdeviceptr, size_t), memory[0], memory[1], PART);
    BOTH(cuMemcpyDtoDAsync_v2, _ptsz, (CUdeviceptr, CUdeviceptr, size_t, CUstream), memory[1], memory[0], PART, stream);
    BOTH(cuMemcpyPeer, _ptds, (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t), memory[0], context, memory[1], context, PART);
    BOTH(cuMemcpyPeerAsync, _ptsz, (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream), memory[1], context, memory[0], context, PART, stream);
    BOTH(cuMemcpyDtoA_v2, _ptds, (CUarray, size_t, CUdeviceptr, size_t), line[0], 8, memory[0], PART);
    BOTH(cuMemcpyAtoD_v2, _ptds, (CUdeviceptr, CUarray, size_t, size_t), memory[0], line[0], 8, PART);
    BOTH(cuMemcpyHtoA_v2, _ptds, (CUarray, size_t, const void *, size_t), line[0], 8, host[0], PART);
    BOTH(cuMemcpyHtoAAsync_v2, _ptsz, (CUarray, size_t, const void *, size_t, CUstream), line[1], 8, host[1], PART, stream);
    BOTH(cuMemcpyAtoH_v2, _ptds, (void *, CUarray, size_t, size_t), host[0], line[0], 8, PART);
    BOTH(cuMemcpyAtoHAsync_v2, _ptsz, (void *, CUarray, size_t, size_t, CUstream), host[1], line[1], 8, PART, stream);
    BOTH(cuMemcpyAtoA_v2, _ptds, (CUarray, size_t, CUarray, size_t, size_t), line[0], 8, line[1], 16, PART);
}

static void linear_v1(void) {
    CALL(cuMemcpyHtoD, (CUdeviceptr_v1, const void *, unsigned), low[0], host[0], PART);
    CALL(cuMemcpyHtoDAsync, (CUdeviceptr_v1, const void *, unsigned, CUstream), low[1], host[1], PART, stream);
    CALL(cuMemcpyDtoH, (void *, CUdeviceptr_v1, unsigned), host[0], low[0], PART);
    CALL(cuMemcpyDtoHAsync, (void *, CUdeviceptr_v1, unsigned, CUstream), host[1], low[1], PART, stream);
    CALL(cuMemcpyDtoD, (CUdeviceptr_v1, CUdeviceptr_v1, unsigned), low[0], low[1], PART);
    CALL(cuMemcpyDtoDAsync, (CUdeviceptr_v1, CUdeviceptr_v1, unsigned, CUstream), low[1], low[0], PART, stream);
    CALL(cuMemcpyDtoA, (CUarray, unsigned, CUdeviceptr_v1, unsigned), line[0], 8, low[0], PART);
    CALL(cuMemcpyAtoD, (CUdeviceptr_v1, CUarray, unsigned, unsigned), low[0], line[0], 8, PART);
    CALL(cuMemcpyHtoA, (CUarray, unsigned, const void *, unsigned), line[0], 8, host[0], PART);
    CALL(cuMemcpyHtoAAsync, (CUarray, unsigned, const void *, unsigned, CUstream), line[1], 8, host[1], PART, stream);
    CALL(cuMemcpyAtoH, (void *, CUarray, unsigned, unsigned), host[0], line[0], 8, PART);
    CALL(cuMemcpyAtoHAsync, (void *, CUarray, unsigned, unsigned, CUstream), host[1], line[1], 8, PART, stream);
    CALL(cuMemcpyAtoA, (CUarray, unsigned, CUarray, unsigned, unsigned), line[0], 8, line[1], 16, PART);
}

static void shaped(void) {
    side_2d rows_on_host = {8, 1, HOST, host[0], 0, NULL, WIDTH};
    side_2d rows_on_device = {4, 2, DEVICE, NULL, memory[0], NULL, WIDTH};
    copy_2d rows = {rows_on_host, rows_on_device, 40, 9};
    BOTH(cuMemcpy2D_v2, _ptds, (const copy_2d *), &rows);
    BOTH(cuMemcpy2DUnaligned_v2, _ptds, (const copy_2d *), &rows);
    BOTH(cuMemcpy2DAsync_v2, _ptsz, (const copy_2d *, CUstream), &rows, stream);
    side_3d on_device = {4, 2, 1, 0, DEVICE, NULL, memory[1], NULL, NULL, WIDTH, HEIGHT};
    side_3d in_array = {8, 1, 1, 0, ARRAY, NULL, 0, solid[0], NULL, 0, 0};
    copy_3d layers = {on_device, in_array, 40, 9, 3};
    BOTH(cuMemcpy3D_v2, _ptds, (const copy_3d *), &layers);
    BOTH(cuMemcpy3DAsync_v2, _ptsz, (const copy_3d *, CUstream), &layers, stream);
    copy_3d peers = {in_array, on_device, 40, 9, 3};
    peers.to.context = context;
    BOTH(cuMemcpy3DPeer, _ptds, (const copy_3d *), &peers);
    BOTH(cuMemcpy3DPeerAsync, _ptsz, (const copy_3d *, CUstream), &peers, stream);
    /* Operations that are no work for the device. */
    copy_2d within_host = {rows_on_host, {4, 2, HOST, host[1], 0, NULL, WIDTH}, 40, 9};
    CALL(cuMemcpy2D_v2, (const copy_2d *), &within_host);
    CALL(cuMemcpy2DAsync_v2, (const copy_2d *, CUstream), &within_host, stream);

    copy_2d_v1 old_rows = {8, 1, HOST, host[0], 0, NULL, WIDTH, 4, 2, DEVICE, NULL, low[0], NULL, WIDTH, 40, 9};
    CALL(cuMemcpy2D, (const copy_2d_v1 *), &old_rows);
    CALL(cuMemcpy2DUnaligned, (const copy_2d_v1 *), &old_rows);
    CALL(cuMemcpy2DAsync, (const copy_2d_v1 *, CUstream), &old_rows, stream);
    side_3d_v1 old_on_device = {4, 2, 1, 0, DEVICE, NULL, low[1], NULL, NULL, WIDTH, HEIGHT};
    side_3d_v1 old_in_array = {8, 1, 1, 0, ARRAY, NULL, 0, solid[1], NULL, 0, 0};
    copy_3d_v1 old_layers = {old_in_array, old_on_device, 40, 9, 3};
    CALL(cuMemcpy3D, (const copy_3d_v1 *), &old_layers);
    CALL(cuMemcpy3DAsync, (const copy_3d_v1 *, CUstream), &old_layers, stream);
}

static void batched(void) {
    CUdeviceptr to[3] = {memory[0], memory[0] + 512, memory[1]};
    CUdeviceptr from[3] = {(CUdeviceptr)host[0], memory[1] + 64, memory[1] + 2048};
    size_t sizes[3] = {128, 256, 512}, firsts[1] = {0}, failed = 7;
    attributes how = {1, {0, 0}, {0, 0}, 0};
    BOTH(cuMemcpyBatchAsync, _ptsz, (CUdeviceptr *, CUdeviceptr *, size_t *, size_t, attributes *, size_t *, size_t, size_t *, CUstream),
         to, from, sizes, 3, &how, firsts, 1, &failed, stream);
    BOTH(cuMemcpyBatchAsync_v2, _ptsz, (CUdeviceptr *, CUdeviceptr *, size_t *, size_t, attributes *, size_t *, size_t, CUstream),
         to, from, sizes, 3, &how, firsts, 1, stream);
    batched_3d list[2] = {
        {.from = {.kind = 1, .body.pointer = {memory[0], WIDTH, HEIGHT, {0, 0}}},
         .to = {.kind = 2, .body.array = {solid[0], 3, 2, 1}}, .width = 40, .height = 9, .depth = 3, .order = 1},
        {.from = {.kind = 1, .body.pointer = {(CUdeviceptr)host[1], 0, 0, {0, 0}}},
         .to = {.kind = 1, .body.pointer = {memory[1], WIDTH, HEIGHT, {0, 0}}}, .width = 40, .height = 9, .depth = 3, .order = 2},
    };
    BOTH(cuMemcpyWithAttributesAsync, _ptsz, (CUdeviceptr, CUdeviceptr, size_t, attributes *, CUstream), to[0], from[0], sizes[0], &how, stream);
    BOTH(cuMemcpy3DWithAttributesAsync, _ptsz, (batched_3d *, flags_t, CUstream), list, 0, stream);
    BOTH(cuMemcpy3DBatchAsync, _ptsz, (size_t, batched_3d *, size_t *, flags_t, CUstream), 2, list, &failed, 0, stream);
    BOTH(cuMemcpy3DBatchAsync_v2, _ptsz, (size_t, batched_3d *, flags_t, CUstream), 2, list, 0, stream);
    /* The second one exceeds its array: reported, and nothing is copied. */
    list[1].to.kind = 2;
    list[1].to.body.array.array = solid[1];
    list[1].to.body.array.z = 2;
    CALL(cuMemcpy3DBatchAsync, (size_t, batched_3d *, size_t *, flags_t, CUstream), 2, list, &failed, 0, stream);
    printf("failed=%zu\n", failed);

    location on_device = {1, 0};
    size_t all = BYTES;
    BOTH(cuMemPrefetchAsync, _ptsz, (CUdeviceptr, size_t, CUdevice, CUstream), managed, BYTES, 0, stream);
    BOTH(cuMemPrefetchAsync_v2, _ptsz, (CUdeviceptr, size_t, location, unsigned, CUstream), managed, BYTES, on_device, 0, stream);
    BOTH(cuMemPrefetchBatchAsync, _ptsz, (CUdeviceptr *, size_t *, size_t, location *, size_t *, size_t, flags_t, CUstream),
         &managed, &all, 1, &on_device, firsts, 1, 0, stream);
    BOTH(cuMemDiscardAndPrefetchBatchAsync, _ptsz, (CUdeviceptr *, size_t *, size_t, location *, size_t *, size_t, flags_t, CUstream),
         &managed, &all, 1, &on_device, firsts, 1, 0, stream);
    BOTH(cuMemBatchDecompressAsync, _ptsz, (void *, size_t, unsigned, size_t *, CUstream), NULL, 0, 0, &failed, stream);
}

#define FILLS(bits, type, value)                                                                                                       \
    BOTH(cuMemsetD##bits##_v2, _ptds, (CUdeviceptr, type, size_t), memory[0] + 8, value, 100);                                         \
    BOTH(cuMemsetD##bits##Async, _ptsz, (CUdeviceptr, type, size_t, CUstream), memory[1] + 8, value, 100, stream);                     \
    BOTH(cuMemsetD2D##bits##_v2, _ptds, (CUdeviceptr, size_t, type, size_t, size_t), memory[0] + 4, WIDTH, value, 9, 5);               \
    BOTH(cuMemsetD2D##bits##Async, _ptsz, (CUdeviceptr, size_t, type, size_t, size_t, CUstream), memory[1], WIDTH, value, 9, 5, stream); \
    CALL(cuMemsetD##bits, (CUdeviceptr_v1, type, unsigned), low[0] + 8, value, 100);                                                   \
    CALL(cuMemsetD2D##bits, (CUdeviceptr_v1, unsigned, type, unsigned, unsigned), low[1] + 4, WIDTH, value, 9, 5)

static void fills(void) {
    FILLS(8, unsigned char, 0xa5);
    FILLS(16, unsigned short, 0xa55a);
    FILLS(32, unsigned, 0xdeadbeef);
    /* Empty and wrong calls: as without a limit. */
    CALL(cuMemsetD8_v2, (CUdeviceptr, unsigned char, size_t), memory[0], 1, 0);
    CALL(cuMemsetD32_v2, (CUdeviceptr, unsigned, size_t), memory[0] + 2, 1, 1);
    CALL(cuMemcpyDtoD_v2, (CUdeviceptr, CUdeviceptr, size_t), memory[0], 16, PART);
    CALL(cuMemcpy2D_v2, (const copy_2d *), NULL);
    CALL(cuMemcpy3DAsync_v2, (const copy_3d *, CUstream), NULL, stream);
}

static volatile int stop;
static CUresult (*within)(CUdeviceptr, CUdeviceptr, size_t, CUstream);
static CUresult (*fill)(CUdeviceptr, unsigned char, size_t, CUstream);

static void *copy_until_stopped(void *unused) {
    CUdeviceptr large[2];
    CUstream other;
    (void)unused;
    ok(d.ctx_set(context));
    for (int i = 0; i < 2; i++)
        ok(d.mem_alloc(&large[i], MIB));
    ok(d.stream_create(&other, 1));
    *(int *)&stop = 0;
    while (!stop) {
        if (within(large[0], large[1], MIB, other) != 0)
            return "a copy failed";
        /* Waiting for the stream would be a wrong call. */
        usleep(600);
    }
    return NULL;
}

/* Captures in GLOBAL mode, beside a thread that copies and has to wait; then launches the graph's copies. */
static void capture(double seconds) {
    CUresult (*get_nodes)(CUgraph, void *, size_t *), (*launch)(CUgraphExec, CUstream);
    CUresult (*instantiate)(CUgraphExec *, CUgraph, flags_t), (*exec_destroy)(CUgraphExec), (*graph_destroy)(CUgraph);
    CUresult (*copy_layers_async)(const copy_3d *, CUstream);
    *(void **)&get_nodes = need(library, "cuGraphGetNodes");
    *(void **)&launch = need(library, "cuGraphLaunch");
    *(void **)&instantiate = need(library, "cuGraphInstantiateWithFlags");
    *(void **)&exec_destroy = need(library, "cuGraphExecDestroy");
    *(void **)&graph_destroy = need(library, "cuGraphDestroy");
    *(void **)&copy_layers_async = need(library, "cuMemcpy3DAsync_v2");
    *(void **)&within = need(library, "cuMemcpyDtoDAsync_v2");
    *(void **)&fill = need(library, "cuMemsetD8Async");
    side_3d in_array = {.kind = ARRAY, .array = solid[0]};
    side_3d on_device = {.kind = DEVICE, .device = memory[1], .pitch = WIDTH, .height = HEIGHT};
    copy_3d layers = {on_device, in_array, WIDTH, HEIGHT, DEPTH};
    pthread_t other;
    int captures = 0, wrong = 0;
    uint64_t expected = 0;
    stop = -1;
    pthread_create(&other, NULL, copy_until_stopped, NULL);
    while (stop)
        usleep(1000);
    double start = now();
    while (now() - start < seconds) {
        CUgraph graph = NULL;
        CUgraphExec exec;
        size_t nodes = 0;
        reset();
        uint64_t before = state();
        ok(d.begin_capture(stream, 0));
        for (int i = 0; i < 7; i++) {
            ok(within(memory[1], memory[0], PART, stream));
            ok(fill(memory[1], (unsigned char)i, 64, stream));
            ok(copy_layers_async(&layers, stream));
            usleep(1000);
        }
        ok(d.end_capture(stream, &graph));
        ok(get_nodes(graph, NULL, &nodes));
        wrong += nodes != 21 || state() != before;
        ok(instantiate(&exec, graph, 0));
        ok(launch(exec, stream));
        uint64_t after = state();
        if (!expected)
            expected = after;
        wrong += after == before || after != expected;
        ok(exec_destroy(exec));
        ok(graph_destroy(graph));
        captures++;
    }
    stop = 1;
    void *complaint;
    pthread_join(other, &complaint);
    printf("captures=%d wrong=%d failed=%d\n", captures, wrong, complaint != NULL);
}

static int end_of_capture(void) {
    CUgraph graph = NULL;
    return d.end_capture(stream, &graph);
}

/* Calls that a capture in GLOBAL mode forbids have the same result and the same consequences. */
static void forbidden(void) {
    CUresult (*fill_now)(CUdeviceptr, unsigned char, size_t), (*anywhere)(CUdeviceptr, CUdeviceptr, size_t);
    CUresult (*own_fill)(CUdeviceptr, unsigned char, size_t);
    *(void **)&fill_now = need(library, "cuMemsetD8_v2");
    *(void **)&own_fill = need(library, "cuMemsetD8_v2_ptds");
    *(void **)&anywhere = need(library, "cuMemcpy");
    /* So that the gate closes now and then. */
    for (int i = 0; i < 20; i++) {
        ok(d.begin_capture(stream, 0));
        int result = to_device(memory[0], host[0], BYTES);
        printf("to_device=%d end=%d\n", result, end_of_capture());
        ok(d.begin_capture(stream, 0));
        result = anywhere(memory[0], memory[1], BYTES);
        printf("anywhere=%d end=%d\n", result, end_of_capture());
        ok(d.begin_capture(stream, 0));
        result = fill_now(memory[0], 1, BYTES);
        printf("fill=%d end=%d\n", result, end_of_capture());
        ok(d.begin_capture(stream, 0));
        result = own_fill(memory[0], 1, BYTES);
        printf("own_fill=%d end=%d\n", result, end_of_capture());
        usleep(2000);
    }
}

/* Source and destination of "anywhere". */
static const char *const places[] = {"pageable", "pinned", "managed", "device"};

static CUdeviceptr new_memory(const char *place) {
    CUresult (*alloc_managed)(CUdeviceptr *, size_t, unsigned), (*alloc_host)(void **, size_t);
    CUdeviceptr address = 0;
    void *pinned = NULL;
    *(void **)&alloc_managed = need(library, "cuMemAllocManaged");
    *(void **)&alloc_host = need(library, "cuMemAllocHost_v2");
    if (!strcmp(place, places[0])) {
        address = (CUdeviceptr)calloc(1, MIB);
    } else if (!strcmp(place, places[1])) {
        ok(alloc_host(&pinned, MIB));
        address = (CUdeviceptr)pinned;
    } else if (!strcmp(place, places[2])) {
        ok(alloc_managed(&address, MIB, 1));
    } else if (!strcmp(place, places[3])) {
        ok(d.mem_alloc(&address, MIB));
    } else {
        exit(64);
    }
    return address;
}

/* Copies a mebibyte at a time. */
static void anywhere(const char *how, CUdeviceptr from, CUdeviceptr to, double seconds) {
    CUresult (*copy)(CUdeviceptr, CUdeviceptr, size_t), (*async)(CUdeviceptr, CUdeviceptr, size_t, CUstream);
    CUresult (*copy_rows)(const copy_2d *);
    *(void **)&copy = need(library, "cuMemcpy");
    *(void **)&async = need(library, "cuMemcpyAsync");
    *(void **)&copy_rows = need(library, "cuMemcpy2D_v2");
    copy_2d rows = {{.kind = UNIFIED, .device = from, .pitch = 1024}, {.kind = UNIFIED, .device = to, .pitch = 1024}, 1024, 1024};
    copy_2d half = {rows.from, {.kind = HOST, .host = (void *)to, .pitch = 1024}, 1024, 1024};
    uint64_t copies = 0;
    double start = now();
    while (now() - start < seconds) {
        if (!strcmp(how, "copy"))
            ok(copy(to, from, MIB));
        else if (!strcmp(how, "async")) {
            ok(async(to, from, MIB, stream));
            ok(d.stream_synchronize(stream));
        } else if (!strcmp(how, "rows"))
            ok(copy_rows(&rows));
        else
            ok(copy_rows(&half));
        copies++;
    }
    printf("copies=%lu\n", copies);
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    library = open_driver(RTLD_NOW);
    d = driver_of(library);
    context = start_driver(&d);
    prepare();
    if (!strcmp(how, "every")) {
        linear();
        linear_v1();
        shaped();
        batched();
        fills();
    } else if (!strcmp(how, "capture")) {
        capture(argc > 2 ? atof(argv[2]) : 1);
    } else if (!strcmp(how, "forbidden")) {
        forbidden();
    } else if (!strcmp(how, "anywhere") && argc == 6) {
        CUdeviceptr from = new_memory(argv[3]);
        anywhere(argv[2], from, new_memory(argv[4]), atof(argv[5]));
    } else {
        return 64;
    }
    return 0;
}
