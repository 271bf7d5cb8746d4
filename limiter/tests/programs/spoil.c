/* Threads allocate and free, launch and query, while the session's page is damaged:
 *   spoil PAGE HOW THREADS MS
 * HOW: "cut" truncates it to nothing, "half" to half of it; "zero" or "noise" overwrites all of it, "slots" zeroes
 * all but the first 128 bytes, "again" zeroes it over and over, "middle" only the slots over and over. Prints how
 * many calls were made after that. */
#include "driver.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>

static struct driver d;
static CUcontext context;
static CUfunction kernel;
static atomic_int stop;
static atomic_long calls;

static void *work(void *number) {
    size_t size = (1 + (size_t)number % 7) * MIB;
    d.ctx_set(context);
    while (!stop) {
        CUdeviceptr memory[3] = {0};
        size_t left, total;
        for (int i = 0; i < 3; i++)
            d.mem_alloc(&memory[i], size << i);
        spin(&d, kernel, 1, NULL);
        d.mem_info(&left, &total);
        for (int i = 0; i < 3; i++)
            if (memory[i])
                d.mem_free(memory[i]);
        calls++;
    }
    return NULL;
}

static void put(int page, const unsigned char *bytes, off_t from, off_t to) {
    for (off_t at = from; at < to; at += 4096)
        if (pwrite(page, bytes, (size_t)(to - at < 4096 ? to - at : 4096), at) < 0)
            perror("pwrite");
}

int main(int argc, char **argv) {
    unsigned char zeros[4096] = {0}, noise[4096];
    unsigned seed = 7;
    if (argc < 5)
        return 2;
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (unsigned char)rand_r(&seed);
    d = driver_of(open_driver(RTLD_NOW));
    context = start_driver(&d);
    kernel = spin_kernel(&d);
    pthread_t thread[64];
    int threads = atoi(argv[3]);
    for (size_t i = 0; i < (size_t)threads; i++)
        pthread_create(&thread[i], NULL, work, (void *)i);
    while (calls < 100)
        usleep(1000);
    int page = open(argv[1], O_RDWR);
    off_t end = lseek(page, 0, SEEK_END);
    const char *how = argv[2];
    calls = 0;
    double begun = now();
    do {
        if (!strcmp(how, "cut") || !strcmp(how, "half"))
            end = ftruncate(page, *how == 'c' ? 0 : end / 2);
        else
            put(page, *how == 'n' ? noise : zeros, *how == 's' || *how == 'm' ? 128 : 0, *how == 'm' ? end - 4096 : end);
        usleep(500);
    } while ((*how == 'm' || !strcmp(how, "again")) && now() - begun < atoi(argv[4]) / 1e3);
    usleep((useconds_t)atoi(argv[4]) * 1000);
    stop = 1;
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    printf("calls=%ld\n", (long)calls);
    return 0;
}
