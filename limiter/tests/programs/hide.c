/* A process holds memory and hides; another process of the session hides too, and requests memory that is not left.
 *   hide HOLDER ASKER
 * Ways to hide: "no"; "fds", closes all descriptors; "pids", lives in a pid namespace with its own /proc; "first",
 * is the first process of a pid namespace and sees the /proc outside; "user", drops root after its start; "root",
 * changes its root to an empty directory. They can be combined: "fds+root". A holder with "child" leaves a copy of
 * itself that lives on.
 * Prints the result of the allocation while the holder lived, and how long after the holder was killed it was
 * granted. */
#include "driver.h"
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static struct { atomic_int ready, die, left; } *shared;
static struct driver d;

static int has(const char *ways, const char *way) { return strstr(ways, way) != NULL; }

/* Forks and continues as the child, which ends with its parent. */
static void go_on_as_child(void) {
    int status;
    pid_t child = fork();
    if (child) {
        waitpid(child, &status, 0);
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 0);
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

/* Continues in a pid namespace; not as its first process, which cannot kill itself. */
static void enter_pids(void) {
    if (unshare(CLONE_NEWPID | CLONE_NEWNS)) {
        perror("unshare");
        exit(77);
    }
    go_on_as_child();
    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    mount("proc", "/proc", "proc", 0, NULL);
    go_on_as_child();
}

/* Continues as the first process of a pid namespace, which only processes outside can kill. */
static void become_first(void) {
    int status;
    if (unshare(CLONE_NEWPID)) {
        perror("unshare");
        exit(77);
    }
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        return;
    }
    while (!shared->die)
        if (waitpid(child, &status, WNOHANG))
            _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
        else
            usleep(500);
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    _exit(0);
}

static void hide(const char *ways) {
    if (has(ways, "child") && fork() == 0) {
        while (!shared->left)
            usleep(500);
        _exit(0);
    }
    if (has(ways, "fds"))
        syscall(SYS_close_range, 3u, ~0u, 0u);
    if (has(ways, "user") && setresuid(65534, 65534, 65534)) {
        perror("setresuid");
        exit(77);
    }
    if (has(ways, "root") && (chroot(getenv("EMPTY")) || chdir("/"))) {
        perror("chroot");
        exit(77);
    }
}

static void hold(const char *ways) {
    CUdeviceptr memory;
    if (has(ways, "pids"))
        enter_pids();
    if (has(ways, "first"))
        become_first();
    start_driver(&d);
    ok(d.mem_alloc(&memory, 1024 * MIB));
    hide(ways);
    shared->ready = 1;
    while (!shared->die)
        usleep(500);
    raise(SIGKILL);
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    d = driver_of(open_driver(RTLD_NOW));
    dlopen("libnvidia-ml.so.1", RTLD_NOW);
    alarm(60);
    pid_t holder = fork();
    if (holder == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        hold(argv[1]);
    }
    int status;
    while (!shared->ready)
        if (waitpid(holder, &status, WNOHANG))
            return WEXITSTATUS(status);
        else
            usleep(1000);
    if (has(argv[2], "pids"))
        enter_pids();
    start_driver(&d);
    hide(argv[2]);
    CUdeviceptr memory;
    int alive = 0;
    for (int tries = 0; tries < 5; tries++) {
        alive = d.mem_alloc(&memory, 1536 * MIB);
        if (alive == 0)
            break;
        usleep(20000);
    }
    printf("alive=%d ", alive);
    fflush(stdout);
    shared->die = 1;
    double died = now();
    int dead = d.mem_alloc(&memory, 1536 * MIB);
    while (dead != 0 && now() - died < 2) {
        usleep(1000);
        dead = d.mem_alloc(&memory, 1536 * MIB);
    }
    printf("dead=%d ms=%d\n", dead, (int)((now() - died) * 1000));
    shared->left = 1;
    return 0;
}
