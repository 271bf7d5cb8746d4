/* Threads that are cancelled before calls and within them. The program continues, and prints how often its threads
 * ended as requested. */
#include "any.h"
#include <pthread.h>

static struct driver d;
static CUcontext context;
static CUfunction kernel;
static CUdeviceptr data;

static void launches(void) {
    for (int round = 0; round < 50; round++)
        ok(spin(&d, kernel, 2000, NULL));
}

static void allocates(void) {
    CUdeviceptr memory;
    for (int round = 0; round < 20; round++) {
        CUresult result = d.mem_alloc(&memory, TOO_MUCH);
        if (result == 0)
            ok(d.mem_free(memory));
        else
            ok_(result != OUT_OF_MEMORY, "cuMemAlloc");
        ok(d.mem_alloc(&memory, LITTLE));
        ok(d.mem_free(memory));
    }
}

static void copies(void) {
    static char host[4096];
    for (int round = 0; round < 20; round++) {
        ok(spin(&d, kernel, 2000, NULL));
        must("cuMemcpyDtoH_v2", host, data, sizeof host);
    }
}

static void waits(void) {
    for (int round = 0; round < 10; round++) {
        ok(spin(&d, kernel, 10000, NULL));
        ok(d.stream_synchronize(NULL));
        ok(d.ctx_synchronize());
    }
}

static void contexts(void) {
    CUcontext other;
    ok(d.ctx_create(&other, 0, 0));
    ok(d.ctx_destroy(other));
}

static void (*const KINDS[])(void) = {launches, copies, waits, allocates, contexts};
#define COUNT (sizeof KINDS / sizeof *KINDS)
#define ROUNDS 21

static volatile int ready;

/* What a thread does, and whether it is cancelled before that. */
struct plan {
    void (*calls)(void);
    int before;
};

static void *thread(void *given) {
    const struct plan *plan = given;
    int old;
    if (plan->before)
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
    ok(d.ctx_set(context));
    ready = 1;
    if (plan->before) {
        while (ready == 1)
            usleep(100);
        pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &old);
    }
    do {
        plan->calls();
        pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &old);
        if (old != PTHREAD_CANCEL_ENABLE)
            exit(94);
        pthread_testcancel();
    } while (!plan->before);
    return NULL;
}

static int is_cancelled(const struct plan *plan, useconds_t after) {
    pthread_t id;
    void *result = NULL;
    ready = 0;
    if (pthread_create(&id, NULL, thread, (void *)plan))
        exit(93);
    while (!ready)
        usleep(100);
    usleep(after);
    pthread_cancel(id);
    ready = 2;
    if (pthread_join(id, &result))
        exit(92);
    return result == PTHREAD_CANCELED;
}

int main(void) {
    struct plan plan;
    int tried = 0, cancelled = 0;
    d = driver_of(library = open_driver(RTLD_NOW));
    context = start_driver(&d);
    kernel = spin_kernel(&d);
    ok(d.mem_alloc(&data, MIB));
    for (size_t n = 0; n < COUNT; n++) {
        plan.calls = KINDS[n];
        plan.before = 1;
        for (int round = 0; round < ROUNDS; round++, tried++) {
            cancelled += is_cancelled(&plan, round * 700);
            plan.before = 0;
        }
        ok(d.ctx_set(context));
        KINDS[n]();
    }
    ok(d.ctx_synchronize());
    /* The C library sends each thread a signal for this, and waits for all answers. */
    if (setuid(getuid()))
        return 91;
    printf("tried=%d cancelled=%d\n", tried, cancelled);
    return 0;
}
