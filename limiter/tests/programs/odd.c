/* Launches that come from where launches usually do not. */
#include "driver.h"
#include <errno.h>
#include <pthread.h>

static struct driver d;
static CUfunction kernel;
static CUcontext context;
/* Every thread's stack has room for this, and for what comes on top. */
static __thread volatile char thread_local_memory[2 << 20];
/* Threads cannot be started any more. */
static volatile int no_threads;

/* The limiter's threads are started by this one, too. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument) {
    static int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "pthread_create");
    if (no_threads) {
        usleep(300000);
        return EAGAIN;
    }
    return next(thread, attributes, body, argument);
}

/* Kernels in a stream of a context that is not the current one. */
static void into_another_context(int device, double seconds) {
    CUstream stream;
    CUcontext other;
    ok(d.stream_create(&stream, 1));
    ok(d.ctx_create(&other, 0, device));
    double start = now();
    int done = 0;
    for (; now() - start < seconds; done++) {
        ok(spin(&d, kernel, 5000, stream));
        ok(d.stream_synchronize(stream));
    }
    printf("permille=%.0f\n", done * 5e-3 / (now() - start) * 1000);
}

/* A green context ends while its work is known, and no other context does. */
static void green_context(double seconds) {
    struct { unsigned char opaque[144]; } resource;
    CUcontext green, as_context, primary;
    void *description;
    CUstream stream, plain;
    void *library = open_driver(RTLD_NOW);
    CUresult (*resource_of)(CUdevice, void *, int);
    CUresult (*describe)(void **, void *, unsigned);
    CUresult (*create)(CUcontext *, void *, CUdevice, unsigned);
    CUresult (*destroy)(CUcontext);
    CUresult (*convert)(CUcontext *, CUcontext);
    CUresult (*create_stream)(CUstream *, CUcontext, unsigned, int);
    CUresult (*retain)(CUcontext *, CUdevice);
    *(void **)&resource_of = need(library, "cuDeviceGetDevResource");
    *(void **)&describe = need(library, "cuDevResourceGenerateDesc");
    *(void **)&create = need(library, "cuGreenCtxCreate");
    *(void **)&destroy = need(library, "cuGreenCtxDestroy");
    *(void **)&convert = need(library, "cuCtxFromGreenCtx");
    *(void **)&create_stream = need(library, "cuGreenCtxStreamCreate");
    *(void **)&retain = need(library, "cuDevicePrimaryCtxRetain");
    ok(d.ctx_destroy(context));
    ok(retain(&primary, 0));
    ok(d.ctx_set(primary));
    kernel = spin_kernel(&d);
    ok(d.stream_create(&plain, 1));
    ok(resource_of(0, &resource, 1));
    ok(describe(&description, &resource, 1));
    double start = now();
    int done = 0;
    while (now() - start < seconds) {
        ok(create(&green, description, 0, 1));
        ok(convert(&as_context, green));
        ok(create_stream(&stream, green, 1, 0));
        for (int i = 0; i < 10; i++, done += 2) {
            ok(spin(&d, kernel, 2000, stream));
            ok(spin(&d, kernel, 2000, plain));
        }
        ok(d.stream_synchronize(stream));
        ok(d.stream_synchronize(plain));
        ok(destroy(green));
        /* Gone with its context or not, by the driver's version. */
        (void)d.stream_destroy(stream);
    }
    printf("permille=%.0f\n", done * 2e-3 / (now() - start) * 1000);
}

/* Work in a stream that waits for the host, after work in the legacy one and before work that the host waits
 * for: whoever puts anything more into the legacy stream ties all of them together. */
