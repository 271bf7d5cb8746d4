/* Launches from unusual places. */
#include "driver.h"
#include <sys/mman.h>
#include <errno.h>
#include <pthread.h>

static struct driver d;
static CUfunction kernel;
static CUcontext context;
/* Every thread's stack has room for this, and for the calls on top. */
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
    /* The program's memory is used by nobody else, wherever it is. */
    CUresult (*host_register)(void *, size_t, unsigned);
    *(void **)&host_register = need(library, "cuMemHostRegister_v2");
    for (int i = 0; i < 64; i++)
        ok(host_register(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 4096, 2));
    printf("permille=%.0f\n", done * 2e-3 / (now() - start) * 1000);
}

/* Work in a stream that waits for the host, after work in the legacy stream and before work that the host waits
 * for: anything more that is enqueued into the legacy stream makes them all wait for each other. */
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

/* A kernel, then a host function that takes three times as long, with others queued behind them. */
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

/* Further driver functions that the programs below need. */
static struct {
    CUresult (*create)(void **, unsigned);
    CUresult (*record)(void *, CUstream);
    CUresult (*await)(void *);
    CUresult (*wait)(CUstream, void *, unsigned);
    CUresult (*wait_value)(CUstream, CUdeviceptr, uint32_t, unsigned);
    CUresult (*host_function)(CUstream, void (*)(void *), void *);
    CUresult (*host_alloc)(void **, size_t, unsigned);
    CUresult (*device_pointer)(CUdeviceptr *, void *, unsigned);
} e;

static void find_events(void) {
    void *library = open_driver(RTLD_NOW);
    *(void **)&e.create = need(library, "cuEventCreate");
    *(void **)&e.record = need(library, "cuEventRecord");
    *(void **)&e.await = need(library, "cuEventSynchronize");
    *(void **)&e.wait = need(library, "cuStreamWaitEvent");
    *(void **)&e.wait_value = need(library, "cuStreamWaitValue32_v2");
    *(void **)&e.host_function = need(library, "cuLaunchHostFunc");
    *(void **)&e.host_alloc = need(library, "cuMemHostAlloc");
    *(void **)&e.device_pointer = need(library, "cuMemHostGetDevicePointer_v2");
}

static uint32_t *word_of_the_host(CUdeviceptr *device) {
    void *memory;
    ok(e.host_alloc(&memory, 4096, 2));
    ok(e.device_pointer(device, memory, 0));
    return memory;
}

/* Kernels of 1 ms on the second device, each after an event of the first one, where 4 ms pass between two: all of
 * it in a kernel, or most of it in a host function. Prints how busy the second device was. */
static void pipeline(int on_host, double seconds) {
    enum { AHEAD = 8 };
    CUcontext second;
    CUstream stream[2];
    void *passed[AHEAD], *done[AHEAD];
    find_events();
    for (int i = 0; i < AHEAD; i++)
        ok(e.create(&passed[i], 2));
    ok(d.stream_create(&stream[0], 1));
    ok(d.ctx_create(&second, 0, 1));
    CUfunction there = spin_kernel(&d);
    for (int i = 0; i < AHEAD; i++)
        ok(e.create(&done[i], 2));
    ok(d.stream_create(&stream[1], 1));
    double start = now();
    int round = 0;
    for (; now() - start < seconds; round++) {
        int at = round % AHEAD;
        if (round >= AHEAD)
            ok(e.await(done[at]));
        ok(spin(&d, kernel, on_host ? 1000 : 4000, stream[0]));
        if (on_host)
            ok(e.host_function(stream[0], work, (void *)(intptr_t)3000));
        ok(e.record(passed[at], stream[0]));
        ok(e.wait(stream[1], passed[at], 0));
        ok(spin(&d, there, 1000, stream[1]));
        ok(e.record(done[at], stream[1]));
    }
    ok(d.stream_synchronize(stream[1]));
    printf("permille=%.0f\n", round * 1e-3 / (now() - start) * 1000);
}

/* 20 kernels of 100 us on one device, then on the other, by turns, as models that are split over devices run: each
 * hands over by a wait of either stream for the other, and of two waits of a stream only one is long. By streams of
 * their own, or by the default ones. Says how busy each device was. */
static void there_and_back(int by_default, double seconds) {
    enum { KERNELS = 20, AHEAD = 4 };
    CUcontext of[2] = {context};
    CUstream stream[2] = {NULL, NULL};
    CUfunction there[2] = {kernel};
    void *ready[2], *passed[2], *done[AHEAD];
    find_events();
    for (int i = 0; i < AHEAD; i++)
        ok(e.create(&done[i], 2));
    for (int i = 0; i < 2; i++) {
        if (i == 1) {
            ok(d.ctx_create(&of[1], 0, 1));
            there[1] = spin_kernel(&d);
        }
        ok(e.create(&ready[i], 2));
        ok(e.create(&passed[i], 2));
        if (!by_default)
            ok(d.stream_create(&stream[i], 1));
    }
    double start = now();
    int round = 0;
    for (; now() - start < seconds; round++) {
        ok(d.ctx_set(of[0]));
        if (round >= AHEAD)
            ok(e.await(done[round % AHEAD]));
        for (int i = 0; i < 2; i++) {
            ok(d.ctx_set(of[i]));
            for (int n = 0; n < KERNELS; n++)
                ok(spin(&d, there[i], 100, stream[i]));
            /* The other device is ready to take over, which is so already. */
            ok(d.ctx_set(of[1 - i]));
            ok(e.record(ready[1 - i], stream[1 - i]));
            ok(d.ctx_set(of[i]));
            ok(e.wait(stream[i], ready[1 - i], 0));
            ok(e.record(passed[i], stream[i]));
            ok(d.ctx_set(of[1 - i]));
            ok(e.wait(stream[1 - i], passed[i], 0));
        }
        ok(d.ctx_set(of[0]));
        ok(e.record(done[round % AHEAD], stream[0]));
    }
    ok(d.stream_synchronize(stream[0]));
    printf("permille=%.0f\n", round * KERNELS * 1e-4 / (now() - start) * 1000);
}

