/* A thread is cancelled within a call into a driver (points.c): prints whether the call was completed, and whether
 * the thread was cancelled. */
#include "driver.h"
#include <pthread.h>

static CUresult (*init)(unsigned), (*alloc)(CUdeviceptr *, size_t), (*free_)(CUdeviceptr);
static CUresult (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                          void **, void **);
static const char *what;
static int type = PTHREAD_CANCEL_DEFERRED;
static volatile int ended;

static CUresult called(void) {
    CUdeviceptr memory = 0;
    if (!strcmp(what, "launch"))
        return launch((void *)&ended, 1, 2, 3, 4, 5, 6, 7, NULL, (void **)8, (void **)9);
    CUresult result = alloc(&memory, LITTLE);
    return result ? result : free_(memory);
}

static void *thread(void *unused) {
    int old;
    pthread_setcanceltype(type, &old);
    ok(called());
    ended = 1;
    while (1)
        pthread_testcancel();
    return unused;
}

int main(int count, char **arguments) {
    void *library = open_driver(RTLD_NOW), *result = NULL;
    pthread_t id;
    *(void **)&init = need(library, "cuInit");
    *(void **)&alloc = need(library, "cuMemAlloc_v2");
    *(void **)&free_ = need(library, "cuMemFree_v2");
    *(void **)&launch = need(library, "cuLaunchKernel");
    what = count > 1 ? arguments[1] : "";
    if (count > 2)
        type = PTHREAD_CANCEL_ASYNCHRONOUS;
    volatile int *ms = need(library, "points_ms"), *met = need(library, "points_met");
    ok(init(0));
    ok(called());
    *ms = 1000;
    *met = 0;
    if (pthread_create(&id, NULL, thread, NULL))
        return 93;
    while (!*met)
        usleep(100);
    pthread_cancel(id);
    *ms = 0;
    if (pthread_join(id, &result))
        return 92;
    ok(called());
    printf("ended=%d cancelled=%d\n", ended, result == PTHREAD_CANCELED);
    return 0;
}
