"""Workers of Python's multiprocessing: workers.py METHOD USE

A process that uses the driver itself starts workers by METHOD and takes items from them, as a data loader does. With
USE "gpu" each worker uses the driver too. Each prints the results of an allocation within the limit and of one beyond
it.
"""

import ctypes
import multiprocessing
import sys

MIB = 1 << 20


def try_limit(who):
    driver = ctypes.CDLL("libcuda.so.1")
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    for result in (driver.cuInit(0), driver.cuCtxCreate_v2(ctypes.byref(context), 0, 0)):
        if result != 0:
            sys.exit(f"{who}: CUresult {result}")
    little = driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(64 * MIB))
    much = driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(2048 * MIB))
    return f"{who}:{little}/{much}"


def work(number, use, items):
    items.put(try_limit("worker") if use == "gpu" else f"item:{number}")


if __name__ == "__main__":
    method, use = sys.argv[1:]
    said = [try_limit("first")]
    of = multiprocessing.get_context(method)
    items = of.Queue()
    workers = [of.Process(target=work, args=(number, use, items)) for number in range(2)]
    for worker in workers:
        worker.start()
    said += sorted(items.get(timeout=80) for _ in workers)
    for worker in workers:
        worker.join()
    said.append("ends:" + ",".join(str(worker.exitcode) for worker in workers))
    print(" ".join(said))
