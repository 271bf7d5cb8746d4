/* Steps like those of training: training SECONDS US. One thread launches half of a step's kernels into the default
 * stream, then another one the rest. A second stream prepares the next step, and each step waits for that. Every
 * fourth step is waited for. Prints how many steps a second were done, and the longest of these four. */
#include "driver.h"
#include <pthread.h>
#include <semaphore.h>

enum { HALF = 40, PREPARING = 4, WAITED_FOR = 4 };

static struct driver d;
static CUcontext context;
static CUfunction kernel;
static uint64_t us;
static sem_t forward, backward;
static volatile int ends;

static void *second(void *unused) {
    (void)unused;
    ok(d.ctx_set(context));
    for (;;) {
        sem_wait(&forward);
        if (ends)
            return NULL;
        for (int i = 0; i < HALF; i++)
            ok(spin(&d, kernel, us, NULL));
        sem_post(&backward);
    }
}

int main(int count, char **arguments) {
    if (count < 3)
        return 2;
    void *library = open_driver(RTLD_NOW);
    d = driver_of(library);
    us = strtoul(arguments[2], NULL, 10);
    CUstream prepares;
    void *ready, *used;
    CUresult (*event_create)(void **, unsigned), (*event_record)(void *, CUstream);
    CUresult (*stream_wait)(CUstream, void *, unsigned);
    *(void **)&event_create = need(library, "cuEventCreate");
    *(void **)&event_record = need(library, "cuEventRecord");
    *(void **)&stream_wait = need(library, "cuStreamWaitEvent");
    context = start_driver(&d);
    kernel = spin_kernel(&d);
    ok(d.stream_create(&prepares, 1));
    ok(event_create(&ready, 2));
    ok(event_create(&used, 2));
    pthread_t other;
    if (sem_init(&forward, 0, 0) || sem_init(&backward, 0, 0) ||
        pthread_create(&other, NULL, second, NULL))
        return 3;
    double start = now(), until = start + strtod(arguments[1], NULL), longest = 0, last = start;
    unsigned long steps = 0;
    while (now() < until) {
        for (int i = 0; i < PREPARING; i++)
            ok(spin(&d, kernel, us, prepares));
        ok(event_record(ready, prepares));
        ok(stream_wait(NULL, ready, 0));
        for (int i = 0; i < HALF; i++)
            ok(spin(&d, kernel, us, NULL));
        sem_post(&forward);
        sem_wait(&backward);
        ok(event_record(used, NULL));
        ok(stream_wait(prepares, used, 0));
        if (++steps % WAITED_FOR == 0) {
            ok(d.ctx_synchronize());
            double at = now();
            longest = at - last > longest ? at - last : longest;
            last = at;
        }
    }
    ok(d.ctx_synchronize());
    double took = now() - start;
    ends = 1;
    sem_post(&forward);
    pthread_join(other, NULL);
    printf("{\"rate\": %.2f, \"longest_ms\": %.1f}\n", (double)steps / took, longest * 1e3);
    return 0;
}
