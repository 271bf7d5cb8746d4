/* Continues whatever the driver answers, prints the first error and whether it got memory and could launch, and
 * ends with a status of its own. */
#include "driver.h"

static int first_error;

static int tried(CUresult result) {
    if (result != 0 && first_error == 0)
        first_error = result;
    return result == 0;
}

int main(void) {
    struct driver d = driver_of(open_driver(RTLD_NOW));
    CUdevice device = 0;
    CUcontext context = NULL;
    CUdeviceptr memory;
    size_t free, total;
    for (int round = 0; round < 3; round++)
        tried(d.init(0));
    tried(d.device_get(&device, 0));
    tried(d.ctx_create(&context, 0, device));
    tried(d.mem_info(&free, &total));
    int granted = tried(d.mem_alloc(&memory, TOO_MUCH));
    tried(d.mem_alloc(&memory, LITTLE));
    printf("first_error=%d granted=%d\n", first_error, granted);
    return 42;
}
