"""Allocates while its limit is changed from outside."""

import argparse

import gpu

CHUNK = 128 * gpu.MIB

parser = argparse.ArgumentParser()
parser.add_argument("--with", dest="library", choices=gpu.LIBRARIES, required=True)
options = parser.parse_args()
library = gpu.LIBRARIES[options.library]()
held = gpu.take_all(library, CHUNK, 64)
gpu.tell(chunks=len(held), total=library.sizes()[1])
gpu.hear()
# Grown: the next allocation succeeds.
first = library.allocate(CHUNK)
held += [first] if first is not None else []
held += gpu.take_all(library, CHUNK, 64)
gpu.tell(first=first is not None, chunks=len(held), total=library.sizes()[1])
gpu.hear()
# Shrunk below what is in use: what is there works, and does not grow.
refused = library.allocate(CHUNK) is None
for number, memory in enumerate(held):
    library.fill(memory, number + 1)
works = all(library.holds(memory, number + 1) for number, memory in enumerate(held))
gpu.tell(refused=refused, works=works, free=library.sizes()[0], total=library.sizes()[1])
gpu.hear()
memory = first = None
while held:
    library.free(held.pop())
library.give_back()
gpu.tell(afterwards=library.allocate(CHUNK) is not None)
