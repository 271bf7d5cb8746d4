"""Allocates up to the limit, which is more than may be on the device, and computes in all of it."""

import argparse
import os

import gpu

CHUNK = 128 * gpu.MIB

parser = argparse.ArgumentParser()
parser.add_argument("--with", dest="library", choices=gpu.LIBRARIES, required=True)
options = parser.parse_args()
library = gpu.LIBRARIES[options.library]()
# Never more on the host than a gigabyte or so: the limit sees to it, and this as well.
held = gpu.take_all(library, CHUNK, 32)
managed = [library.is_managed(memory) for memory in held]
gpu.tell(pid=os.getpid(), granted=len(held) * CHUNK, on_host=sum(managed) * CHUNK, refused=len(held) < 32, total=library.sizes()[1])
gpu.hear()
for number, memory in enumerate(held):
    library.fill(memory, number + 1)
wrong = [number for number, memory in enumerate(held) if not library.holds(memory, number + 1)]
gpu.tell(wrong=wrong, still_refused=library.allocate(CHUNK) is None)
gpu.hear()
memory = None
while held:
    library.free(held.pop())
library.give_back()
again = library.allocate(CHUNK)
gpu.tell(again=again is not None and not library.is_managed(again))
