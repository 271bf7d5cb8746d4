/* Allocates and frees over and over, with LEFT_MIB left of the limit:
 *   near WHAT LEFT_MIB MS THREADS [PLACED_MIB]
 * WHAT: "linear", "pool", "physical"; or "mixed", linear memory of random sizes and lifetimes.
 * Prints how often in MS milliseconds, the mean time of an allocation and of a free, and how often NVML and
 * cuMemGetInfo were queried meanwhile (SLUICE_FAKE_ASKED names the file of the queries).
 * PLACED_MIB: in the middle of this the driver takes that much by itself, which leaves no room. Prints after how
 * many microseconds an allocation was refused. */
#include "any.h"
#include <pthread.h>
#include <sys/stat.h>

#define HELD 8
#define CHUNK (4 * MIB)

static struct driver d;
static CUcontext context;
static const char *what;
static double until;
static CUfunction kernel;
/* When the driver takes memory by itself, and when that was noticed. */
static volatile double placed, noticed;
static int (*alloc_async)(CUdeviceptr *, size_t, CUstream), (*free_async)(CUdeviceptr, CUstream);

struct sum {
    unsigned seed;
    size_t rounds;
    double allocs, frees;
    CUstream stream;
    CUdeviceptr range;
};

/* How often each kind of query was made. */
static void asked(size_t *lists, size_t *infos) {
    *lists = *infos = 0;
    const char *name = getenv("SLUICE_FAKE_ASKED");
    FILE *file = name ? fopen(name, "r") : NULL;
    if (!file)
        return;
    for (int c; (c = fgetc(file)) != EOF;)
        *(c == 'l' ? lists : infos) += 1;
    fclose(file);
}

static CUresult take(struct sum *sum, CUdeviceptr *at, size_t bytes) {
    if (!strcmp(what, "pool"))
        return alloc_async(at, bytes, sum->stream);
    if (strcmp(what, "physical"))
        return d.mem_alloc(at, bytes);
    struct props props = on_device(0);
    struct {
        int type, id, flags;
    } access = {.type = 1, .flags = 3};
    CUresult result = call("cuMemCreate", at, bytes, &props, 0ull);
    if (result == 0) {
        must("cuMemMap", sum->range, bytes, (size_t)0, *at, 0ull);
        must("cuMemSetAccess", sum->range, bytes, &access, (size_t)1);
    }
    return result;
}

static void drop(struct sum *sum, CUdeviceptr at, size_t bytes) {
    if (!strcmp(what, "pool")) {
        ok(free_async(at, sum->stream));
        /* The pool releases everything, and grows again in the next round. */
        ok(d.stream_synchronize(sum->stream));
    } else if (strcmp(what, "physical")) {
        ok(d.mem_free(at));
    } else {
        must("cuMemUnmap", sum->range, bytes);
        must("cuMemRelease", at);
    }
}

static void *churn(void *argument) {
    struct sum *sum = argument;
    int mixed = !strcmp(what, "mixed");
    CUdeviceptr held[HELD] = {0};
    ok(d.ctx_set(context));
    for (size_t round = 0; now() < until; round++) {
        CUdeviceptr *at = &held[mixed ? rand_r(&sum->seed) % HELD : 0];
        size_t bytes = mixed ? (1 + (size_t)rand_r(&sum->seed) % 8) * MIB : CHUNK;
        double begun = now();
        if (!*at) {
            CUresult result = take(sum, at, bytes);
            if (placed && result == OUT_OF_MEMORY) {
                noticed = noticed ? noticed : now();
                break;
            }
            ok(result);
        }
        double allocated = now();
        if (!mixed || round % 2) {
            drop(sum, *at, bytes);
            *at = 0;
        }
        sum->allocs += allocated - begun;
        sum->frees += now() - allocated;
        sum->rounds++;
    }
    for (int i = 0; i < HELD; i++)
        if (held[i])
            drop(sum, held[i], CHUNK);
    return NULL;
}

/* Code is placed when a kernel is first launched, and no call says how much. */
static void *place(void *ms) {
    usleep((useconds_t)(size_t)ms * 1000);
    ok(d.ctx_set(context));
    placed = now();
    ok(d.launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 5)
        return 2;
    what = argv[1];
    library = open_driver(RTLD_NOW);
    d = driver_of(library);
    context = start_driver(&d);
    *(void **)&alloc_async = need(library, "cuMemAllocAsync");
    *(void **)&free_async = need(library, "cuMemFreeAsync");
    struct sum sums[16] = {0}, all = {0};
    pthread_t running[16];
    int threads = atoi(argv[4]);
    for (int i = 0; i < threads; i++) {
        sums[i].seed = (unsigned)i + 11;
        ok(d.stream_create(&sums[i].stream, 1));
        must("cuMemAddressReserve", &sums[i].range, CHUNK, (size_t)0, (CUdeviceptr)0, 0ull);
    }
    if (argc > 5) {
        char image[200];
        void *module;
        sprintf(image, ".version 7.0\n.target sm_70\n.address_size 64\n// placed: %zu\n.visible .entry k() { ret; }\n", (size_t)atoi(argv[5]) * MIB);
        must("cuLibraryLoadData", &module, image, NULL, NULL, 0u, NULL, NULL, 0u);
        must("cuLibraryGetKernel", &kernel, module, "k");
    }
    CUdeviceptr at;
    while (left() > (size_t)atoi(argv[2]) * MIB + CHUNK)
        ok(d.mem_alloc(&at, CHUNK));
    usleep(300000);
    size_t lists, infos, lists_now, infos_now;
    asked(&lists, &infos);
    double begun = now();
    until = begun + atoi(argv[3]) / 1000.0;
    pthread_t placing;
    if (kernel)
        pthread_create(&placing, NULL, place, (void *)(size_t)(atoi(argv[3]) / 2));
    for (int i = 0; i < threads; i++)
        pthread_create(&running[i], NULL, churn, &sums[i]);
    for (int i = 0; i < threads; i++) {
        pthread_join(running[i], NULL);
        all.rounds += sums[i].rounds;
        all.allocs += sums[i].allocs;
        all.frees += sums[i].frees;
    }
    asked(&lists_now, &infos_now);
    if (kernel) {
        pthread_join(placing, NULL);
        if (!noticed) {
            fprintf(stderr, "not noticed after %.0f ms: %zu rounds, %zu and %zu questions, %zu MiB left\n", (now() - placed) * 1e3,
                    all.rounds, lists_now - lists, infos_now - infos, left() / MIB);
            return 3;
        }
        printf("noticed_us=%.0f\n", (noticed - placed) * 1e6);
        return 0;
    }
    printf("rounds=%zu alloc_ns=%.0f free_ns=%.0f lists=%zu infos=%zu\n", all.rounds, all.allocs * 1e9 / (double)all.rounds,
           all.frees * 1e9 / (double)all.rounds, lists_now - lists, infos_now - infos);
    return 0;
}
