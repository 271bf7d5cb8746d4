/* Starts a program in the way that the first argument names: start WAY PROGRAM ARGUMENT...
 * Returns the program's exit status; 77: the system does not allow this way. */
#define _GNU_SOURCE
#include <errno.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <spawn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOT_ALLOWED 77
#define NOBODY 65534

extern char **environ;

static void run(char **program) {
    execvp(program[0], program);
    perror(program[0]);
    _exit(126);
}

static int ended(pid_t child) {
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int not_allowed(const char *what) {
    fprintf(stderr, "not allowed here: %s: %s\n", what, strerror(errno));
    return NOT_ALLOWED;
}

/* Like a service manager or Ray: two forks and a new kernel session. The pipe closes when the last process that the
 * program has left ends. */
static int daemonised(char **program) {
    int pipes[2];
    char byte;
    if (pipe(pipes) != 0)
        return 125;
    pid_t child = fork();
    if (child == 0) {
        close(pipes[0]);
        setsid();
        if (fork() == 0)
            run(program);
        _exit(0);
    }
    close(pipes[1]);
    int status = ended(child);
    while (read(pipes[0], &byte, 1) > 0)
        ;
    return status;
}

/* Denied by a sandbox that allows no more than a CUDA program needs. Calls that a kernel may lack get ENOSYS. */
static int in_a_sandbox(char **program) {
    static const int refused[] = {
        SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_perf_event_open, SYS_userfaultfd, SYS_bpf, SYS_kcmp,
        SYS_membarrier, SYS_unshare, SYS_setns, SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_keyctl, SYS_add_key,
        SYS_sched_setscheduler, SYS_setpriority, SYS_name_to_handle_at, SYS_open_by_handle_at, SYS_personality,
    };
    static const int unknown[] = {SYS_clone3, SYS_rseq, SYS_statx, SYS_io_uring_setup, 434 /* pidfd_open */,
                                  436 /* close_range */, 437 /* openat2 */, 439 /* faccessat2 */, 449 /* futex_waitv */};
    enum { REFUSED = sizeof refused / sizeof *refused, UNKNOWN = sizeof unknown / sizeof *unknown };
    struct sock_filter filter[2 * (REFUSED + UNKNOWN) + 2];
    int n = 0;
    filter[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < REFUSED + UNKNOWN; i++) {
        unsigned call = (unsigned)(i < REFUSED ? refused[i] : unknown[i - REFUSED]);
        unsigned answer = SECCOMP_RET_ERRNO | (i < REFUSED ? EPERM : ENOSYS);
        filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1);
        filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, answer);
    }
    filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog all = {(unsigned short)n, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all) != 0)
        return not_allowed("seccomp");
    run(program);
    return 0;
}

/* The kernel's own rule against code that can be written: Linux 6.3. */
static int without_writable_code(char **program) {
    enum { SET_MDWE = 65, REFUSE_EXEC_GAIN = 1 };
    if (prctl(SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0) != 0)
        return not_allowed("PR_SET_MDWE");
    run(program);
    return 0;
}

static int read_only_root(char **program) {
    if (unshare(CLONE_NEWNS) != 0)
        return not_allowed("unshare");
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) != 0)
        return not_allowed("mount");
    struct statvfs root;
    if (statvfs("/", &root) != 0 || !(root.f_flag & ST_RDONLY))
        return not_allowed("a root that cannot be written to");
    run(program);
    return 0;
}

static int other_user(char **program) {
    if (setgroups(0, NULL) != 0 || setresgid(NOBODY, NOBODY, NOBODY) != 0 || setresuid(NOBODY, NOBODY, NOBODY) != 0)
        return not_allowed("another user");
    run(program);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 64;
    const char *way = argv[1];
    char **program = argv + 2;
    pid_t child;
    if (!strcmp(way, "vfork")) {
        child = vfork();
        if (child == 0) {
            execvp(program[0], program);
            _exit(126);
        }
        return ended(child);
    }
    if (!strcmp(way, "posix_spawn"))
        return posix_spawnp(&child, program[0], NULL, NULL, program, environ) == 0 ? ended(child) : 126;
    if (!strcmp(way, "daemon"))
        return daemonised(program);
    if (!strcmp(way, "sandbox"))
        return in_a_sandbox(program);
    if (!strcmp(way, "mdwe"))
        return without_writable_code(program);
    if (!strcmp(way, "read-only"))
        return read_only_root(program);
    if (!strcmp(way, "user"))
        return other_user(program);
    return 64;
}
