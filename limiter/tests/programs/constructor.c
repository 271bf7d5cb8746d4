/* A library that uses the driver while it is being loaded. With LINKED it is linked against the driver, otherwise
 * it loads it. */
#include "driver.h"

__attribute__((constructor)) static void use(void) {
#ifdef LINKED
    extern CUresult cuInit(unsigned);
    ok(cuInit(0));
#endif
    struct driver d = driver_of(open_driver(RTLD_NOW));
    start_driver(&d);
    say_limit(&d);
}
