/* Fills the memory until it is refused, while the first launches of kernels place code on the device:
 *   fill THREADS CHUNK_MIB IMAGES IMAGE_MIB PLACED_MIB WHEN [pool]
 * Images of IMAGE_MIB take PLACED_MIB each. WHEN: "before" the first allocation; before the first of an "other"
 * process of the session; "between" allocations; "meanwhile", by another thread, as long as the code alone would
 * fit. With "pool", memory comes from the device's pool.
 * Prints how many chunks it was granted. */
#include "any.h"
#include <pthread.h>
#include <sys/wait.h>

#define MOST 256

static struct driver d;
static CUcontext context;
static int (*alloc_async)(CUdeviceptr *, size_t, CUstream);
static CUfunction kernels[MOST];
static int images, launched;
static size_t chunk, granted;
static const char *when;
static int from_pool;
static volatile int filling;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void load(CUfunction *kernel, size_t bytes, size_t placed) {
    char *image = malloc(bytes + 200);
    int begin = sprintf(image, ".version 7.0\n.target sm_70\n.address_size 64\n// placed: %zu\n.visible .entry k() { ret; }\n//", placed);
    memset(image + begin, 'x', bytes);
    image[begin + bytes] = 0;
    void *of;
    must("cuLibraryLoadData", &of, image, NULL, NULL, 0u, NULL, NULL, 0u);
    must("cuLibraryGetKernel", kernel, of, "k");
    free(image);
}

/* The first launch of a kernel; memory that does not fit on the device itself is no failure here. */
static int launch_next(void) {
    pthread_mutex_lock(&lock);
    int number = launched < images ? launched++ : -1;
    pthread_mutex_unlock(&lock);
    if (number >= 0)
        ok(d.launch(kernels[number], 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    return number >= 0;
}

static void *meanwhile(void *unused) {
    (void)unused;
    ok(d.ctx_set(context));
    while (filling && left() > 48 * MIB && launch_next())
        usleep(100);
    return NULL;
}

static void *fill(void *number) {
    unsigned seed = (unsigned)(size_t)number + 5;
    ok(d.ctx_set(context));
    for (;;) {
        CUdeviceptr at;
        CUresult result = from_pool ? alloc_async(&at, chunk, NULL) : d.mem_alloc(&at, chunk);
        if (result == OUT_OF_MEMORY)
            return NULL;
        ok(result);
        pthread_mutex_lock(&lock);
        granted++;
        pthread_mutex_unlock(&lock);
        if (!strcmp(when, "between") && rand_r(&seed) % 2)
            launch_next();
    }
}

int main(int argc, char **argv) {
    if (argc < 7)
        return 2;
    int threads = atoi(argv[1]);
    chunk = (size_t)atoi(argv[2]) * MIB;
    images = atoi(argv[3]);
    when = argv[6];
    from_pool = argc > 7;
    int ready[2];
    char byte = 0;
    pid_t child = 1;
    if (!strcmp(when, "other")) {
        if (pipe(ready) || (child = fork()) < 0)
            return 3;
        /* The child has neither images nor a context before the code of its parent is placed. */
        if (child == 0 && read(ready[0], &byte, 1) != 1)
            return 4;
        images = child == 0 ? 0 : images;
        threads = child == 0 ? threads : 0;
    }
    library = open_driver(RTLD_NOW);
    d = driver_of(library);
    context = start_driver(&d);
    *(void **)&alloc_async = need(library, "cuMemAllocAsync");
    for (int i = 0; i < images; i++)
        load(&kernels[i], (size_t)atoi(argv[4]) * MIB, (size_t)atoi(argv[5]) * MIB);
    /* Known figures are from the time before any code was placed. */
    usleep(child == 0 ? 0 : 300000);
    if (!strcmp(when, "before") || !strcmp(when, "other")) {
        while (launch_next())
            ;
        /* Wakes the limiter's own thread, and gives it time to begin. */
        CUstream stream;
        ok(d.stream_create(&stream, 1));
        usleep(2000);
    }
    if (!strcmp(when, "other") && child > 0 && write(ready[1], &byte, 1) != 1)
        return 5;
    pthread_t filler[16], other;
    filling = 1;
    if (!strcmp(when, "meanwhile"))
        pthread_create(&other, NULL, meanwhile, NULL);
    for (int i = 0; i < threads; i++)
        pthread_create(&filler[i], NULL, fill, (void *)(size_t)i);
    for (int i = 0; i < threads; i++)
        pthread_join(filler[i], NULL);
    filling = 0;
    if (!strcmp(when, "meanwhile"))
        pthread_join(other, NULL);
    /* NVML is polled from outside. */
    usleep(100000);
    if (!strcmp(when, "other") && child > 0) {
        int status = 0;
        return waitpid(child, &status, 0) == child ? status : 6;
    }
    printf("granted=%zu launched=%d\n", granted, launched);
    return 0;
}
