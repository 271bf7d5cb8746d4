/* Starts ranks as mpirun and torchrun do: ranks COUNT. Each is a process of its own that gets its number in the
 * environment. When all have a context, each takes all the memory that it gets, and holds it until all have done
 * so. Prints the sum. */
#include "driver.h"
#include <sys/wait.h>

#define CHUNK (16 * MIB)

/* Sends the launcher a number, and waits until it closes the pipe of this step. */
static void step(int told, size_t number, int until) {
    char byte;
    if (write(told, &number, sizeof number) != sizeof number || read(until, &byte, 1) != 0)
        exit(96);
}

static void rank(int told, int go, int end) {
    struct driver d = driver_of(open_driver(RTLD_NOW));
    CUdeviceptr memory;
    CUresult result;
    size_t taken = 0;
    start_driver(&d);
    step(told, 0, go);
    while ((result = d.mem_alloc(&memory, CHUNK)) == 0)
        taken += CHUNK;
    if (result != 2)
        exit(95);
    step(told, taken, end);
}

/* The sum of the ranks' numbers. */
static size_t heard(int from, int count) {
    size_t all = 0, one;
    for (; count > 0 && read(from, &one, sizeof one) == sizeof one; count--)
        all += one;
    return all;
}

int main(int argc, char **argv) {
    int told[2], go[2], end[2], count = argc > 1 ? atoi(argv[1]) : 0, failed = 0;
    if (getenv("LOCAL_RANK")) {
        rank(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]));
        return 0;
    }
    /* A rank that fails sends nothing. */
    alarm(80);
    if (pipe(told) != 0 || pipe(go) != 0 || pipe(end) != 0)
        return 94;
    for (int i = 0; i < count; i++) {
        if (fork() == 0) {
            char number[16], pipes[3][16];
            snprintf(number, sizeof number, "%d", i);
            snprintf(pipes[0], sizeof pipes[0], "%d", told[1]);
            snprintf(pipes[1], sizeof pipes[1], "%d", go[0]);
            snprintf(pipes[2], sizeof pipes[2], "%d", end[0]);
            setenv("LOCAL_RANK", number, 1);
            close(go[1]);
            close(end[1]);
            execl("/proc/self/exe", argv[0], argv[1], pipes[0], pipes[1], pipes[2], NULL);
            _exit(93);
        }
    }
    heard(told[0], count);
    close(go[1]);
    size_t all = heard(told[0], count);
    close(end[1]);
    for (int status; wait(&status) > 0;)
        failed += status != 0;
    printf("failed=%d taken=%zu\n", failed, all / MIB);
    return 0;
}
