/* Launches from many threads at once, each into a stream of its own: threads THREADS SECONDS US.
 * Says how many kernels were done. */
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

int main(int argc, char **argv) {
    if (argc < 4)
        return 2;
    int threads = atoi(argv[1]);
    us = (uint64_t)atoi(argv[3]);
    d = driver_of(open_driver(RTLD_NOW));
    context = start_driver(&d);
    kernel = spin_kernel(&d);
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
