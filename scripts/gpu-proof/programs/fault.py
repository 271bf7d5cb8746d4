"""Launches a kernel that writes where it may not, and says what the driver calls that."""

import ctypes

import gpu

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry fault()
{
    .reg .b64 %rd<2>;
    .reg .b32 %r<2>;
    mov.u64 %rd1, 4096;
    mov.u32 %r1, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""

driver = gpu.Driver()
module, function = ctypes.c_void_p(), ctypes.c_void_p()
driver.call("cuModuleLoadData", module, PTX)
driver.call("cuModuleGetFunction", function, module, b"fault")
driver.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
gpu.tell(result=driver.library.cuCtxSynchronize())
