/* Kernels of one function whose time depends on an argument, waited for after every eight of them:
 *   varying [percent of short ones] [microseconds of the others] [seconds]
 * With 0 microseconds the times have a heavy tail, and two grids alternate. Prints which part of the time the
 * kernels took. */
#include "driver.h"

enum { STEP = 8, SHORT_US = 20, LONGEST_US = 20000 };

static uint32_t drawn = 7;

/* A pseudo-random number below 2^24. */
static uint32_t draw(void) {
    drawn = drawn * 1664525 + 1013904223;
    return drawn >> 8;
}

/* Twice as long comes half as often, up to the longest. */
static uint64_t tail_us(void) {
    uint64_t us = SHORT_US;
    while (draw() & 1)
        us *= 2;
    return us < LONGEST_US ? us : LONGEST_US;
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 64;
    unsigned percent = (unsigned)atoi(argv[1]), long_us = (unsigned)atoi(argv[2]);
    double seconds = atof(argv[3]);
    struct driver d = driver_of(open_driver(RTLD_NOW));
    start_driver(&d);
    CUfunction kernel = spin_kernel(&d);
    double start = now();
    uint64_t total_us = 0;
    while (now() - start < seconds) {
        for (int i = 0; i < STEP; i++) {
            uint64_t us = long_us ? (draw() % 100 < percent ? SHORT_US : long_us) : tail_us(), ns = us * 1000;
            void *params[] = {&ns};
            unsigned blocks = long_us ? 1000 : 1000 + (unsigned)(i % 2);
            ok(d.launch(kernel, blocks, 1, 1, 128, 1, 1, 0, NULL, params, NULL));
            total_us += us;
        }
        ok(d.ctx_synchronize());
    }
    printf("permille=%.0f\n", (double)total_us / 1e3 / (now() - start));
    return 0;
}
