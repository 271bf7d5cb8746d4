/* Uses the device's time in the way that its first argument names. */
#include "driver.h"
#include <pthread.h>

static struct driver d;
static CUcontext context;
static CUfunction kernel;
static CUstream other_stream;
static volatile int stop;

/* Kernels of `us`, each waited for, for `seconds`; prints the share of the time that they took. */
static void one_at_a_time(unsigned us, double seconds) {
    double start = now();
    int done = 0;
    while (now() - start < seconds) {
        ok(spin(&d, kernel, us, NULL));
        ok(d.ctx_synchronize());
        done++;
    }
    printf("done=%d permille=%.0f\n", done, done * (us / 1e6) / (now() - start) * 1000);
}

/* Kernels of 100 us, never more than three of them launched ahead. */
static void few_ahead(void *library, double seconds) {
    enum { AHEAD = 3 };
    CUresult (*create)(void **, unsigned) = (CUresult (*)(void **, unsigned))need(library, "cuEventCreate");
    CUresult (*record)(void *, CUstream) = (CUresult (*)(void *, CUstream))need(library, "cuEventRecord");
    CUresult (*await)(void *) = (CUresult (*)(void *))need(library, "cuEventSynchronize");
    void *event[AHEAD];
    for (int i = 0; i < AHEAD; i++)
        ok(create(&event[i], 2));
    double start = now();
    int done = 0;
    for (; now() - start < seconds; done++) {
        if (done >= AHEAD)
            ok(await(event[done % AHEAD]));
        ok(spin(&d, kernel, 100, NULL));
        ok(record(event[done % AHEAD], NULL));
    }
    ok(d.ctx_synchronize());
    printf("done=%d permille=%.0f\n", done, done * 100e-6 / (now() - start) * 1000);
}

/* A stream of its own for every few launches, gone before they are done. */
static void streams(double seconds) {
    double start = now();
    int done = 0;
    while (now() - start < seconds) {
        CUstream stream;
        ok(d.stream_create(&stream, 1));
        for (int i = 0; i < 4; i++, done++)
            ok(spin(&d, kernel, 1000, stream));
        ok(d.stream_destroy(stream));
        /* As many as fit into the queue would be launched ahead. */
        ok(d.ctx_synchronize());
    }
    printf("done=%d permille=%.0f\n", done, done * 1e-3 / (now() - start) * 1000);
}

/* A context of its own for every few launches. */
static void contexts(double seconds) {
    double start = now();
    int done = 0;
    while (now() - start < seconds) {
        for (int i = 0; i < 20; i++, done++)
            ok(spin(&d, kernel, 2000, NULL));
        ok(d.ctx_synchronize());
        ok(d.ctx_destroy(context));
        context = start_driver(&d);
        kernel = spin_kernel(&d);
    }
    printf("done=%d permille=%.0f\n", done, done * 2e-3 / (now() - start) * 1000);
}

/* Short kernels in one stream after the other; prints how long that took. */
static void many_streams(void) {
    enum { STREAMS = 40 };
    CUstream stream[STREAMS];
    double start = now();
    for (int i = 0; i < STREAMS; i++) {
        ok(d.stream_create(&stream[i], 1));
        for (int j = 0; j < 30; j++)
            ok(spin(&d, kernel, 50, stream[i]));
    }
    ok(d.ctx_synchronize());
    printf("took_ms=%.0f\n", (now() - start) * 1000);
}

