/* A program whose thread is away now and then, like one that prepares its next step:
 *   late US LAUNCHES AWAY_MS SECONDS
 * Launches LAUNCHES kernels of US microseconds, and then does something else. Prints for how much of the time the
 * device worked, in thousandths. */
#include "any.h"

int main(int argc, char **argv) {
    if (argc < 5)
        return 2;
    uint64_t us = (uint64_t)atoi(argv[1]), launches = 0;
    int each = atoi(argv[2]), away = atoi(argv[3]);
    CUstream stream;
    library = open_driver(RTLD_NOW);
    struct driver d = driver_of(library);
    start_driver(&d);
    CUfunction kernel = spin_kernel(&d);
    ok(d.stream_create(&stream, 1));
    for (int i = 0; i < 200; i++)
        ok(spin(&d, kernel, us, stream));
    ok(d.ctx_synchronize());
    double start = now();
    while (now() - start < atof(argv[4])) {
        for (int i = 0; i < each; i++, launches++)
            ok(spin(&d, kernel, us, stream));
        usleep(away * 1000);
    }
    ok(d.ctx_synchronize());
    printf("permille=%.0f\n", (double)launches * us / (now() - start) / 1e3);
    return 0;
}
