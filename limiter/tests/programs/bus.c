/* SIGBUS in a program that uses the driver: what its own handler sees, and the effect on the session's page when
 * that is truncated. See usage below and tests/bus_errors.rs. */
#include "driver.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

static struct driver d;
/* A file of the program's own, two pages, truncated to one. */
static char *own;
static char other_stack[1 << 16];
static __thread sigjmp_buf again;

/* At once, even in a signal handler. */
static void say(const char *format, ...) {
    char line[256];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (write(1, line, (size_t)length) != length)
        _exit(94);
}

static const char *where(void) {
    char here;
    return &here >= other_stack && &here < other_stack + sizeof other_stack ? "other" : "same";
}

static void say_mask(void) {
    sigset_t mask;
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    say("  on the %s stack, SIGUSR1 %d, SIGBUS %d\n", where(), sigismember(&mask, SIGUSR1),
        sigismember(&mask, SIGBUS));
}

static void plain(int number) {
    say("plain handler: %d\n", number);
    say_mask();
    siglongjmp(again, 1);
}

static void with_info(int number, siginfo_t *info, void *context) {
    long place = (char *)info->si_addr - own;
    int of_own = info->si_code > 0;
    say("handler: %d, code %d, place %ld, value %d, from this process %d, context %d\n", number,
        info->si_code, of_own ? place : -1, of_own ? 0 : info->si_value.sival_int,
        !of_own && info->si_pid == getpid(), context != NULL);
    say_mask();
    if (of_own)
        siglongjmp(again, 1);
    errno = 0;
}

static void (*former)(int);

/* Passes on only the signal's number, like handlers set by signal(2). */
static void passing_on(int number) {
    say("passing on: %d\n", number);
    if (former == SIG_DFL)
        signal(SIGBUS, SIG_DFL);
    else
        former(number);
}

static void set_handler(const char *which) {
    struct sigaction action = {0};
    sigemptyset(&action.sa_mask);
    if (!strcmp(which, "default"))
        return;
    if (!strcmp(which, "passing-on")) {
        former = signal(SIGBUS, passing_on);
        return;
    }
    if (!strcmp(which, "ignored")) {
        action.sa_handler = SIG_IGN;
    } else if (!strcmp(which, "plain")) {
        action.sa_handler = plain;
    } else if (!strcmp(which, "info")) {
        action.sa_sigaction = with_info;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
        sigaddset(&action.sa_mask, SIGUSR1);
    } else if (!strcmp(which, "once")) {
        action.sa_sigaction = with_info;
        action.sa_flags = SA_SIGINFO | SA_RESETHAND | SA_NODEFER;
    } else {
        exit(93);
    }
    sigaction(SIGBUS, &action, NULL);
}

/* Accesses the truncated part of the program's own file. */
static void touch(void) {
    if (sigsetjmp(again, 1) == 0)
        say("read %d\n", ((volatile char *)own)[4096 + 7]);
    else
        say("recovered\n");
}

static void *touch_in_thread(void *unused) {
    touch();
    return unused;
}

static void send(void) {
    if (sigsetjmp(again, 1) == 0) {
        kill(getpid(), SIGBUS);
        sigqueue(getpid(), SIGBUS, (union sigval){.sival_int = 42});
        say("went on\n");
    } else {
        say("recovered\n");
    }
}

/* The signal is pending until the program unblocks it. */
static void hold_back(void) {
    sigset_t only, pending;
    sigemptyset(&only);
    sigaddset(&only, SIGBUS);
    pthread_sigmask(SIG_BLOCK, &only, NULL);
    kill(getpid(), SIGBUS);
    usleep(100000);
    sigpending(&pending);
    say("pending: %d\n", sigismember(&pending, SIGBUS));
    if (sigsetjmp(again, 0) == 0)
        pthread_sigmask(SIG_UNBLOCK, &only, NULL);
    pthread_sigmask(SIG_UNBLOCK, &only, NULL);
}

static pthread_t first_thread;
static int ends[2];

static void *interrupt(void *unused) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    usleep(50000);
    pthread_kill(first_thread, SIGBUS);
    usleep(50000);
    if (write(ends[1], "x", 1) != 1)
        _exit(92);
    return unused;
}

/* The signal arrives while the program waits in a system call. */
static void wait_in_read(void) {
    pthread_t thread;
    char byte = 0;
    first_thread = pthread_self();
    if (pipe(ends) != 0)
        exit(91);
    pthread_create(&thread, NULL, interrupt, NULL);
    if (sigsetjmp(again, 1) == 0) {
        ssize_t got = read(ends[0], &byte, 1);
        say("read: %zd, %s\n", got, got < 0 ? strerror(errno) : "-");
    } else {
        say("recovered\n");
    }
    pthread_join(thread, NULL);
}

