/* What a program and its libraries see of the loader: the next definition of a function (RTLD_NEXT), the library
 * and name of an address, a library that the caller's RUNPATH leads to, and the order of the libraries. */
#include "driver.h"
#include <link.h>

int cuDriverGetVersion(int *version);
int load_inner(void);

static const char *last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static int name_one(struct dl_phdr_info *info, size_t size, void *separator) {
    (void)size;
    printf("%s%s", *(const char **)separator, last_part(info->dlpi_name));
    *(const char **)separator = ",";
    return 0;
}

int main(void) {
    int version = 0;
    ok(cuDriverGetVersion(&version));
    printf("version=%d inner=%d ", version, load_inner());
    void *library = open_driver(RTLD_NOW);
    for (const char *const *name = (const char *[]){"cuLaunchKernel", "cuMemAlloc_v2", "cuInit", NULL}; *name; name++) {
        Dl_info of = {0};
        void *at = need(library, *name);
        int same = at == need(RTLD_DEFAULT, *name) && dladdr(at, &of) && of.dli_saddr == at;
        printf("%s=%d:%s:%s ", *name, same, last_part(of.dli_fname), of.dli_sname);
    }
    for (const char *const *name = (const char *[]){"pthread_create", "pthread_cond_wait", "dlopen", "dlsym", NULL}; *name; name++) {
        Dl_info of = {0};
        dladdr(need(RTLD_DEFAULT, *name), &of);
        printf("%s=%s ", *name, last_part(of.dli_fname));
    }
    const char *separator = "";
    printf("\nlibraries=");
    dl_iterate_phdr(name_one, &separator);
    struct driver d = driver_of(library);
    start_driver(&d);
    printf("\n");
    say_limit(&d);
    return 0;
}
