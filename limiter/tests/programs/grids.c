/* Kernels on ever new grids: grids [how] [seconds] [launches of each]. */
#include "driver.h"

/* Launches that are queued together. */
enum { STEP = 8 };

static struct driver d;
static CUfunction kernel;

/* The n-th grid; none occurs twice. */
static unsigned blocks_of(uint64_t n) { return (unsigned)(10000 + n * 7919 % 80021); }

/* Duration of a kernel that does some work for each of its blocks, 150 to 550 us. */
static uint64_t ns_of(unsigned blocks) { return 100000 + 5 * (uint64_t)blocks; }

static void launch(unsigned blocks, uint64_t ns) {
    void *params[] = {&ns};
    ok(d.launch(kernel, blocks, 1, 1, 128, 1, 1, 0, NULL, params, NULL));
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 64;
    const char *how = argv[1];
    double seconds = atof(argv[2]);
    uint64_t each = strtoull(argv[3], NULL, 10);
    int sparse = !strcmp(how, "sparse"), turns = !strcmp(how, "turns"), against = !strcmp(how, "against");
    if (each == 0 || !(sparse || turns || against || !strcmp(how, "dense")))
        return 64;
    d = driver_of(open_driver(RTLD_NOW));
    start_driver(&d);
    kernel = spin_kernel(&d);
    double start = now();
    uint64_t total = 0, count = 0;
    while (now() - start < seconds) {
        uint64_t step = 0;
        for (int i = 0; i < STEP; i++, count++) {
            unsigned blocks = blocks_of(count / each);
            uint64_t ns = ns_of(blocks);
            if (turns && count / each % 2) {
                /* Tiny ones in between. */
                blocks = 1 + blocks % 100;
                ns = 2000 + 5 * blocks;
            } else if (against && count / each % 4) {
                /* Huge ones that do nothing; those on a tiny grid do all the work. */
                blocks *= 100;
                ns = 5000;
            } else if (against) {
                blocks /= 1000;
                ns = 400000;
            }
            launch(blocks, ns);
            step += ns;
        }
        total += step;
        if (sparse) {
            /* 49 % of the time are needed. */
            ok(d.ctx_synchronize());
            usleep((useconds_t)(step * 51 / 49 / 1000));
        }
    }
    ok(d.ctx_synchronize());
    printf("done=%llu permille=%.0f\n", (unsigned long long)count, (double)total / 1e6 / (now() - start));
    return 0;
}
