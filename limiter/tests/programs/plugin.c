/* A library before the driver in a program's list of libraries, which looks up the next definition of a driver
 * function. It loads a library by a name that only its own RUNPATH leads to. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#ifdef INNER
int inner(void) { return 7; }
#else
int cuDriverGetVersion(int *version) {
    int (*next)(int *);
    *(void **)&next = dlsym(RTLD_NEXT, "cuDriverGetVersion");
    Dl_info of = {0};
    if (!next || !dladdr(*(void **)&next, &of))
        return -1;
    printf("next=%s ", strrchr(of.dli_fname, '/') + 1);
    return next(version);
}

int load_inner(void) {
    int (*inner)(void);
    void *library = dlopen("libinner.so", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return -1;
    }
    *(void **)&inner = dlsym(library, "inner");
    return inner();
}
#endif
