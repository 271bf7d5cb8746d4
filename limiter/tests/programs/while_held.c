/* What programs do while their work is held at a closed gate: while_held HOW ROUNDS.
 *
 * Each round launches 20 ms of kernels and does something beside them. Says for how many thousandths of the time its
 * kernels ran, and how long the longest round took. What went wrong ends the program. */
#include "any.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { LAUNCHES = 20, STREAMS = 256, WORDS = 512, NOT_READY = 600 };

static struct driver d;
static CUcontext context;
static CUfunction kernel;
static CUstream stream;
static volatile uint32_t *word;
static CUdeviceptr word_at;
static int launched_ms;

static void fail(const char *what, int value) {
    fprintf(stderr, "%s: %d\n", what, value);
    exit(94);
}

static void see_words(void) {
    must("cuMemHostRegister_v2", (void *)word, (size_t)4096, 2);
    must("cuMemHostGetDevicePointer_v2", &word_at, (void *)word, 0);
}

/* A context in which kernels of a millisecond are known, and a stream. */
static void begin(void) {
    context = start_driver(&d);
    kernel = spin_kernel(&d);
    ok(d.stream_create(&stream, 1));
    see_words();
    for (int i = 0; i < 8; i++) {
        ok(spin(&d, kernel, 1000, stream));
        ok(d.stream_synchronize(stream));
    }
}

static void work(CUstream on) {
    for (int i = 0; i < LAUNCHES; i++)
        ok(spin(&d, kernel, 1000, on));
    launched_ms += LAUNCHES;
}

/* Makes a stream write a number behind its work. */
static void mark(CUstream on, int at, uint32_t number) {
    must("cuStreamWriteValue32_v2", on, word_at + 4 * (unsigned)at, number, 0);
}

static void is_marked(int at, uint32_t number) {
    if (word[at] != number)
        fail("a number that was not written behind the work", (int)word[at]);
}

/* Behind work that cannot be waited for, because its stream is gone. */
static void gets_marked(int at, uint32_t number) {
    for (double begun = now(); word[at] != number && now() - begun < 10;)
        usleep(100);
    is_marked(at, number);
}

static void *work_and_end(void *destroy) {
    CUstream own;
    ok(d.ctx_set(context));
    ok(d.stream_create(&own, 1));
    work(own);
    mark(own, 0, word[1]);
    if (destroy)
        ok(d.stream_destroy(own));
    return NULL;
}

/* A thread ends with held work, and its stream may be gone too. */
static void thread_ends(uint32_t round, int destroy) {
    pthread_t thread;
    word[1] = round;
    pthread_create(&thread, NULL, work_and_end, destroy ? &d : NULL);
    pthread_join(thread, NULL);
    if (!destroy) {
        ok(d.ctx_synchronize());
        is_marked(0, round);
    }
    gets_marked(0, round);
}

/* Streams are destroyed before their work has begun, and others take their place. */
static void stream_ends(uint32_t round) {
    for (int i = 0; i < 4; i++) {
        CUstream own;
        ok(d.stream_create(&own, 1));
        for (int n = 0; n < LAUNCHES / 4; n++)
            ok(spin(&d, kernel, 1000, own));
        mark(own, i, round);
        ok(d.stream_destroy(own));
    }
    launched_ms += LAUNCHES;
    for (int i = 0; i < 4; i++)
        gets_marked(i, round);
}

/* Anonymous shared mappings. */
static int shared_mappings(void) {
    char line[512];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        count += strstr(line, "/dev/zero") != NULL;
    if (maps)
        fclose(maps);
    return count;
}

static void context_ends(uint32_t round) {
    static int mappings;
    if (round == 3)
        mappings = shared_mappings();
    if (round == 8 && shared_mappings() > mappings + 2)
        fail("mappings that are left of contexts", shared_mappings() - mappings);
    work(stream);
    work(NULL);
    must("cuMemHostUnregister", (void *)word);
    ok(d.ctx_destroy(context));
    begin();
}

