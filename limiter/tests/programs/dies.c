/* Processes that launch work and die at once: dies HOW MANY SECONDS MS US.
 * For SECONDS, MANY children at a time each launch MS milliseconds of kernels of US microseconds and then die
 * without waiting for them. HOW: "kill" (SIGKILL), "_exit", "exit", "stop" (stopped until the work is done, and
 * then killed), or "handler" (an exit handler launches for MS). With the prefix "exec-" each child is a program of
 * its own. Prints how many died. */
#include "driver.h"
#include <signal.h>
#include <sys/wait.h>

static struct driver d;
static CUfunction kernel;
static double ms, us;

static void launch_for_long(void) {
    for (double start = now(); now() - start < ms / 1e3;)
        (void)spin(&d, kernel, (uint64_t)us, NULL);
}

static void live_and_die(const char *how) {
    d = driver_of(open_driver(RTLD_NOW));
    if (!strcmp(how, "handler"))
        atexit(launch_for_long);
    start_driver(&d);
    kernel = spin_kernel(&d);
    if (!strcmp(how, "handler"))
        exit(0);
    for (double launched = 0; launched < ms * 1e3; launched += us)
        ok(spin(&d, kernel, (uint64_t)us, NULL));
    if (!strcmp(how, "stop"))
        raise(SIGSTOP);
    if (!strcmp(how, "exit"))
        exit(0);
    if (!strcmp(how, "kill"))
        raise(SIGKILL);
    _exit(0);
}

int main(int argc, char **argv) {
    if (argc < 6)
        return 2;
    const char *how = argv[1];
    int many = atoi(argv[2]), living = 0, died = 0;
    double seconds = atof(argv[3]);
    ms = atof(argv[4]);
    us = atof(argv[5]);
    if (!many)
        live_and_die(how);
    int exec = !strncmp(how, "exec-", 5);
    how += exec ? 5 : 0;
    for (double start = now(); living || now() - start < seconds;) {
        if (living < many && now() - start < seconds) {
            pid_t child = fork();
            if (!child) {
                if (!exec)
                    live_and_die(how);
                execl("/proc/self/exe", argv[0], how, "0", "0", argv[4], argv[5], NULL);
                _exit(96);
            }
            living++;
            continue;
        }
        int status;
        pid_t child = waitpid(-1, &status, WUNTRACED);
        if (child < 0)
            return 3;
        if (WIFSTOPPED(status)) {
            usleep((useconds_t)(ms * 1e3));
            kill(child, SIGKILL);
            continue;
        }
        living--;
        died++;
        if (WIFEXITED(status) && WEXITSTATUS(status))
            return WEXITSTATUS(status);
    }
    printf("died=%d\n", died);
    return 0;
}
