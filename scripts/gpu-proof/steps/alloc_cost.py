"""What a memory limit adds to an allocation, and to the start of many processes, by the built benchmarks."""

import re

from harness import StepFailed
from steps import cost

MOST_NS, MOST_PERCENT = 1000, 2.0
# cuMemGetInfo must not be slower; a measurement is good to so much.
MOST_INFO = 1.02
MOST_START = 2.0
PAIR = re.compile(r"^(.+): (\d+) ns native, (\d+) ns limited, (-?\d+) ns more", re.MULTILINE)
START = re.compile(r"^(\d+) at once: ([\d.]+) ms native, ([\d.]+) ms limited", re.MULTILINE)


def run(proof):
    found = proof.data["alloc_cost"] = {"calls": {}, "start": {}}
    for name, file, measure in [("cost of an allocation", "bench-alloc", calls), ("start of 64 processes", "bench-together", starts)]:
        if not (proof.binaries / file).is_file():
            proof.check(name, None, f"not run: {file} is not beside the binaries", "measured")
            continue
        with proof.guard(name, "measured"):
            measure(proof, found, file)


def bench(proof, file, timeout, *options):
    # The system's driver is the simulated one where the environment says so.
    command = [proof.tool(file), "--driver", "system", "--limiter", proof.tool("libcuda_limiter.so"), *options]
    finished = proof.run(cost.pinned(command) if file == "bench-alloc" else command, timeout)
    if not finished.ok:
        raise StepFailed(f"{file}: {finished.why()}")
    return finished.out


def calls(proof, found, file):
    for name, *numbers in PAIR.findall(bench(proof, file, 100, "--pairs", "40", "--count", "500")):
        native, limited, added = map(int, numbers)
        found["calls"][name] = {"native_ns": native, "limited_ns": limited, "added_ns": added}
        percent = 100 * added / native
        if name == "cuMemGetInfo":
            ok, wanted = limited <= MOST_INFO * native, f"at most {MOST_INFO} x native"
        else:
            ok, wanted = added <= MOST_NS and percent <= MOST_PERCENT, f"at most {MOST_NS} ns and {MOST_PERCENT:g} % more"
        text = f"{native / 1000:.2f} us native, {limited / 1000:.2f} us, {added} ns more ({percent:.1f} %)"
        proof.check(f"with a memory limit: {name}", ok if not proof.fake else None, text, wanted)
    if len(found["calls"]) != 3:
        raise StepFailed(f"{file}: three lines of figures expected, {len(found['calls'])} found")


def starts(proof, found, file):
    # The simulated device has room for so many.
    small = ["--count", "16", "--limit", "12GiB"] if proof.fake else []
    rows = START.findall(bench(proof, file, 120, "--pairs", "1", *small))
    for count, *numbers in rows:
        native, limited = map(float, numbers)
        found["start"][count] = {"native_ms": native, "limited_ms": limited}
        text = f"{native:.0f} ms native, {limited:.0f} ms, {limited / native:.2f} x"
        ok = limited <= MOST_START * native if not proof.fake else None
        proof.check(f"with a memory limit: start of {count} at once", ok, text, f"at most {MOST_START:g} x native")
    if len(rows) != 2:
        raise StepFailed(f"{file}: two lines of figures expected, {len(rows)} found")