enum { WORDS_AHEAD = 8 };
static uint32_t *written;
static void *word_done[WORDS_AHEAD];
static uint32_t words_queued;

/* Writes each word 3 ms after the work behind the previous one is done. */
static void *write_words(void *unused) {
    (void)unused;
    ok(d.ctx_set(context));
    for (uint32_t round = 0;; round++) {
        usleep(3000);
        __atomic_store_n(written, round + 1, __ATOMIC_RELEASE);
        while (__atomic_load_n(&words_queued, __ATOMIC_ACQUIRE) <= round)
            usleep(100);
        ok(e.await(word_done[round % WORDS_AHEAD]));
    }
    return NULL;
}

/* A kernel of 1 ms after each word that the host writes; with `other`, in a stream that waits for the one that
 * waits. */
static void words(int other, double seconds) {
    CUdeviceptr word;
    CUstream waits, works;
    void *passed[WORDS_AHEAD];
    pthread_t writer;
    find_events();
    written = word_of_the_host(&word);
    for (int i = 0; i < WORDS_AHEAD; i++) {
        ok(e.create(&passed[i], 2));
        ok(e.create(&word_done[i], 2));
    }
    ok(d.stream_create(&waits, 1));
    works = waits;
    if (other)
        ok(d.stream_create(&works, 1));
    load_spin(&d, kernel);
    pthread_create(&writer, NULL, write_words, NULL);
    double start = now();
    uint32_t round = 0;
    for (; now() - start < seconds; round++) {
        /* The writer may not have come to wait for the last of them yet. */
        if (round >= WORDS_AHEAD / 2)
            ok(e.await(word_done[(round - WORDS_AHEAD / 2) % WORDS_AHEAD]));
        int at = round % WORDS_AHEAD;
        ok(e.wait_value(waits, word, round + 1, 0));
        if (other) {
            ok(e.record(passed[at], waits));
            ok(e.wait(works, passed[at], 0));
        }
        ok(spin(&d, kernel, 1000, works));
        ok(e.record(word_done[at], works));
        __atomic_store_n(&words_queued, round + 1, __ATOMIC_RELEASE);
    }
    ok(d.stream_synchronize(works));
    printf("permille=%.0f\n", round * 1e-3 / (now() - start) * 1000);
}

static CUdeviceptr word_there;

/* A thread that enqueues one wait after the other into a stream that it launches nothing into. */
static void *wait_for_the_word(void *stream) {
    ok(d.ctx_set(context));
    /* Until the driver is gone. */
    while (e.wait_value(stream, word_there, 0, 0) == 0)
        usleep(50);
    return NULL;
}

/* Kernels of 100 us, so many of them queued, with a wait before each that holds nothing up: for an event of the
 * own stream (`own`, and `others` where there is a context on another device), of the other one whose kernels take
 * turns with these (`turns`), or for a word that is there (`word`, or `thread` if another thread makes the waits). */
static void idle_waits(const char *what, int ahead, double seconds) {
    enum { MOST = 64 };
    pthread_t thread;
    CUcontext other;
    CUstream stream[2];
    void *event[MOST];
    find_events();
    if (!strcmp(what, "others")) {
        ok(d.ctx_create(&other, 0, 1));
        ok(d.ctx_set(context));
    }
    (void)word_of_the_host(&word_there);
    for (int i = 0; i < ahead; i++)
        ok(e.create(&event[i], 2));
    ok(d.stream_create(&stream[0], 1));
    ok(d.stream_create(&stream[1], 1));
    if (!strcmp(what, "thread"))
        pthread_create(&thread, NULL, wait_for_the_word, stream[0]);
    int turns = !strcmp(what, "turns"), done = 0;
    double start = now();
    for (; now() - start < seconds; done++) {
        CUstream here = stream[turns ? done % 2 : 0];
        if (done >= ahead)
            ok(e.await(event[done % ahead]));
        if (!strcmp(what, "word"))
            ok(e.wait_value(here, word_there, 0, 0));
        else if (done && strcmp(what, "thread"))
            ok(e.wait(here, event[(done - 1) % ahead], 0));
        ok(spin(&d, kernel, 100, here));
        ok(e.record(event[done % ahead], here));
    }
    ok(d.ctx_synchronize());
    printf("permille=%.0f\n", done * 1e-4 / (now() - start) * 1000);
}

static pthread_barrier_t begins;

static void *launch_once(void *unused) {
    (void)unused;
    ok(d.ctx_set(context));
    pthread_barrier_wait(&begins);
    return (void *)(intptr_t)spin(&d, kernel, 100, NULL);
}

/* Several threads launch at once at a gate whose governor cannot be started. */
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
    else if (!strcmp(how, "pipeline") || !strcmp(how, "pipeline-of-host"))
        pipeline(!strcmp(how, "pipeline-of-host"), seconds);
    else if (!strcmp(how, "there-and-back") || !strcmp(how, "there-and-back-by-default"))
        there_and_back(!strcmp(how, "there-and-back-by-default"), seconds);
    else if (!strcmp(how, "words") || !strcmp(how, "words-elsewhere"))
        words(!strcmp(how, "words-elsewhere"), seconds);
    else if (!strncmp(how, "idle-waits:", 11))
        idle_waits(how + 11, argc > 3 ? atoi(argv[3]) : 32, seconds);
    else if (!strcmp(how, "without-threads"))
        without_threads();
    else
        return 64;
    return 0;
}
