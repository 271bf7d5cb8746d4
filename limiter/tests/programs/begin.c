/* Many processes make their first contexts at the same moment, and keep them until all have tried:
 *   begin PROCESSES [kill|lock PAGE]
 * "kill": every second process is killed at some moment of that. "lock": another process has locked all bytes
 * behind the page's slots, like one that makes a context and never finishes. */
#include "driver.h"
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static struct { atomic_int ready, go, made, refused, other, tried; } *shared;

static void child(struct driver *d, unsigned dies_after_us) {
    CUdevice device;
    CUcontext context;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    ok(d->init(0));
    ok(d->device_get(&device, 0));
    shared->ready++;
    while (!shared->go)
        usleep(200);
    if (dies_after_us) {
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
        struct itimerspec when = {.it_value.tv_nsec = dies_after_us * 1000L};
        timer_t timer;
        timer_create(CLOCK_MONOTONIC, &event, &timer);
        timer_settime(timer, 0, &when, NULL);
    }
    CUresult result = d->ctx_create(&context, 0, device);
    atomic_int *counter = result == 0 ? &shared->made : result == 2 ? &shared->refused : &shared->other;
    if (!dies_after_us) {
        (*counter)++;
        shared->tried++;
    }
    for (;;)
        pause();
}

int main(int argc, char **argv) {
    if (argc < 2)
        return 2;
    int count = atoi(argv[1]), kills = argc > 2 && !strcmp(argv[2], "kill"), status;
    unsigned seed = 3;
    pid_t children[1000], locker = 0;
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct driver d = driver_of(open_driver(RTLD_NOW));
    alarm(80);
    if (argc > 3 && (locker = fork()) == 0) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 4096};
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (fcntl(open(argv[3], O_RDWR), F_SETLK, &lock) != 0)
            perror("lock");
        shared->ready++;
        for (;;)
            pause();
    }
    int expected = count + (locker != 0);
    for (int i = 0; i < count; i++)
        if ((children[i] = fork()) == 0)
            child(&d, kills && i % 2 ? 1 + rand_r(&seed) % 4000 : 0);
    while (shared->ready < expected)
        usleep(1000);
    double begun = now();
    shared->go = 1;
    int survivors = kills ? (count + 1) / 2 : count;
    while (shared->tried < survivors)
        usleep(1000);
    printf("made=%d refused=%d other=%d ms=%d\n", shared->made, shared->refused, shared->other,
           (int)((now() - begun) * 1000));
    for (int i = 0; i < count; i++)
        kill(children[i], SIGKILL);
    if (locker)
        kill(locker, SIGKILL);
    while (wait(&status) > 0)
        ;
    return 0;
}
