/* Launches from many threads at once, each into a stream of its own: threads THREADS SECONDS US. Prints how many
 * kernels were done. With a further argument "short": THREADS threads in total, eight at a time, with one launch
 * each; prints how long that took, and how much memory it left behind. */
#include "driver.h"
#include <pthread.h>

static struct driver d;
static CUcontext context;
static CUfunction kernel;
static uint64_t us;
static double until;
static unsigned long done;

static void *work(void *unused) {
    CUstream stream;
    (void)unused;
    ok(d.ctx_set(context));
    ok(d.stream_create(&stream, 1));
    unsigned long count = 0;
    while (now() < until) {
        ok(spin(&d, kernel, us, stream));
        count++;
    }
    ok(d.stream_synchronize(stream));
    __sync_fetch_and_add(&done, count);
    return NULL;
}

static void *launch_once(void *unused) {
    CUstream stream;
    (void)unused;
    ok(d.ctx_set(context));
    ok(d.stream_create(&stream, 1));
    ok(spin(&d, kernel, us, stream));
    ok(d.stream_synchronize(stream));
    ok(d.stream_destroy(stream));
    return NULL;
}

static long resident_kib(void) {
    long kib = 0, pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%*d %ld", &pages) == 1)
        kib = pages * 4;
    if (file)
        fclose(file);
    return kib;
}

static void short_lived(int threads) {
    enum { AT_ONCE = 8 };
    pthread_t all[AT_ONCE];
    long before = 0;
    double start = now();
    for (int i = 0; i < threads; i += AT_ONCE) {
        if (i == 800)
            before = resident_kib();
        for (int k = 0; k < AT_ONCE; k++)
            if (pthread_create(&all[k], NULL, launch_once, NULL))
                exit(3);
        for (int k = 0; k < AT_ONCE; k++)
            pthread_join(all[k], NULL);
    }
    printf("ms=%.0f kib=%ld\n", (now() - start) * 1e3, resident_kib() - before);
}

int main(int argc, char **argv) {
    if (argc < 4)
        return 2;
    int threads = atoi(argv[1]);
    us = (uint64_t)atoi(argv[3]);
    d = driver_of(open_driver(RTLD_NOW));
    context = start_driver(&d);
    kernel = spin_kernel(&d);
    if (argc > 4) {
        short_lived(threads);
        return 0;
    }
    double start = now();
    until = start + atof(argv[2]);
    pthread_t *all = calloc((size_t)threads, sizeof *all);
    for (int i = 0; i < threads; i++)
        if (pthread_create(&all[i], NULL, work, NULL))
            return 3;
    for (int i = 0; i < threads; i++)
        pthread_join(all[i], NULL);
    printf("kernels=%lu permille=%.0f\n", done, done * us / 1e3 / (now() - start));
    return 0;
}
