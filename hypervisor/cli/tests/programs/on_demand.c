/* Does to the first device what the lines of its input say, and answers each with a line:
 *   take N   allocates N MiB         give   frees the last
 *   info     total and free MiB      (end)  leaves
 *   size N   MiB of device N
 *   become N the user and group N    hide   closes all descriptors and overwrites its environment, as
 *                                           a daemon does that shows its state in its title */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define FIND(name) void *name = dlsym(library, #name); if (!name) return 98

extern char **environ;

static int become(unsigned user) {
    return setresgid(user, user, user) || setresuid(user, user, user);
}

static int hide(void) {
    struct rlimit most;
    char **first = environ, **variable = environ;
    while (*variable)
        variable++;
    if (variable > first)
        memset(*first, 0, (size_t)(variable[-1] + strlen(variable[-1]) - *first));
    if (getrlimit(RLIMIT_NOFILE, &most))
        return 1;
    for (int number = 3; number < (int)most.rlim_cur; number++)
        close(number);
    return 0;
}

int main(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        return 99;
    FIND(cuInit);
    FIND(cuCtxCreate_v2);
    FIND(cuMemAlloc_v2);
    FIND(cuMemFree_v2);
    FIND(cuMemGetInfo_v2);
    FIND(cuDeviceTotalMem_v2);
    uint64_t held[64];
    void *context;
    int count = 0, result = ((int (*)(unsigned))cuInit)(0);
    if (result == 0)
        result = ((int (*)(void **, unsigned, int))cuCtxCreate_v2)(&context, 0, 0);
    printf("ready %d\n", result);
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        if (!strncmp(line, "take ", 5) && count < 64) {
            result = ((int (*)(uint64_t *, size_t))cuMemAlloc_v2)(&held[count],
                                                                  strtoul(line + 5, NULL, 10) * MIB);
            count += result == 0;
            printf("%d\n", result);
        } else if (!strcmp(line, "give\n") && count > 0) {
            printf("%d\n", ((int (*)(uint64_t))cuMemFree_v2)(held[--count]));
        } else if (!strcmp(line, "info\n")) {
            size_t available, total;
            result = ((int (*)(size_t *, size_t *))cuMemGetInfo_v2)(&available, &total);
            printf("%zu %zu\n", result ? 0 : total / MIB, result ? 0 : available / MIB);
        } else if (!strncmp(line, "size ", 5)) {
            size_t total;
            result = ((int (*)(size_t *, int))cuDeviceTotalMem_v2)(&total, atoi(line + 5));
            printf("%zu\n", result ? 0 : total / MIB);
        } else if (!strncmp(line, "become ", 7)) {
            printf("%d\n", become((unsigned)strtoul(line + 7, NULL, 10)));
        } else if (!strcmp(line, "hide\n")) {
            printf("%d\n", hide());
        } else {
            printf("what?\n");
        }
        fflush(stdout);
    }
    return 0;
}