static void primary_is_reset(void) {
    CUcontext primary;
    CUstream own;
    must("cuDevicePrimaryCtxRetain", &primary, 0);
    ok(d.ctx_set(primary));
    CUcontext before = context;
    CUfunction of_before = kernel;
    kernel = spin_kernel(&d);
    ok(d.stream_create(&own, 1));
    work(own);
    must("cuDevicePrimaryCtxReset_v2", 0);
    kernel = of_before;
    context = before;
    ok(d.ctx_set(context));
    work(stream);
    ok(d.stream_synchronize(stream));
}

/* A child that does not use the device, and ends with its exit handlers or at once. */
static void forks(uint32_t round) {
    int status;
    work(stream);
    pid_t child = fork();
    if (!child) {
        usleep(1000);
        if (round % 2)
            exit(0);
        _exit(0);
    }
    mark(stream, 0, round);
    if (waitpid(child, &status, 0) != child || status)
        fail("a child", status);
    ok(d.stream_synchronize(stream));
    is_marked(0, round);
}

/* With lazy loading the driver loads code when a kernel is first launched, and waits for held streams meanwhile. */
static void loads(uint32_t round) {
    CUstream own;
    ok(d.stream_create(&own, 1));
    work(stream);
    CUfunction other = spin_kernel(&d);
    for (int i = 0; i < 3; i++)
        ok(spin(&d, other, 1000, own));
    mark(own, 0, round);
    ok(d.stream_synchronize(own));
    is_marked(0, round);
    ok(d.stream_destroy(own));
    launched_ms += 3;
}

static void *works_too(void *unused) {
    (void)unused;
    ok(d.ctx_set(context));
    for (int i = 0; i < LAUNCHES * 5; i++)
        ok(spin(&d, kernel, 100, stream));
    return NULL;
}

/* Two threads launch into one stream at the same time. */
static void threads_share(uint32_t round) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, works_too, NULL);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    launched_ms += LAUNCHES;
    mark(stream, 0, round);
    ok(d.stream_synchronize(stream));
    is_marked(0, round);
}

static void captures(uint32_t round) {
    CUgraph graph;
    void *runnable;
    CUstream own;
    ok(d.stream_create(&own, 1));
    work(stream);
    ok(d.begin_capture(own, round % 3));
    for (int i = 0; i < 5; i++)
        ok(spin(&d, kernel, 1000, own));
    ok(d.end_capture(own, &graph));
    size_t nodes = 0;
    must("cuGraphGetNodes", graph, NULL, &nodes);
    if (nodes != 5)
        fail("nodes of what was captured", (int)nodes);
    must("cuGraphInstantiateWithFlags", &runnable, graph, (uint64_t)0);
    for (int i = 0; i < 2; i++)
        must("cuGraphLaunch", runnable, stream);
    mark(stream, 0, round);
    ok(d.stream_synchronize(stream));
    is_marked(0, round);
    must("cuGraphExecDestroy", runnable);
    must("cuGraphDestroy", graph);
    ok(d.stream_destroy(own));
    launched_ms += 10;
}

static void many_streams(uint32_t round) {
    static CUstream all[STREAMS];
    for (int i = 0; i < STREAMS; i++) {
        if (!all[i])
            ok(d.stream_create(&all[i], 1));
        ok(spin(&d, kernel, 1000, all[i]));
        mark(all[i], i, round);
    }
    launched_ms += STREAMS;
    ok(d.ctx_synchronize());
    for (int i = 0; i < STREAMS; i++)
        is_marked(i, round);
}

/* Both default streams: work in one waits for work in the other. */
static void default_streams(uint32_t round) {
    uint64_t ns = 1000000;
    void *arguments[] = {&ns};
    for (int i = 0; i < LAUNCHES / 2; i++) {
        ok(spin(&d, kernel, 1000, NULL));
        must("cuLaunchKernel_ptsz", kernel, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL);
    }
    launched_ms += LAUNCHES;
    must("cuStreamWriteValue32_v2_ptsz", NULL, word_at, round, 0);
    must("cuStreamSynchronize_ptsz", NULL);
    is_marked(0, round);
}

