"""Fills the memory up to a point and then allocates and frees over and over; says what a call takes in the mean."""

import argparse
import os
import random
import time
from ctypes import POINTER, byref, c_int, c_size_t, c_uint64, c_void_p

import gpu

CHUNK = 16 * gpu.MIB
SIZE = 4 * gpu.MIB
HELD = 8

parser = argparse.ArgumentParser()
parser.add_argument("--what", choices=["linear", "mixed", "pool", "physical"], default="linear")
parser.add_argument("--fill", type=int, default=0, help="bytes")
parser.add_argument("--seconds", type=float, default=0)
options = parser.parse_args()
driver = gpu.Driver()
free, total = driver.sizes()
library, address = driver.library, c_uint64()


def declare(name, *arguments):
    function = getattr(library, name)
    function.argtypes, function.restype = arguments, c_int
    return function


def ok(result, name):
    if result != 0:
        raise gpu.DriverError(f"{name}: {result}")


class Linear:
    """cuMemAlloc, cuMemFree"""

    def take(self, size):
        ok(library.cuMemAlloc_v2(address, size), "cuMemAlloc")
        return address.value

    def drop(self, at):
        ok(library.cuMemFree_v2(at), "cuMemFree")


class Pool:
    """Stream-ordered: by default the pool gives back what it does not use when the stream is waited for."""

    def __init__(self):
        self.alloc = declare("cuMemAllocAsync", POINTER(c_uint64), c_size_t, c_void_p)
        self.free = declare("cuMemFreeAsync", c_uint64, c_void_p)
        self.stream = c_void_p()
        driver.call("cuStreamCreate", self.stream, 1)

    def take(self, size):
        ok(self.alloc(address, size, self.stream), "cuMemAllocAsync")
        return address.value

    def drop(self, at):
        ok(self.free(at, self.stream), "cuMemFreeAsync")
        ok(library.cuStreamSynchronize(self.stream), "cuStreamSynchronize")


class Physical:
    """cuMemCreate, cuMemMap, cuMemSetAccess; cuMemUnmap, cuMemRelease"""

    def __init__(self):
        self.unmap = declare("cuMemUnmap", c_uint64, c_size_t)
        self.prop = gpu.AllocationProp(type=1, location=gpu.Location(1, 0))
        self.access = gpu.AccessDesc(gpu.Location(1, 0), 3)
        self.range = c_uint64()
        driver.call("cuMemAddressReserve", self.range, SIZE, 0, 0, 0)

    def take(self, size):
        ok(library.cuMemCreate(address, size, byref(self.prop), 0), "cuMemCreate")
        ok(library.cuMemMap(self.range, size, 0, address, 0), "cuMemMap")
        ok(library.cuMemSetAccess(self.range, size, byref(self.access), 1), "cuMemSetAccess")
        return address.value

    def drop(self, at):
        ok(self.unmap(self.range, SIZE), "cuMemUnmap")
        ok(library.cuMemRelease(at), "cuMemRelease")


def measure(memory, sizes):
    """Sums of nanoseconds and counts of both calls. `sizes` has one size for each place that memory is held in."""
    clock, random_below = time.perf_counter_ns, random.randrange
    spent, counts, held = [0, 0], [0, 0], [None] * len(sizes)
    until = clock() + int(options.seconds * 1e9)
    while (begun := clock()) < until:
        place = random_below(len(held)) if len(held) > 1 else 0
        frees = held[place] is not None
        begun = clock()
        if frees:
            memory.drop(held[place])
        else:
            taken = memory.take(sizes[place])
        spent[frees] += clock() - begun
        counts[frees] += 1
        held[place] = None if frees else taken
    return spent, counts


for _ in range(options.fill // CHUNK):
    driver.call("cuMemAlloc_v2", address, CHUNK)
left = driver.sizes()[0]
found = {}
if options.seconds:
    random.seed(17)
    sizes = [(1 + place) * gpu.MIB for place in range(HELD)] if options.what == "mixed" else [SIZE]
    memory = {"linear": Linear, "mixed": Linear, "pool": Pool, "physical": Physical}[options.what]()
    spent, counts = measure(memory, sizes)
    found = {"rounds": counts[1], "alloc_us": spent[0] / counts[0] / 1000, "free_us": spent[1] / counts[1] / 1000}
gpu.tell(pid=os.getpid(), used=total - free, left=left, **found)
