/* Kills its process with SIGKILL before the call of that number (SLUICE_KILL_AT) that changes something in a folder of
 * allocations. Preloaded by a test. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static atomic_int count;

static void step(const char *path) {
    const char *at = getenv("SLUICE_KILL_AT");
    if (at == NULL || path == NULL || strstr(path, "/allocations/") == NULL) return;
    if (atomic_fetch_add(&count, 1) + 1 == atoi(at)) kill(getpid(), SIGKILL);
}

static void step_of(int file) {
    char name[64], path[PATH_MAX];
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    ssize_t length = readlink(name, path, sizeof path - 2);
    if (length <= 0) return;
    strcpy(path + length, "/");
    step(path);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int rename(const char *from, const char *to) { step(to); return NEXT(rename)(from, to); }
int mkdir(const char *path, mode_t mode) { step(path); return NEXT(mkdir)(path, mode); }
int chmod(const char *path, mode_t mode) { step(path); return NEXT(chmod)(path, mode); }
int unlink(const char *path) { step(path); return NEXT(unlink)(path); }
int rmdir(const char *path) { step(path); return NEXT(rmdir)(path); }
int unlinkat(int folder, const char *path, int flags) {
    if (path[0] == '/') step(path); else step_of(folder);
    return NEXT(unlinkat)(folder, path, flags);
}
ssize_t write(int file, const void *bytes, size_t length) {
    step_of(file);
    return NEXT(write)(file, bytes, length);
}
int open64(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;
    va_end(more);
    if (flags & O_CREAT) step(path);
    return NEXT(open64)(path, flags, mode);
}