/* Only queries: no thread waits in the driver, and none launches. */
static void asks(uint32_t round) {
    CUresult result;
    work(stream);
    mark(stream, 0, round);
    while ((result = call("cuStreamQuery", stream)) == NOT_READY)
        usleep(100);
    ok(result);
    is_marked(0, round);
}

/* A launch that would have been held fails, and its stream has nothing else to do. */
static void launch_fails(uint32_t round) {
    work(stream);
    ok(d.stream_synchronize(stream));
    for (int i = 0; i < 5; i++) {
        usleep(3000);
        if (d.launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL) == 0)
            fail("a launch without its arguments", 0);
        mark(stream, 0, round * 5 + (uint32_t)i);
        ok(d.stream_synchronize(stream));
        is_marked(0, round * 5 + (uint32_t)i);
    }
}

/* The launching call waits for its own work. */
static void copies(void) {
    static char bytes[1 << 20];
    CUdeviceptr at;
    must("cuMemAlloc_v2", &at, sizeof bytes);
    for (int i = 0; i < LAUNCHES; i++)
        must("cuMemcpyHtoD_v2", at, bytes, sizeof bytes);
    launched_ms += LAUNCHES;
    must("cuMemFree_v2", at);
}

/* Fills and copies on the device between the kernels: at a closed gate the thread continues at once. */
static void fills(uint32_t round, double *call) {
    enum { BYTES = 4096 };
    static CUdeviceptr at;
    unsigned char found[2] = {0, 0};
    if (!at)
        must("cuMemAlloc_v2", &at, (size_t)(2 * BYTES));
    work(stream);
    /* Until the program's saved time is used up. */
    usleep(30000);
    double begun = now();
    for (int i = 0; i < 4; i++) {
        must("cuMemsetD8Async", at, (unsigned char)round, (size_t)BYTES, stream);
        ok(spin(&d, kernel, 1000, stream));
        must("cuMemcpyDtoDAsync_v2", at + BYTES, at, (size_t)BYTES, stream);
    }
    double took = now() - begun;
    /* Before, their kinds are not known yet. */
    if (round > 2 && took > *call)
        *call = took;
    launched_ms += 4;
    ok(d.stream_synchronize(stream));
    must("cuMemcpyDtoH_v2", found, at + 2 * BYTES - 1, (size_t)1);
    if (found[0] != (unsigned char)round)
        fail("a fill that was not copied", found[0]);
}

static void note(void *at) { __atomic_store_n((uint32_t *)at, word[1], __ATOMIC_RELEASE); }

/* A host function between the kernels, and another stream behind an event. */
static void in_order(uint32_t round) {
    static CUstream behind;
    static void *event;
    if (!behind) {
        ok(d.stream_create(&behind, 1));
        must("cuEventCreate", &event, 2);
    }
    word[1] = round;
    work(stream);
    must("cuLaunchHostFunc", stream, note, (void *)(word + 2));
    work(stream);
    must("cuEventRecord", event, stream);
    must("cuStreamWaitEvent", behind, event, 0);
    ok(spin(&d, kernel, 1000, behind));
    launched_ms++;
    mark(behind, 0, round);
    ok(d.stream_synchronize(behind));
    is_marked(0, round);
    is_marked(2, round);
    if (call("cuStreamQuery", stream))
        fail("a stream went on before the event that it waited for", 0);
}

static volatile int stop;

/* Calls that natively return at once beside queued work. */
static void *allocate(void *longest) {
    ok(d.ctx_set(context));
    while (!stop) {
        CUdeviceptr memory;
        double begun = now();
        ok(d.mem_alloc(&memory, MIB));
        if (now() - begun > *(double *)longest)
            *(double *)longest = now() - begun;
        ok(d.mem_free(memory));
        usleep(500);
    }
    return NULL;
}