static void beside_the_legacy_stream(double seconds) {
    CUresult (*wait_value)(CUstream, CUdeviceptr, uint32_t, unsigned);
    CUresult (*host_alloc)(void **, size_t, unsigned);
    CUresult (*device_pointer)(CUdeviceptr *, void *, unsigned);
    void *library = open_driver(RTLD_NOW), *memory;
    CUdeviceptr word;
    CUstream waits, works;
    *(void **)&wait_value = need(library, "cuStreamWaitValue32_v2");
    *(void **)&host_alloc = need(library, "cuMemHostAlloc");
    *(void **)&device_pointer = need(library, "cuMemHostGetDevicePointer_v2");
    ok(host_alloc(&memory, 4096, 2));
    ok(device_pointer(&word, memory, 0));
    ok(d.stream_create(&waits, 0));
    ok(d.stream_create(&works, 0));
    double start = now();
    uint32_t round = 1;
    for (; now() - start < seconds; round++) {
        for (int i = 0; i < 15; i++)
            ok(spin(&d, kernel, 100, NULL));
        ok(wait_value(waits, word, round, 0));
        usleep(12000);
        ok(spin(&d, kernel, 100, works));
        alarm(10);
        ok(d.stream_synchronize(works));
        alarm(0);
        __atomic_store_n((uint32_t *)memory, round, __ATOMIC_RELEASE);
        ok(d.stream_synchronize(waits));
    }
    printf("rounds=%u\n", round - 1);
}

static void work(void *microseconds) { usleep((useconds_t)(intptr_t)microseconds); }

/* A kernel, then thrice as long a function of the host's, with others queued behind them. */
static void host_work(double seconds) {
    enum { AHEAD = 8 };
    CUresult (*host_function)(CUstream, void (*)(void *), void *);
    CUresult (*create)(void **, unsigned);
    CUresult (*record)(void *, CUstream);
    CUresult (*await)(void *);
    void *library = open_driver(RTLD_NOW), *event[AHEAD];
    CUstream stream;
    *(void **)&host_function = need(library, "cuLaunchHostFunc");
    *(void **)&create = need(library, "cuEventCreate");
    *(void **)&record = need(library, "cuEventRecord");
    *(void **)&await = need(library, "cuEventSynchronize");
    for (int i = 0; i < AHEAD; i++)
        ok(create(&event[i], 2));
    ok(d.stream_create(&stream, 1));
    double start = now();
    int done = 0;
    for (; now() - start < seconds; done++) {
        if (done >= AHEAD)
            ok(await(event[done % AHEAD]));
        ok(spin(&d, kernel, 1000, stream));
        ok(host_function(stream, work, (void *)(intptr_t)3000));
        ok(record(event[done % AHEAD], stream));
    }
    ok(d.ctx_synchronize());
    printf("permille=%.0f\n", done * 1e-3 / (now() - start) * 1000);
}

static pthread_barrier_t begins;

static void *launch_once(void *unused) {
    (void)unused;
    ok(d.ctx_set(context));
    pthread_barrier_wait(&begins);
    return (void *)(intptr_t)spin(&d, kernel, 100, NULL);
}

/* Launches of several threads at once at a gate that nobody can be found to open. */
static void without_threads(void) {
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    int failed = 0;
    pthread_barrier_init(&begins, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, launch_once, NULL);
    no_threads = 1;
    pthread_barrier_wait(&begins);
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        failed += result != NULL;
    }
    printf("failed=%d\n", failed);
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    double seconds = argc > 2 ? atof(argv[2]) : 1;
    thread_local_memory[0] = 1;
    d = driver_of(open_driver(RTLD_NOW));
    if (!strcmp(how, "init"))
        return d.init(0) == 0 ? 0 : 3;
    context = start_driver(&d);
    kernel = spin_kernel(&d);
    if (!strcmp(how, "other-device"))
        into_another_context(1, seconds);
    else if (!strcmp(how, "other-context"))
        into_another_context(0, seconds);
    else if (!strcmp(how, "green-context"))
        green_context(seconds);
    else if (!strcmp(how, "beside-legacy"))
        beside_the_legacy_stream(seconds);
    else if (!strcmp(how, "host-work"))
        host_work(seconds);
    else if (!strcmp(how, "without-threads"))
        without_threads();
    else
        return 64;
    return 0;
}
