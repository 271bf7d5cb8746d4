/* Allocates 64 MiB, runs a few kernels one after the other, and prints its session's use in MiB. With an argument
 * it then continues to launch. */
#include "driver.h"

int main(int argc, char **argv) {
    (void)argv;
    struct driver d = driver_of(open_driver(RTLD_NOW));
    CUdeviceptr memory;
    size_t free = 0, total = 0;
    start_driver(&d);
    CUfunction kernel = spin_kernel(&d);
    ok(d.mem_alloc(&memory, LITTLE));
    for (int round = 0; round < 100 || argc > 1; round++) {
        ok(spin(&d, kernel, 1000, NULL));
        ok(d.ctx_synchronize());
        if (round != 50)
            continue;
        ok(d.mem_info(&free, &total));
        printf("used=%zu\n", (total - free) / MIB);
        fflush(stdout);
    }
    return 0;
}
