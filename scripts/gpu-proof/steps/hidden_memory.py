"""What the driver takes without an allocation is seen and charged."""

import time

from steps import watched
from steps.watched import MIB, mib

WITHIN = 1.5
NEAR = 32 * MIB
# Less was not taken by what was asked for.
LEAST = 256 * MIB


def run(proof):
    rows = proof.data["hidden_memory"] = []
    for name, what in [("a heap of 512 MiB for kernels", "heap"), ("stacks of 4 KiB for kernels", "stack")]:
        with proof.guard(name, "charged"):
            take(proof, rows, name, what)


def take(proof, rows, name, what):
    command = proof.limited(["--mem", "4GiB"], watched.program("hidden_memory.py", "--what", what))
    with watched.Watched(proof, command) as program:
        pid = program.hear(40)["pid"]
        # What the context's start has hidden is known.
        time.sleep(WITHIN)
        before = program.device()["memory"]["by_kind"]["driver"], watched.nvml_now(proof).get(pid, 0)
        program.go_on()
        said = program.hear(30)
        begun = time.monotonic()
        grown = watched.nvml_now(proof).get(pid, 0) - before[1]
        charged = lambda: program.device()["memory"]["by_kind"]["driver"] - before[0]  # noqa: E731
        left = WITHIN - (time.monotonic() - begun)
        seen = watched.eventually(left, lambda: abs(charged() - grown) <= NEAR)
        took = None if seen is None else time.monotonic() - begun
        now = charged()
    rows.append({"what": what, "nvml_grown": grown, "charged": now, "seconds": took, **said})
    text = f"NVML {mib(grown)} more, kind driver {mib(now)} more" + (f" after {took:.2f} s" if took is not None else "")
    ok = took is not None and grown >= LEAST
    if grown < LEAST and what == "stack":
        # The driver makes larger stacks when it sees fit.
        ok = None
    proof.check(f"{name}: charged as kind driver", ok, text, f"NVML's figure within {mib(NEAR)}, in {WITHIN} s")
