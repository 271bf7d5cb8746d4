"""More memory than may be on the device: the rest is on the host, and kernels compute in it."""

from steps import watched
from steps.watched import MIB, mib

LIMIT, REAL, CHUNK = 3 << 30, 2 << 30, 128 * MIB
# What the driver takes by itself before the reconciler sees it.
TOLERANCE = 64 * MIB


def run(proof):
    rows = proof.data["overcommit"] = []
    for library in watched.libraries(proof):
        name = {"driver": "3 GiB with 2 GiB real, cuMemAlloc", "torch": "3 GiB with 2 GiB real, PyTorch"}[library]
        with proof.guard(name, "works"):
            place(proof, rows, name, library)


def place(proof, rows, name, library):
    options = ["--mem", "3GiB", "--mem-real", "2GiB"]
    command = proof.limited(options, watched.program("overcommit.py", "--with", library))
    with watched.Sampler(proof) as sampler, watched.Watched(proof, command) as program:
        filled = program.hear(40)
        memory = program.device()["memory"]
        program.go_on()
        computed = program.hear(40)
        program.go_on()
        again = program.hear(20)["again"]
    highest = sampler.highest(filled["pid"])
    rows.append({"library": library, "status": memory, "nvml_highest": highest, **filled, **computed})
    context = memory["by_kind"]["context"] + memory["by_kind"]["driver"]
    granted, most = filled["granted"], LIMIT - context
    full = filled["refused"] and most - CHUNK - TOLERANCE <= granted <= most
    proof.check(f"{name}: granted", full, f"{mib(granted)}, context {mib(context)}, shown {mib(filled['total'])}", f"{mib(most)} but for one chunk, then refused")
    split = memory["by_kind"]["overcommitted"]
    placed = filled["on_host"] == split > 0 and memory["on_device"] <= REAL
    text = f"{mib(split)} on the host, {mib(memory['on_device'])} on the device; managed {mib(filled['on_host'])}"
    proof.check(f"{name}: sluice status shows the split", placed, text, f"at most {mib(REAL)} on the device")
    proof.check(f"{name}: on the device by NVML", highest <= REAL + TOLERANCE, f"highest {mib(highest)}", f"at most {mib(REAL)} and {mib(TOLERANCE)}")
    right = not computed["wrong"] and computed["still_refused"]
    proof.check(f"{name}: results", right, f"wrong chunks {computed['wrong']}, refused afterwards {computed['still_refused']}", "none wrong, still refused")
    proof.check(f"{name}: after all is freed", again, "on the device" if again else "refused, or on the host", "the next is on the device")
