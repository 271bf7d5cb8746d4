/* Allocates and frees at random, always close to its limit, for MS milliseconds in THREADS threads; on a slow
 * machine for longer, until it has met its limit a few times:
 *   full linear|pool|expand|graph MS THREADS
 *   full code MS THREADS       and meanwhile uses kernels whose code is large
 * Prints how much it had at most, how often it was refused, and how often a refused allocation fitted after a third
 * of everything was freed. Memory of pools and graphs is freed in stream order. */
#include "any.h"
#include <pthread.h>

#define HELD 4096
#define IMAGES 48
#define ENOUGH 5

static struct driver d;
static CUcontext context;
static int (*alloc_async)(CUdeviceptr *, size_t, CUstream), (*free_async)(CUdeviceptr, CUstream);
static const char *kind;
static double until, at_most;
static CUmodule images[IMAGES];
static size_t refused, fitted, used_images;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct part {
    CUdeviceptr at[HELD];
    size_t bytes[HELD];
    int count;
    unsigned seed;
    CUstream stream;
};

static unsigned any(struct part *part, unsigned below) { return (unsigned)rand_r(&part->seed) % below; }

/* The memory that a graph has allocated outlives it. */
static CUresult by_graph(struct part *part, CUdeviceptr *at, size_t bytes) {
    struct {
        struct props pool;
        void *access;
        size_t access_count, bytes;
        CUdeviceptr address;
    } params = {.pool = on_device(0), .bytes = bytes};
    CUgraph graph;
    void *node, *exec;
    must("cuGraphCreate", &graph, 0);
    must("cuGraphAddMemAllocNode", &node, graph, NULL, (size_t)0, &params);
    *at = params.address;
    CUresult result = call("cuGraphInstantiateWithFlags", &exec, graph, 0ull);
    if (result == 0) {
        result = call("cuGraphLaunch", exec, part->stream);
        must("cuGraphExecDestroy", exec);
    }
    must("cuGraphDestroy", graph);
    return result;
}

static int in_order(void) { return !strcmp(kind, "pool") || !strcmp(kind, "graph"); }

static CUresult take(struct part *part, CUdeviceptr *at, size_t bytes) {
    if (!strcmp(kind, "pool"))
        return alloc_async(at, bytes, part->stream);
    if (!strcmp(kind, "graph"))
        return by_graph(part, at, bytes);
    if (strcmp(kind, "expand"))
        return d.mem_alloc(at, bytes);
    struct props props = on_device(0);
    return call("cuMemCreate", at, bytes, &props, 0ull);
}

static void drop(struct part *part, int count) {
    while (count-- > 0 && part->count > 0) {
        int number = (int)any(part, (unsigned)part->count);
        CUdeviceptr at = part->at[number];
        part->at[number] = part->at[--part->count];
        if (in_order())
            ok(free_async(at, part->stream));
        else if (!strcmp(kind, "expand"))
            must("cuMemRelease", at);
        else
            ok(d.mem_free(at));
    }
}

/* An image of so many bytes. */
static void load(CUmodule *module, size_t bytes) {
    static const char begin[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k() { ret; }\n//";
    char *image = malloc(bytes + 1);
    memset(image, 'x', bytes);
    memcpy(image, begin, sizeof begin - 1);
    image[bytes] = 0;
    ok(d.module_load(module, image));
    free(image);
}

static int goes_on(void) {
    double at = now();
    if (at < until || at > at_most)
        return at < until;
    pthread_mutex_lock(&lock);
    int more = refused < ENOUGH || (!strcmp(kind, "code") && used_images < IMAGES);
    pthread_mutex_unlock(&lock);
    return more;
}

static void *churn(void *argument) {
    struct part *part = argument;
    ok(d.ctx_set(context));
    while (goes_on()) {
        unsigned chance = any(part, 100);
        if (chance < 58 && part->count < HELD) {
            size_t bytes = any(part, 3) ? (1 + any(part, 24)) * MIB / 2 : (1 + any(part, 96)) * MIB;
            if (!strcmp(kind, "expand"))
                bytes = (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
            CUdeviceptr at;
            CUresult result = take(part, &at, bytes);
            if (result == OUT_OF_MEMORY) {
                drop(part, part->count / 3 + 1);
                ok(d.stream_synchronize(part->stream));
                CUresult again = take(part, &at, bytes);
                pthread_mutex_lock(&lock);
                refused++;
                fitted += again == 0;
                pthread_mutex_unlock(&lock);
                if (again)
                    continue;
            } else {
                ok(result);
            }
            part->at[part->count++] = at;
        } else if (chance < 96) {
            drop(part, 1);
        } else if (!strcmp(kind, "code")) {
            CUfunction function;
            pthread_mutex_lock(&lock);
            if (used_images < IMAGES)
                ok(d.module_function(&function, images[used_images++], "k"));
            pthread_mutex_unlock(&lock);
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    kind = argv[1];
    int threads = atoi(argv[3]);
    library = open_driver(RTLD_NOW);
    d = driver_of(library);
    context = start_driver(&d);
    *(void **)&alloc_async = need(library, "cuMemAllocAsync");
    *(void **)&free_async = need(library, "cuMemFreeAsync");
    if (!strcmp(kind, "code"))
        for (int i = 0; i < IMAGES; i++)
            load(&images[i], (1 + (size_t)i % 3) * MIB);
    void *pool;
    uint64_t all = UINT64_MAX;
    must("cuDeviceGetDefaultMemPool", &pool, 0);
    must("cuMemPoolSetAttribute", pool, 4, &all);
    /* The session's other processes should have their contexts as well. */
    usleep(500000);
    until = now() + atoi(argv[2]) / 1000.0;
    at_most = until + 30;
    struct part parts[8] = {0};
    pthread_t running[8];
    for (int i = 0; i < threads; i++) {
        parts[i].seed = (unsigned)i + 17;
        ok(d.stream_create(&parts[i].stream, 1));
        pthread_create(&running[i], NULL, churn, &parts[i]);
    }
    for (int i = 0; i < threads; i++)
        pthread_join(running[i], NULL);
    printf("refused=%zu fitted=%zu images=%zu\n", refused, fitted, used_images);
    return 0;
}
