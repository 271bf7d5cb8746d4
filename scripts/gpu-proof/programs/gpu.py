"""What the programs share: the driver by ctypes, PyTorch in the same words, and how to talk to the proof."""

import ctypes
import json
import sys
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p

MIB = 1 << 20
OUT_OF_MEMORY = 2
IS_MANAGED = 8


def tell(**fields):
    """One line for the proof."""
    print(json.dumps(fields), flush=True)


def hear():
    """Waits for the proof's next line; the program ends with the proof."""
    line = sys.stdin.readline()
    if not line:
        sys.exit("the proof is gone")
    return line.strip()


class DriverError(Exception):
    """A call of the driver that failed."""


class IpcHandle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * 64)]


class Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class AllocationProp(ctypes.Structure):
    _fields_ = [
        ("type", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("win32", c_void_p),
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    ]


class AccessDesc(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", c_int)]


SIGNATURES = {
    "cuInit": [c_uint],
    "cuDeviceGet": [POINTER(c_int), c_int],
    "cuDeviceGetCount": [POINTER(c_int)],
    "cuDeviceGetUuid": [c_char_p, c_int],
    "cuCtxGetCurrent": [POINTER(c_void_p)],
    "cuDevicePrimaryCtxRetain": [POINTER(c_void_p), c_int],
    "cuCtxSetCurrent": [c_void_p],
    "cuCtxSynchronize": [],
    "cuCtxSetLimit": [c_int, c_size_t],
    "cuMemAlloc_v2": [POINTER(c_uint64), c_size_t],
    "cuMemFree_v2": [c_uint64],
    "cuMemGetInfo_v2": [POINTER(c_size_t), POINTER(c_size_t)],
    "cuMemsetD8_v2": [c_uint64, ctypes.c_ubyte, c_size_t],
    "cuMemcpyDtoH_v2": [c_void_p, c_uint64, c_size_t],
    "cuPointerGetAttribute": [c_void_p, c_int, c_uint64],
    "cuIpcGetMemHandle": [POINTER(IpcHandle), c_uint64],
    "cuIpcOpenMemHandle_v2": [POINTER(c_uint64), IpcHandle, c_uint],
    "cuIpcCloseMemHandle": [c_uint64],
    "cuMemGetAllocationGranularity": [POINTER(c_size_t), POINTER(AllocationProp), c_int],
    "cuMemCreate": [POINTER(c_uint64), c_size_t, POINTER(AllocationProp), c_uint64],
    "cuMemRelease": [c_uint64],
    "cuMemAddressReserve": [POINTER(c_uint64), c_size_t, c_size_t, c_uint64, c_uint64],
    "cuMemMap": [c_uint64, c_size_t, c_size_t, c_uint64, c_uint64],
    "cuMemSetAccess": [c_uint64, c_size_t, POINTER(AccessDesc), c_size_t],
    "cuMemExportToShareableHandle": [c_void_p, c_uint64, c_int, c_uint64],
    "cuMemImportFromShareableHandle": [POINTER(c_uint64), c_void_p, c_int],
    "cuStreamCreate": [POINTER(c_void_p), c_uint],
    "cuStreamSynchronize": [c_void_p],
    "cuModuleLoadData": [POINTER(c_void_p), c_char_p],
    "cuModuleGetFunction": [POINTER(c_void_p), c_void_p, c_char_p],
    "cuLaunchKernel": [c_void_p, *[c_uint] * 7, c_void_p, POINTER(c_void_p), POINTER(c_void_p)],
}


class Driver:
    """The driver's own calls, in the primary context of a device."""

    def __init__(self, number=0):
        library = ctypes.CDLL("libcuda.so.1")
        for name, arguments in SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, c_int
        self.library = library
        self.call("cuInit", 0)
        device, context = c_int(), c_void_p()
        self.call("cuDeviceGet", device, number)
        self.call("cuDevicePrimaryCtxRetain", context, device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        result = getattr(self.library, name)(*arguments)
        if result != 0:
            raise DriverError(f"{name}: {result}")

    def allocate(self, size):
        """What was allocated; `None` if it was refused."""
        address = c_uint64()
        result = self.library.cuMemAlloc_v2(address, size)
        if result == OUT_OF_MEMORY:
            return None
        if result != 0:
            raise DriverError(f"cuMemAlloc: {result}")
        return address.value, size

    def free(self, memory):
        self.call("cuMemFree_v2", memory[0])

    def give_back(self):
        """Nothing is kept by this library."""

    def fill(self, memory, value):
        self.call("cuMemsetD8_v2", memory[0], value, memory[1])
        self.call("cuCtxSynchronize")

    def holds(self, memory, value):
        """Whether the memory holds this value, at its begin, in its middle and at its end."""
        address, size = memory
        piece = min(size, MIB)
        host = ctypes.create_string_buffer(piece)
        for offset in (0, (size - piece) // 2, size - piece):
            self.call("cuMemcpyDtoH_v2", host, address + offset, piece)
            if host.raw != bytes([value]) * piece:
                return False
        return True

    def is_managed(self, memory):
        managed = c_uint(0)
        self.call("cuPointerGetAttribute", ctypes.byref(managed), IS_MANAGED, memory[0])
        return bool(managed.value)

    def sizes(self):
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", free, total)
        return free.value, total.value


class Torch:
    """The same by PyTorch: allocations through its allocator, `fill_`, `min` and `max` as kernels."""

    def __init__(self):
        import torch

        self.torch = torch
        # The code of the kernels and their buffers are there before the memory is short.
        first = self.allocate(4 * MIB)
        self.fill(first, 1)
        self.holds(first, 1)
        self.keep = torch.ones(1024, device="cuda")

    def allocate(self, size):
        try:
            return self.torch.empty(size // 4, dtype=self.torch.float32, device="cuda")
        except self.torch.OutOfMemoryError:
            return None

    def free(self, memory):
        """The caller's reference was the last."""

    def give_back(self):
        self.torch.cuda.empty_cache()

    def fill(self, memory, value):
        memory.fill_(float(value))
        self.torch.cuda.synchronize()

    def holds(self, memory, value):
        return memory.min().item() == value == memory.max().item()

    def is_managed(self, memory):
        # In the process's libcuda, which PyTorch has loaded.
        cuda = ctypes.CDLL("libcuda.so.1")
        cuda.cuPointerGetAttribute.argtypes = SIGNATURES["cuPointerGetAttribute"]
        managed = c_uint(0)
        result = cuda.cuPointerGetAttribute(ctypes.byref(managed), IS_MANAGED, memory.data_ptr())
        if result != 0:
            raise DriverError(f"cuPointerGetAttribute: {result}")
        return bool(managed.value)

    def sizes(self):
        return self.torch.cuda.mem_get_info()


SPIN = b"""
.version 6.0
.target sm_52
.address_size 64
.visible .entry spin(.param .u64 ns, .param .u64 rounds, .param .u64 sink)
{
    .reg .pred %p<2>;
    .reg .b32 %thread;
    .reg .f32 %sum;
    .reg .b64 %left, %sink;
    ld.param.u64 %left, [rounds];
    ld.param.u64 %sink, [sink];
    mov.u32 %thread, %tid.x;
    cvt.rn.f32.u32 %sum, %thread;
AGAIN:
    fma.rn.f32 %sum, %sum, 0f3F7FBE77, 0f3F000000;
    fma.rn.f32 %sum, %sum, 0f3F7FBE77, 0f3F000000;
    fma.rn.f32 %sum, %sum, 0f3F7FBE77, 0f3F000000;
    fma.rn.f32 %sum, %sum, 0f3F7FBE77, 0f3F000000;
    add.s64 %left, %left, -1;
    setp.gt.s64 %p0, %left, 0;
    @%p0 bra AGAIN;
    setp.lt.f32 %p1, %sum, 0f00000000;
    @%p1 st.global.f32 [%sink], %sum;
    ret;
}
"""


class Spin:
    """A kernel that fills the device for a time. On the simulated GPU the time itself is an argument."""

    def __init__(self, driver, us, rounds):
        self.driver = driver
        module, self.function = c_void_p(), c_void_p()
        driver.call("cuModuleLoadData", module, SPIN)
        driver.call("cuModuleGetFunction", self.function, module, b"spin")
        self.arguments = [c_uint64(int(us * 1000)), c_uint64(rounds), c_uint64(driver.allocate(4096)[0])]
        self.values = (c_void_p * 3)(*(ctypes.addressof(one) for one in self.arguments))

    def launch(self, stream=None):
        self.driver.call("cuLaunchKernel", self.function, 1056, 1, 1, 256, 1, 1, 0, stream, self.values, None)


LIBRARIES = {"driver": Driver, "torch": Torch}


def take_all(library, chunk, most=1 << 20):
    """Allocates chunks until refused."""
    held = []
    while len(held) < most:
        memory = library.allocate(chunk)
        if memory is None:
            break
        held.append(memory)
    return held
