"""Fills the memory until refused and frees it, five times; then asks for what only fits once the allocator has given
back what it keeps."""

import argparse
import os

import gpu

parser = argparse.ArgumentParser()
parser.add_argument("--with", dest="library", choices=gpu.LIBRARIES, required=True)
options = parser.parse_args()
library = gpu.LIBRARIES[options.library]()


def free(held):
    while held:
        library.free(held.pop())


rounds = []
for _ in range(5):
    held = gpu.take_all(library, 32 * gpu.MIB)
    rounds.append(len(held))
    free(held)
library.give_back()
# Small ones come from a part of the allocator that large ones cannot use.
small = gpu.take_all(library, 512 << 10, 3 << 12)
small_count = len(small)
free(small)
large = library.allocate(2 << 30)
worked = large is not None
if worked:
    library.fill(large, 5)
    worked = library.holds(large, 5)
retries = library.torch.cuda.memory_stats().get("num_alloc_retries", 0) if options.library == "torch" else 0
gpu.tell(pid=os.getpid(), rounds=rounds, small=small_count, large=worked, retries=retries, total=library.sizes()[1])
