/* Fills the limit, frees, fills again; in one context, then in a new one. The amount granted must be the same each
 * time. */
#include "driver.h"

int main(void) {
    struct driver d = driver_of(open_driver(RTLD_NOW));
    CUcontext context = start_driver(&d);
    CUdeviceptr held[64];
    int first = -1;
    for (int round = 0; round < 8; round++) {
        int granted = 0;
        while (granted < 64 && d.mem_alloc(&held[granted], LITTLE) == 0)
            granted++;
        if (first < 0)
            first = granted;
        if (granted != first) {
            fprintf(stderr, "round %d: %d of %d\n", round, granted, first);
            return 1;
        }
        if (round % 2 == 0) {
            while (granted > 0)
                ok(d.mem_free(held[--granted]));
        } else {
            /* Its memory goes with it. */
            ok(d.ctx_destroy(context));
            context = start_driver(&d);
        }
    }
    printf("granted=%d\n", first);
    return 0;
}
