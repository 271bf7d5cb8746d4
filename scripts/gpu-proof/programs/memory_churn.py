"""Allocates, frees and fragments at random, always close to its limit."""

import argparse
import os
import random
import time

import gpu

parser = argparse.ArgumentParser()
parser.add_argument("--with", dest="library", choices=gpu.LIBRARIES, required=True)
parser.add_argument("--seconds", type=float, required=True)
parser.add_argument("--modules", action="store_true", help="PyTorch: loads code all the while")
options = parser.parse_args()
# Many small, some large: what fits into the holes differs from what makes them.
SIZES = [(4096, gpu.MIB), (gpu.MIB, 64 * gpu.MIB), (64 * gpu.MIB, 768 * gpu.MIB)]
UNARY = """abs acos acosh asin asinh atan atanh ceil cos cosh digamma erf erfc erfinv exp exp2 expm1 floor frac i0
isfinite isnan lgamma log log10 log1p log2 neg reciprocal relu round rsqrt sigmoid sign sin sinc sinh sqrt square tan
tanh trunc cumsum sort median mode std var prod argsort softmax norm unique flip roll""".split()
DTYPES = ["float32", "float64", "float16", "bfloat16"]


def code(torch):
    """Calls that need kernels that are not loaded yet, one after the other."""
    for dtype in DTYPES:
        for name in UNARY:
            values = torch.rand(64, 64, device="cuda", dtype=getattr(torch, dtype))
            function = getattr(torch, name)
            try:
                if name in ("cumsum", "softmax"):
                    function(values, 0)
                elif name == "flip":
                    function(values, [0])
                elif name == "roll":
                    function(values, 3)
                else:
                    function(values)
            except (NotImplementedError, TypeError):
                pass
            except RuntimeError as error:
                if "not implemented" not in str(error):
                    raise
            yield
        left = torch.rand(512, 512, device="cuda", dtype=getattr(torch, dtype))
        _ = left @ left
        yield


library = gpu.LIBRARIES[options.library]()
calls = code(library.torch) if options.modules else iter(())
random.seed(17)
held, steps, refused, retried, tried, loaded, code_refused = [], 0, 0, 0, 0, 0, 0
# How often code is loaded: as often as there is some to load.
EACH = options.seconds / (len(DTYPES) * (len(UNARY) + 1))


def drop(count):
    for _ in range(min(count, len(held))):
        number = random.randrange(len(held))
        held[number], held[-1] = held[-1], held[number]
        library.free(held.pop())


begun = time.monotonic()
while time.monotonic() - begun < options.seconds:
    steps += 1
    chance = random.random()
    if chance < 0.60:
        low, high = random.choices(SIZES, [3, 4, 2])[0]
        size = random.randrange(low, high) & ~3
        memory = library.allocate(size)
        if memory is None:
            refused += 1
            drop(len(held) // 3 + 1)
            library.give_back()
            memory = library.allocate(size)
            retried += memory is not None
        if memory is not None:
            if size < gpu.MIB:
                library.fill(memory, steps % 200)
            held.append(memory)
    elif chance < 0.97:
        drop(1)
    else:
        library.give_back()
    if options.modules and time.monotonic() - begun > EACH * tried:
        tried += 1
        try:
            loaded += next(calls, 0) is None
        except RuntimeError as error:
            if "out of memory" not in str(error) and "ALLOC_FAILED" not in str(error):
                raise
            code_refused += 1
            calls = code(library.torch)
gpu.tell(pid=os.getpid(), steps=steps, refused=refused, retried=retried, loaded=loaded, code_refused=code_refused, total=library.sizes()[1])
