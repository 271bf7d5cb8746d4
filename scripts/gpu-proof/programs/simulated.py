"""Kernels that stand for the PyTorch programs on the simulated GPU, by the driver's own calls."""

import ctypes
import dataclasses
import functools
import os
import time
import typing
import zlib

import gpu
from work import Work


class Clock:
    """What was launched before a mark has ended once the device is idle; there is nothing better without events."""

    def __init__(self, driver):
        self.driver = driver

    def mark(self, _):
        return [None]

    def is_done(self, mark):
        self.wait(mark)
        return True

    def wait(self, mark):
        if mark[0] is None:
            self.synchronize()
            mark[0] = time.monotonic()

    def at(self, mark):
        self.wait(mark)
        return mark[0]

    def synchronize(self):
        self.driver.call("cuCtxSynchronize")


def make(name):
    """The work that `spin-US-COUNT[-waits]` names, and its clock."""
    _, us, count, *waits = name.split("-")
    driver = gpu.Driver()
    spin = gpu.Spin(driver, float(us), 1)

    def step():
        for _ in range(int(count)):
            spin.launch()

    return Work(step, waits=bool(waits), made_with="the driver's calls"), Clock(driver)


# --- several devices: a rank's kernels, and one that waits on its device for those of all ranks

# The simulated GPU knows a kernel that waits for others by the names of its parameters.
COLLECTIVE = b"""
.version 6.0
.target sm_52
.address_size 64
.visible .entry ncclTogether(.param .u64 ns, .param .u64 the_group, .param .u64 the_members)
{
    ret;
}
"""
# Kernels before each collective, their length, collectives in a step, whether the host waits for each step, and whether
# collectives have a stream of their own.
KINDS = {
    "ddp": (20, 250, 1, False, False),
    "tensor": (1, 100, 8, True, False),
    "pipeline": (10, 100, 1, False, False),
    "collectives": (4, 50, 5, False, False),
    "threads": (4, 100, 1, False, False),
    "jax": (2, 100, 16, False, True),
}


@dataclasses.dataclass
class Part:
    step: typing.Callable
    clock: typing.Callable
    correct: typing.Callable = lambda: True
    close: typing.Callable = lambda: None


def devices():
    count = ctypes.c_int()
    gpu.Driver().call("cuDeviceGetCount", count)
    return count.value


def rank(kind, _, world, device, job=None):
    """`job`: a number that the ranks have in common."""
    job = zlib.crc32(os.environ["GPU_PROOF_LINK"].encode()) if job is None else job
    driver = gpu.Driver(device)
    count, us, times, waits, apart = KINDS[kind]
    spin, module, function = gpu.Spin(driver, us, 1), ctypes.c_void_p(), ctypes.c_void_p()
    driver.call("cuModuleLoadData", module, COLLECTIVE)
    driver.call("cuModuleGetFunction", function, module, b"ncclTogether")
    values = [ctypes.c_uint64(50_000), ctypes.c_uint64(job << 32), ctypes.c_uint64(world)]
    pointers = (ctypes.c_void_p * 3)(*(ctypes.addressof(one) for one in values))
    stream, events = ctypes.c_void_p(), [ctypes.c_void_p(), ctypes.c_void_p()]
    if apart:
        driver.call("cuStreamCreate", ctypes.byref(stream), 1)
        for event in events:
            driver.call("cuEventCreate", ctypes.byref(event), 2)

    def follow(event, one, other):
        """Makes a stream wait for what is in another one."""
        driver.call("cuEventRecord", event, one)
        driver.call("cuStreamWaitEvent", other, event, 0)

    def step():
        for _ in range(times):
            for _ in range(count):
                spin.launch()
            # Another group each time.
            values[1].value += 1
            if apart:
                follow(events[0], None, stream)
            driver.call("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, stream, pointers, None)
            if apart:
                follow(events[1], stream, None)
        if waits:
            driver.call("cuCtxSynchronize")

    return Part(step, functools.partial(Clock, driver))


def in_one_process(kind, world):
    if kind not in KINDS:
        raise SystemExit(f"{kind}: not simulated")
    return lambda number: rank(kind, number, world, number, os.getpid())