/* Thousands of launches are queued, while another thread allocates. */
static void far_ahead(uint32_t round, double *longest) {
    pthread_t thread;
    stop = 0;
    pthread_create(&thread, NULL, allocate, longest);
    for (int i = 0; i < 4000; i++)
        ok(spin(&d, kernel, 10, stream));
    mark(stream, 0, round);
    launched_ms += 40;
    ok(d.stream_synchronize(stream));
    is_marked(0, round);
    stop = 1;
    pthread_join(thread, NULL);
}

/* Close to its limit: more is allocated than fits beside the memory that the stream has yet to free. */
static void frees(void) {
    CUdeviceptr memory;
    must("cuMemAllocAsync", &memory, 600 * MIB, stream);
    for (int i = 0; i < 4; i++)
        work(stream);
    must("cuMemFreeAsync", memory, stream);
    must("cuMemAllocAsync", &memory, 800 * MIB, stream);
    must("cuMemFreeAsync", memory, stream);
    ok(d.stream_synchronize(stream));
}

/* Before the parent uses the device, a child does, and both do afterwards. */
static void children(void) {
    pid_t child[3];
    int status;
    for (int i = 0; i < 3; i++)
        if (!(child[i] = fork())) {
            library = open_driver(RTLD_NOW);
            d = driver_of(library);
            begin();
            for (uint32_t round = 1; round <= 3; round++)
                asks(round);
            work(stream);
            exit(0);
        }
    begin();
    for (uint32_t round = 1; round <= 3; round++)
        asks(round);
    for (int i = 0; i < 3; i++)
        if (waitpid(child[i], &status, 0) != child[i] || status)
            fail("a child", status);
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 64;
    const char *how = argv[1];
    uint32_t rounds = (uint32_t)atoi(argv[2]);
    word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    library = open_driver(RTLD_NOW);
    d = driver_of(library);
    if (!strcmp(how, "children")) {
        word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        children();
        return 0;
    }
    begin();
    double start = now(), longest = 0, call = 0;
    for (uint32_t round = 1; round <= rounds; round++) {
        double begun = now();
        if (!strcmp(how, "thread-ends"))
            thread_ends(round, 0);
        else if (!strcmp(how, "thread-and-stream-end"))
            thread_ends(round, 1);
        else if (!strcmp(how, "stream-ends"))
            stream_ends(round);
        else if (!strcmp(how, "context-ends"))
            context_ends(round);
        else if (!strcmp(how, "primary-is-reset"))
            primary_is_reset();
        else if (!strcmp(how, "forks"))
            forks(round);
        else if (!strcmp(how, "loads"))
            loads(round);
        else if (!strcmp(how, "captures"))
            captures(round);
        else if (!strcmp(how, "many-streams"))
            many_streams(round);
        else if (!strcmp(how, "default-streams"))
            default_streams(round);
        else if (!strcmp(how, "threads-share"))
            threads_share(round);
        else if (!strcmp(how, "asks"))
            asks(round);
        else if (!strcmp(how, "launch-fails"))
            launch_fails(round);
        else if (!strcmp(how, "copies"))
            copies();
        else if (!strcmp(how, "fills"))
            fills(round, &call);
        else if (!strcmp(how, "in-order"))
            in_order(round);
        else if (!strcmp(how, "frees"))
            frees();
        else if (!strcmp(how, "far-ahead"))
            far_ahead(round, &call);
        else
            return 64;
        longest = now() - begun > longest ? now() - begun : longest;
    }
    printf("permille=%.0f longest_ms=%.0f call_ms=%.0f\n", launched_ms / (now() - start), longest * 1e3, call * 1e3);
    fflush(stdout);
    /* Work is held as the process ends. */
    work(stream);
    return 0;
}