static void in_child(void (*event)(void)) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        event();
        exit(0);
    }
    waitpid(child, &status, 0);
    say("child: exit %d, signal %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1,
        WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

static void happen(const char *event) {
    pthread_t thread;
    if (!strcmp(event, "access")) {
        touch();
    } else if (!strcmp(event, "access-in-thread")) {
        pthread_create(&thread, NULL, touch_in_thread, NULL);
        pthread_join(thread, NULL);
    } else if (!strcmp(event, "access-in-child")) {
        in_child(touch);
    } else if (!strcmp(event, "sent")) {
        send();
    } else if (!strcmp(event, "sent-to-child")) {
        in_child(send);
    } else if (!strcmp(event, "hold-back")) {
        hold_back();
    } else if (!strcmp(event, "wait")) {
        wait_in_read();
    } else {
        exit(90);
    }
}

static void cut(const char *page, off_t length) {
    if (truncate(page, length) != 0)
        say("%s: %s\n", page, strerror(errno));
}

/* Calls while the page is gone. */
static void use_page(const char *page) {
    CUdeviceptr memory;
    CUresult first = 0;
    cut(page, 4096);
    for (int i = 0; i < 100; i++) {
        CUresult result = d.mem_alloc(&memory, MIB);
        if (i == 0)
            first = result;
        else if (result != first)
            say("%d after %d\n", result, first);
    }
    say("allocations: %d\n", first);
}

/* HANDLER ORDER EVENT TIMES [PAGE]: the program's own handler, set before the driver is used or after. */
static int host(char **rest) {
    int after = !strcmp(rest[1], "after"), times = atoi(rest[3]);
    CUdeviceptr memory;
    stack_t stack = {.ss_sp = other_stack, .ss_size = sizeof other_stack};
    sigaltstack(&stack, NULL);
    int file = memfd_create("own", 0);
    if (file < 0 || ftruncate(file, 8192) != 0)
        return 89;
    own = mmap(NULL, 8192, PROT_READ, MAP_SHARED, file, 0);
    if (ftruncate(file, 4096) != 0)
        return 89;
    if (!after)
        set_handler(rest[0]);
    start_driver(&d);
    ok(d.mem_alloc(&memory, MIB));
    if (after) {
        set_handler(rest[0]);
        /* The longest time for which it may go unnoticed. */
        usleep(150000);
    }
    if (!strcmp(rest[2], "blocked")) {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, NULL);
        usleep(150000);
    } else {
        for (; times > 0; times--)
            happen(rest[2]);
    }
    if (rest[4])
        use_page(rest[4]);
    say("end\n");
    return 0;
}

static atomic_int wrong, refused, calls;

static CUcontext context;

static void *allocate(void *unused) {
    CUresult result = 0;
    ok(d.ctx_set(context));
    while (result != 800) {
        CUdeviceptr memory;
        size_t free_bytes, total;
        result = d.mem_alloc(&memory, 4096);
        if (result == 0)
            ok(d.mem_free(memory));
        else if (result == 2)
            refused++;
        else if (result != 800)
            wrong++;
        CUresult info = d.mem_info(&free_bytes, &total);
        if (info != 0 && info != 800)
            wrong++;
        calls++;
    }
    return unused;
}

static CUfunction kernel;

static void *launch(void *unused) {
    CUresult result = 0;
    ok(d.ctx_set(context));
    while (result != 800) {
        result = spin(&d, kernel, 20, NULL);
        if (result != 0 && result != 800)
            wrong++;
        calls++;
    }
    return unused;
}

/* PAGE THREADS LAUNCHING ROUNDS: in each round a process of its own, whose page is truncated while its threads work
 * as fast as they can. */
static int storm(char **rest) {
    int threads = atoi(rest[1]), launching = atoi(rest[2]), rounds = atoi(rest[3]), bad = 0;
    unsigned seed = 1;
    for (int round = 0; round < rounds; round++) {
        unsigned pause = rand_r(&seed) % 3000;
        off_t length = (off_t[]){0, 4096, 300000}[rand_r(&seed) % 3];
        pid_t child = fork();
        if (child == 0) {
            pthread_t thread[64];
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            alarm(30);
            context = start_driver(&d);
            if (launching > 0)
                kernel = spin_kernel(&d);
            for (int i = 0; i < threads + launching; i++)
                pthread_create(&thread[i], NULL, i < threads ? allocate : launch, NULL);
            while (calls < 10)
                usleep(100);
            usleep(pause);
            cut(rest[0], length);
            for (int i = 0; i < threads + launching; i++)
                pthread_join(thread[i], NULL);
            if (wrong > 0 || refused > threads)
                say("wrong %d, refused %d\n", wrong, refused);
            _exit(wrong > 0 || refused > threads);
        }
        int status;
        waitpid(child, &status, 0);
        if (status != 0) {
            bad++;
            say("round %d: status %x\n", round, (unsigned)status);
        }
        unlink(rest[0]);
    }
    say("rounds=%d bad=%d\n", rounds, bad);
    return 0;
}

/* Usage: bus host HANDLER ORDER EVENT TIMES [PAGE]
 *        bus storm PAGE THREADS LAUNCHING ROUNDS */
int main(int argc, char **argv) {
    struct rlimit no_core = {0, 0};
    if (argc < 6)
        return 95;
    setrlimit(RLIMIT_CORE, &no_core);
    alarm(85);
    /* Load and patch once. */
    d = driver_of(open_driver(RTLD_NOW));
    dlopen("libnvidia-ml.so.1", RTLD_NOW);
    return !strcmp(argv[1], "storm") ? storm(argv + 2) : host(argv + 2);
}