/* Work in one stream that waits until another stream has work; prints the longest round. */
static void dependent(void *library, double seconds) {
    CUresult (*wait_value)(CUstream, CUdeviceptr, uint32_t, unsigned);
    CUresult (*host_alloc)(void **, size_t, unsigned);
    CUresult (*device_pointer)(CUdeviceptr *, void *, unsigned);
    *(void **)&wait_value = need(library, "cuStreamWaitValue32_v2");
    *(void **)&host_alloc = need(library, "cuMemHostAlloc");
    *(void **)&device_pointer = need(library, "cuMemHostGetDevicePointer_v2");
    void *memory;
    CUdeviceptr word;
    CUstream one, other;
    ok(host_alloc(&memory, 4096, 2));
    ok(device_pointer(&word, memory, 0));
    ok(d.stream_create(&one, 1));
    ok(d.stream_create(&other, 1));
    load_spin(&d, kernel);
    double start = now(), longest = 0;
    uint32_t round = 1;
    for (; now() - start < seconds; round++) {
        double begun = now();
        ok(wait_value(one, word, round, 0));
        ok(spin(&d, kernel, 100, one));
        usleep(8000);
        ok(spin(&d, kernel, 100, other));
        __atomic_store_n((uint32_t *)memory, round, __ATOMIC_RELEASE);
        ok(d.stream_synchronize(one));
        ok(d.stream_synchronize(other));
        if (now() - begun > longest)
            longest = now() - begun;
    }
    printf("rounds=%u longest_ms=%.0f\n", round - 1, longest * 1000);
}

static void *launch_until_stopped(void *unused) {
    (void)unused;
    ok(d.ctx_set(context));
    while (!stop) {
        if (spin(&d, kernel, 500, other_stream) != 0)
            return "a launch failed";
        /* Waiting for the stream would be a wrong call. */
        usleep(600);
    }
    return NULL;
}

/* Captures in GLOBAL mode, in which a wrong call of any other thread ends the capture, while another thread
 * launches, which is allowed, and has to wait. */
static void capture(double seconds) {
    pthread_t other;
    CUstream stream;
    double start = now();
    int captures = 0;
    ok(d.stream_create(&stream, 1));
    ok(d.stream_create(&other_stream, 1));
    pthread_create(&other, NULL, launch_until_stopped, NULL);
    while (now() - start < seconds) {
        CUgraph graph = NULL;
        ok(d.begin_capture(stream, 0));
        for (int i = 0; i < 20; i++) {
            ok(spin(&d, kernel, 500, stream));
            usleep(1000);
        }
        ok(d.end_capture(stream, &graph));
        captures++;
    }
    stop = 1;
    void *complaint;
    pthread_join(other, &complaint);
    printf("captures=%d failed=%d\n", captures, complaint != NULL);
}

static void *launch_for_ever(void *unused) {
    (void)unused;
    if (d.ctx_set(context) == 0)
        while (spin(&d, kernel, 20000, NULL) == 0)
            ;
    return NULL;
}

static void launch_at_exit(void) {
    double start = now();
    for (int i = 0; i < 20; i++)
        spin(&d, kernel, 5000, NULL);
    d.ctx_synchronize();
    printf("late_ms=%.0f\n", (now() - start) * 1000);
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    double seconds = argc > 2 ? atof(argv[2]) : 1;
    if (!strcmp(how, "exit-handler-before"))
        atexit(launch_at_exit);
    void *library = open_driver(RTLD_NOW);
    d = driver_of(library);
    context = start_driver(&d);
    kernel = spin_kernel(&d);
    if (!strcmp(how, "one-at-a-time")) {
        one_at_a_time(20000, seconds);
    } else if (!strcmp(how, "short-ones")) {
        one_at_a_time(8, seconds);
    } else if (!strcmp(how, "few-ahead")) {
        few_ahead(library, seconds);
    } else if (!strcmp(how, "dependent")) {
        dependent(library, seconds);
    } else if (!strcmp(how, "many-streams")) {
        many_streams();
    } else if (!strcmp(how, "streams")) {
        streams(seconds);
    } else if (!strcmp(how, "contexts")) {
        contexts(seconds);
    } else if (!strcmp(how, "capture")) {
        capture(seconds);
    } else if (!strcmp(how, "exit-while-waiting")) {
        pthread_t thread;
        for (int i = 0; i < 6; i++)
            pthread_create(&thread, NULL, launch_for_ever, NULL);
        usleep((useconds_t)(seconds * 1e6));
        printf("leaving=1\n");
    } else if (!strcmp(how, "exit-handler") || !strcmp(how, "exit-handler-before")) {
        if (!strcmp(how, "exit-handler"))
            atexit(launch_at_exit);
        one_at_a_time(5000, seconds);
    } else {
        return 64;
    }
    return 0;
}
