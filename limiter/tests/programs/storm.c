/* Many processes of one session at once. See usage below and tests/storm.rs. */
#include "driver.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define MOST 64

/* What the processes share, besides the session. */
struct shared {
    pthread_barrier_t barrier;
    atomic_int granted, wrong, stop;
    struct {
        atomic_uint_fast64_t held, slowest_us;
        atomic_int runs, reported, failures, code;
    } worker[MOST];
};
static struct shared *shared;
static struct driver d;

static void slower(int self, double seconds) {
    uint64_t us = (uint64_t)(seconds * 1e6);
    if (us > shared->worker[self].slowest_us)
        shared->worker[self].slowest_us = us;
}

static void start_worker(int self) {
    CUdevice device;
    CUcontext context;
    ok(d.init(0));
    ok(d.device_get(&device, 0));
    /* Others may have taken the room of a killed process; they free all the time. */
    CUresult result;
    while ((result = d.ctx_create(&context, 0, device)) == 2)
        usleep(1000);
    ok(result);
    shared->worker[self].runs = 1;
}

/* Forks a worker that ends with this process. */
static pid_t worker(void (*work)(int, int, char **), int self, int count, char **rest) {
    shared->worker[self].runs = 0;
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(96);
        work(self, count, rest);
        _exit(0);
    }
    return pid;
}

/* In each round all take a chunk at the same moment; the limit has room for `fits` of them. */
static void race(int self, int count, char **rest) {
    int rounds = atoi(rest[0]), fits = atoi(rest[2]);
    size_t chunk = (size_t)atoll(rest[1]);
    (void)count;
    start_worker(self);
    for (int round = 0; round < rounds; round++) {
        CUdeviceptr memory = 0;
        pthread_barrier_wait(&shared->barrier);
        double begun = now();
        CUresult result = d.mem_alloc(&memory, chunk);
        slower(self, now() - begun);
        if (result == 0)
            shared->granted++;
        else if (result != 2)
            shared->wrong++;
        pthread_barrier_wait(&shared->barrier);
        if (self == 0) {
            if (shared->granted != fits)
                shared->wrong++;
            shared->granted = 0;
        }
        if (result == 0)
            ok(d.mem_free(memory));
    }
}

/* Allocates and frees until it is killed, or told to stop. */
static void churn(int self, int count, char **rest) {
    (void)count, (void)rest;
    CUdeviceptr memory[8] = {0};
    size_t bytes[8] = {0};
    unsigned seed = (unsigned)getpid();
    start_worker(self);
    while (!shared->stop) {
        int at = (int)(rand_r(&seed) % 8);
        double begun = now();
        if (memory[at]) {
            ok(d.mem_free(memory[at]));
            memory[at] = 0;
        } else {
            bytes[at] = (1 + rand_r(&seed) % 16) * 2 * MIB;
            if (d.mem_alloc(&memory[at], bytes[at]) != 0)
                memory[at] = 0;
        }
        slower(self, now() - begun);
        /* In bursts, so that the others and the killer get their turn. */
        if (rand_r(&seed) % 8 == 0)
            usleep(500);
    }
    /* Queried twice, so that a process that died meanwhile is noticed. */
    size_t free_bytes, total;
    ok(d.mem_info(&free_bytes, &total));
    usleep(100000);
    ok(d.mem_info(&free_bytes, &total));
    uint64_t held = 0;
    for (int at = 0; at < 8; at++)
        held += memory[at] ? bytes[at] : 0;
    shared->worker[self].held = held;
    shared->worker[self].reported = 1;
    pause();
}

