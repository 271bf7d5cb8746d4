"""Has the driver take memory without an allocation: a heap or stacks for kernels."""

import argparse
import ctypes
import os

import gpu

STACK, HEAP = 0, 2
# The first parameter is not used: on the simulated GPU it is the time that the kernel takes.
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.extern .func (.param .b64 func_retval0) malloc (.param .b64 malloc_param_0);
.visible .entry take(.param .u64 length, .param .u64 out)
{
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [out];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u64 %rd3, 1024;
    {
        .param .b64 param0;
        st.param.b64 [param0+0], %rd3;
        .param .b64 retval0;
        call.uni (retval0), malloc, (param0);
        ld.param.b64 %rd4, [retval0+0];
    }
    st.global.u64 [%rd2], %rd4;
    ret;
}
"""

parser = argparse.ArgumentParser()
parser.add_argument("--what", choices=["heap", "stack"], required=True)
options = parser.parse_args()
driver = gpu.Driver()
out = driver.allocate(2 * gpu.MIB)
driver.fill(out, 0)
gpu.tell(pid=os.getpid())
gpu.hear()
if options.what == "heap":
    driver.call("cuCtxSetLimit", HEAP, 512 * gpu.MIB)
else:
    driver.call("cuCtxSetLimit", STACK, 4096)
module, function = ctypes.c_void_p(), ctypes.c_void_p()
driver.call("cuModuleLoadData", module, PTX)
driver.call("cuModuleGetFunction", function, module, b"take")
length, address = ctypes.c_uint64(0), ctypes.c_uint64(out[0])
values = (ctypes.c_void_p * 2)(ctypes.addressof(length), ctypes.addressof(address))
driver.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, values, None)
driver.call("cuCtxSynchronize")
taken = ctypes.c_uint64(0)
driver.call("cuMemcpyDtoH_v2", ctypes.byref(taken), out[0], 8)
gpu.tell(pointer=taken.value)
gpu.hear()
