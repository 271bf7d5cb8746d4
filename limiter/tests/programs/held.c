/* Streams wait for a value. The program launches, writes the value, and waits for the work:
 *   held STREAMS LAUNCHES US ROUNDS
 * LAUNCHES counts per stream. Prints the longest round. */
#include "any.h"
#include <sys/mman.h>

int main(int argc, char **argv) {
    if (argc < 5)
        return 2;
    enum { MOST = 64 };
    int streams = atoi(argv[1]), launches = atoi(argv[2]), rounds = atoi(argv[4]);
    uint64_t us = (uint64_t)atoi(argv[3]);
    CUstream stream[MOST];
    CUdeviceptr word;
    library = open_driver(RTLD_NOW);
    struct driver d = driver_of(library);
    start_driver(&d);
    CUfunction kernel = spin_kernel(&d);
    load_spin(&d, kernel);
    volatile uint32_t *value = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must("cuMemHostRegister_v2", (void *)value, (size_t)4096, 2);
    must("cuMemHostGetDevicePointer_v2", &word, (void *)value, 0);
    for (int i = 0; i < streams && i < MOST; i++)
        ok(d.stream_create(&stream[i], 1));
    double start = now(), longest = 0;
    for (int round = 1; round <= rounds; round++) {
        double begun = now();
        for (int i = 0; i < streams; i++)
            must("cuStreamWaitValue32_v2", stream[i], word, (uint32_t)round, 0);
        for (int n = 0; n < launches; n++)
            for (int i = 0; i < streams; i++)
                ok(spin(&d, kernel, us, stream[i]));
        *value = (uint32_t)round;
        ok(d.ctx_synchronize());
        double took = now() - begun;
        longest = took > longest ? took : longest;
    }
    printf("longest_ms=%.0f ms=%.0f\n", longest * 1e3, (now() - start) * 1e3);
    return 0;
}
