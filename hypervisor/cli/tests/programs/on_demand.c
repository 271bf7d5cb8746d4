/* Does to the first device what the lines of its input say, and answers each with a line:
 *   take N   allocates N MiB         give   frees the last
 *   info     total and free MiB      (end)  leaves */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)
#define FIND(name) void *name = dlsym(library, #name); if (!name) return 98

int main(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        return 99;
    FIND(cuInit);
    FIND(cuCtxCreate_v2);
    FIND(cuMemAlloc_v2);
    FIND(cuMemFree_v2);
    FIND(cuMemGetInfo_v2);
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
        } else {
            printf("what?\n");
        }
        fflush(stdout);
    }
    return 0;
}
