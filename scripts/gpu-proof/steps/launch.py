"""What a launch costs the host, native and under `sluice run`, in alternating runs.

All runs use one CPU, the same: from one CPU to another a launch differs by tens of percent, which would
drown what is asked here.
"""

import os
import shutil
import statistics

MOST = 1.01
ROUNDS = 100
REPORTED_ROUNDS = 11
LAUNCHES = 20_000
WAYS = {
    "native": None,
    "memory limit only": ["--mem", "20GiB"],
    "compute limit 99%": ["--compute", "99%"],
}


def pinned(command):
    """The command on one CPU of those that may be used."""
    if not shutil.which("taskset"):
        return command
    return ["taskset", "-c", str(max(os.sched_getaffinity(0))), *command]


def run(proof):
    launches = LAUNCHES if not proof.fake else 2_000
    rounds = ROUNDS if not proof.fake else 3
    limits = {**WAYS, "memory limit only": ["--mem", "8GiB"]} if proof.fake else WAYS
    cost = {way: [] for way in limits}
    for number in range(rounds):
        # Each round in the other order: a drift of the machine acts on both sides.
        ways = list(limits) if number % 2 == 0 else list(reversed(limits))
        for way in ways:
            if way == "compute limit 99%" and number >= REPORTED_ROUNDS:
                continue
            tenant = proof.tenant("launch-cost", "--launches", launches)
            command = tenant if limits[way] is None else proof.limited(limits[way], tenant)
            cost[way].append(proof.result(pinned(command), timeout=60)["median_ns"])
    found = {"median_ns": {way: statistics.median(values) for way, values in cost.items()}, "runs": cost, "ratio": {}}
    proof.data["launch"] = found
    for way in [way for way in limits if way != "native"]:
        ratio = statistics.median(a / b for a, b in zip(cost[way], cost["native"]))
        found["ratio"][way] = ratio
        proof.check(
            f"cuLaunchKernel, {way}",
            (ratio <= MOST if way == "memory limit only" else None) if not proof.fake else None,
            f"{found['median_ns'][way]:.0f} ns, native {found['median_ns']['native']:.0f} ns, paired ratio {ratio:.4f}",
            f"at most {MOST}" if way == "memory limit only" else "reported",
        )
    allocations(proof, limits["memory limit only"], found)


def allocations(proof, options, found):
    tenant = proof.tenant("alloc-cost", "--pairs", 500)
    pair = [proof.result(tenant, timeout=60), proof.result(proof.limited(options, tenant), timeout=60)]
    found["alloc_cost"] = {"native": pair[0], "memory limit only": pair[1]}
    for call in ["alloc_free", "mem_get_info"]:
        native, limited = (one[call]["median_ns"] / 1000 for one in pair)
        proof.check(f"{call} with a memory limit", None, f"{limited:.1f} us, native {native:.1f} us", "reported")
