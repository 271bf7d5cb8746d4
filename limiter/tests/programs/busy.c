/* Threads that allocate and free without a common pause: busy THREADS MS.
 * Prints how often they do so in MS milliseconds, far from the limit and close to it; and how much was left before
 * code was placed on the device, with the code, and at most after it was unloaded, while they continue. */
#include "any.h"
#include <pthread.h>

static struct driver d;
static CUcontext context;
static volatile int go_on = 1;
static volatile size_t times;

static void *churn(void *number) {
    unsigned seed = (unsigned)(size_t)number + 3;
    ok(d.ctx_set(context));
    while (go_on) {
        CUdeviceptr at;
        ok(d.mem_alloc(&at, (1 + (size_t)rand_r(&seed) % 4) * 2 * MIB));
        usleep(200);
        ok(d.mem_free(at));
        __sync_fetch_and_add(&times, 1);
    }
    return NULL;
}

/* How often they did so in a period. */
static size_t times_in(int ms) {
    usleep(100000);
    size_t before = times;
    double until = now() + ms / 1e3;
    while (now() < until)
        usleep(1000);
    return times - before;
}

/* The most that was left within a period, or until enough was left: allocations vary. */
static size_t most_left(double seconds, size_t enough) {
    size_t most = 0;
    for (double until = now() + seconds; now() < until && most < enough; usleep(1000))
        most = left() / MIB > most ? left() / MIB : most;
    return most;
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    library = open_driver(RTLD_NOW);
    d = driver_of(library);
    context = start_driver(&d);
    /* 24 MiB of code at the first launch, from a small image. */
    static const char image[] = ".version 7.0\n.target sm_70\n.address_size 64\n// placed: 25165824\n.visible .entry k() { ret; }\n";
    CUmodule module;
    CUfunction kernel;
    pthread_t threads[64];
    int count = atoi(argv[1]);
    for (int i = 0; i < count; i++)
        pthread_create(&threads[i], NULL, churn, (void *)(size_t)i);
    size_t far = times_in(atoi(argv[2]));
    CUdeviceptr at;
    while (left() > 72 * MIB)
        ok(d.mem_alloc(&at, 16 * MIB));
    size_t near = times_in(atoi(argv[2]));
    size_t before = most_left(0.3, ~(size_t)0);
    ok(d.module_load(&module, image));
    ok(d.module_function(&kernel, module, "k"));
    ok(d.launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    usleep(1000000);
    size_t with = most_left(0.3, ~(size_t)0);
    must("cuModuleUnload", module);
    size_t after = most_left(6, with + 20);
    go_on = 0;
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    printf("far=%zu near=%zu before=%zu with=%zu after=%zu\n", far, near, before, with, after);
    return 0;
}
