/* Prints which of the given names can be found by dlsym and by cuGetProcAddress: names LIBRARY NAME... */
#include "driver.h"

int main(int argc, char **argv) {
    void *library = dlopen(argv[1], RTLD_NOW);
    CUresult (*get)(const char *, void **, int, uint64_t) = NULL;
    if (library)
        *(void **)&get = dlsym(library, "cuGetProcAddress");
    int asked = 0, found = 0, answered = 0;
    for (int i = 2; i < argc; i++, asked++) {
        void *address = NULL;
        found += dlsym(library, argv[i]) != NULL;
        answered += get && get(argv[i], &address, 13000, 0) == 0 && address;
    }
    printf("asked=%d found=%d answered=%d\n", asked, found, answered);
    return library == NULL || argc < 3;
}
