"""What a memory limit adds to an allocation, and to the start of many processes, by the built benchmarks.

Close to the limit: allocations and frees with little of 4 GiB left, natively and limited, in pairs of processes. The
native process fills as much of the device.
"""

import re

from harness import StepFailed
from medians import median_and_interval, shown
from steps import cost, watched

# `kinds`: what is allocated; `left`: MiB of the limit that are left; `pairs`, `seconds`: processes, and of each.
SETTINGS = {"kinds": ["linear", "mixed"], "left": 80, "pairs": 8, "seconds": 0.5}
FULL = {"kinds": ["linear", "mixed", "pool", "physical"], "pairs": 25, "seconds": 1.0}
NEAR_MIB = 4096
MOST_NEAR = 1.05
MOST_NS, MOST_PERCENT = 1000, 2.0
# cuMemGetInfo must not be slower; a measurement is good to so much.
MOST_INFO = 1.02
MOST_START = 2.0
PAIR = re.compile(r"^(.+): (\d+) ns native, (\d+) ns limited, (-?\d+) ns more", re.MULTILINE)
START = re.compile(r"^(\d+) at once: ([\d.]+) ms native, ([\d.]+) ms limited", re.MULTILINE)


def run(proof):
    found = proof.data["alloc_cost"] = {"calls": {}, "start": {}, "near": {}}
    for name, file, measure in [("cost of an allocation", "bench-alloc", calls), ("start of 64 processes", "bench-together", starts)]:
        if not (proof.binaries / file).is_file():
            proof.check(name, None, f"not run: {file} is not beside the binaries", "measured")
            continue
        with proof.guard(name, "measured"):
            measure(proof, found, file)
    for kind in proof.settings.kinds:
        with proof.guard(f"close to the limit: {kind}", "measured"):
            near(proof, found["near"], kind)


def seconds(settings):
    """About how long it takes."""
    return 60 + len(settings.kinds) * (1 + settings.pairs * 2 * (settings.seconds + 0.7))


def near(proof, found, kind):
    def once(limited, *options):
        command = cost.pinned(watched.program("near_limit.py", *options))
        if limited:
            command = proof.limited(["--mem", f"{NEAR_MIB}MiB"], command)
        return watched.said_by(proof.run(command, 60))

    # What a context takes is known where there is a limit.
    fill = (NEAR_MIB - proof.settings.left << 20) - once(True)["used"]
    options = ["--what", kind, "--fill", str(fill), "--seconds", str(proof.settings.seconds)]
    rows = found[kind] = []
    for number in range(proof.settings.pairs):
        # Which one is first changes from pair to pair.
        ways = [False, True] if number % 2 == 0 else [True, False]
        pair = {limited: once(limited, *options) for limited in ways}
        rows.append({"native": pair[False], "limited": pair[True]})

    def ratio(*names):
        sums = [[sum(row[way][name] for name in names) for row in rows] for way in ("limited", "native")]
        return median_and_interval([limited / native for limited, native in zip(*sums)])

    both, *each = ratio("alloc_us", "free_us"), ratio("alloc_us"), ratio("free_us")
    native = [median_and_interval([row["native"][name] for row in rows])[0] for name in ("alloc_us", "free_us")]
    left = rows[0]["limited"]["left"] >> 20
    text = f"{shown(both, 3)}; native {native[0]:.1f} and {native[1]:.1f} us; allocations {shown(each[0], 3)}, frees {shown(each[1], 3)}"
    ok = both[0] <= MOST_NEAR if not proof.fake else None
    proof.check(f"{left} of {NEAR_MIB} MiB left, {kind}: limited to native", ok, text, f"at most {MOST_NEAR} in the median")


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