/* Allocates and frees at a slow pace until that fails, and a while longer; or for `rounds`. */
static void steady(int self, int count, char **rest) {
    int rounds = atoi(rest[0]);
    (void)count;
    start_worker(self);
    for (int left = rounds; left > 0; left--) {
        CUdeviceptr memory;
        double begun = now();
        CUresult result = d.mem_alloc(&memory, 2 * MIB);
        if (result == 0)
            ok(d.mem_free(memory));
        slower(self, now() - begun);
        if (result != 0) {
            shared->worker[self].code = result;
            if (shared->worker[self].failures++ == 0)
                left = 20;
        } else if (shared->worker[self].failures > 0) {
            shared->worker[self].code = -1;
        }
        usleep(2000);
    }
}

static void await_all(int count) {
    for (int self = 0; self < count; self++)
        while (!shared->worker[self].runs)
            usleep(1000);
}

static void write_and_wait(const char *path, uint64_t held, int workers) {
    char draft[4096], done[4096];
    snprintf(draft, sizeof draft, "%s.draft", path);
    snprintf(done, sizeof done, "%s.done", path);
    FILE *file = fopen(draft, "w");
    fprintf(file, "held=%llu workers=%d", (unsigned long long)held, workers);
    fclose(file);
    rename(draft, path);
    while (access(done, F_OK) != 0)
        usleep(1000);
}

/* Usage: storm race WORKERS ROUNDS CHUNK FITS
 *        storm kill WORKERS KILLS RESULT-FILE
 *        storm steady WORKERS ROUNDS */
int main(int argc, char **argv) {
    if (argc < 4)
        return 95;
    int count = atoi(argv[2]);
    /* The workers end with this process, and this process ends in any case. */
    alarm(80);
    /* Loaded and patched once; each worker initializes it for itself. */
    d = driver_of(open_driver(RTLD_NOW));
    dlopen("libnvidia-ml.so.1", RTLD_NOW);
    char **rest = argv + 3;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &attributes, (unsigned)count);
    void (*work)(int, int, char **) = !strcmp(argv[1], "race")   ? race
                                      : !strcmp(argv[1], "kill") ? churn
                                                                 : steady;
    pid_t pids[MOST];
    for (int self = 0; self < count; self++)
        pids[self] = worker(work, self, count, rest);
    int bad = 0, status;
    if (work == churn) {
        unsigned seed = 1;
        await_all(count);
        for (int kills = atoi(rest[0]); kills > 0; kills--) {
            usleep(rand_r(&seed) % 4000);
            /* Prefer one that allocates over one that has just begun. */
            int self = 0;
            for (int tries = 0; tries < 4; tries++) {
                self = (int)(rand_r(&seed) % (unsigned)count);
                if (shared->worker[self].runs)
                    break;
            }
            kill(pids[self], SIGKILL);
            waitpid(pids[self], &status, 0);
            if (!WIFSIGNALED(status))
                bad++;
            pids[self] = worker(work, self, count, rest);
        }
        await_all(count);
        usleep(100000);
        shared->stop = 1;
        uint64_t held = 0;
        for (int self = 0; self < count; self++) {
            while (!shared->worker[self].reported && waitpid(pids[self], &status, WNOHANG) == 0)
                usleep(1000);
            if (!shared->worker[self].reported)
                bad++;
            held += shared->worker[self].held;
        }
        write_and_wait(rest[1], held, count);
        for (int self = 0; self < count; self++)
            kill(pids[self], SIGKILL);
    }
    uint64_t slowest = 0;
    int failed = 0, code = 0;
    for (int self = 0; self < count; self++) {
        waitpid(pids[self], &status, 0);
        if (work != churn && (!WIFEXITED(status) || WEXITSTATUS(status) != 0)) {
            fprintf(stderr, "worker %d: status %d\n", self, status);
            bad++;
        }
        if (shared->worker[self].slowest_us > slowest)
            slowest = shared->worker[self].slowest_us;
        failed += shared->worker[self].failures > 0;
        if (failed == 1 || shared->worker[self].code == code)
            code = shared->worker[self].code;
        else
            code = -2;
    }
    printf("bad=%d wrong=%d slowest_us=%llu failed=%d code=%d\n", bad, shared->wrong,
           (unsigned long long)slowest, failed, code);
    return 0;
}
