"""What an open gate costs: one launch, and whole programs.

A launch: native, with a memory limit only, and with a compute limit of 99 %, in three processes at a time that
measure in short turns, on one CPU, the same for all; from one CPU to another a launch differs by tens of percent,
from one process to another by some percent.

Programs whose speed is the host's: one process is limited to 99 % and not limited at all, in turns (`sluice limit`),
so that it is compared with itself; the patched functions stay in place meanwhile. Beside it, processes that never
were limited and processes that always were, each in turn while the others pause.
"""

import contextlib
import os
import shutil
import statistics

from harness import StepFailed
from medians import median_and_interval, shown
from steps import steered, watched

SETTINGS = {
    "launch_pairs": 15,
    "launch_turns": 10,
    "launches": 4_000,
    "programs": ["train", "decode", "graph"],
    "toggles": 10,
    "segment": 0.6,
    "settle": 0.2,
    "process_pairs": 6,
    "process_seconds": 1.5,
}
FULL = {"launch_pairs": 40, "toggles": 20, "process_seconds": 4.0}
LAUNCH_WAYS = {"memory limit only": ["--mem", "8GiB"], "compute limit 99%": ["--compute", "99%"]}
MOST_RATIO, MOST_MORE_NS = 1.01, 30
LEAST_KEPT = 0.99


def seconds(settings):
    """About how long it takes."""
    launches = launch_seconds(settings, len(LAUNCH_WAYS) + 1)
    toggled = (2 * settings.toggles + 1) * (settings.segment + settings.settle + 0.05)
    alternating = 2 * settings.process_pairs * (settings.process_seconds + settings.settle)
    return launches + len(settings.programs) * (12 + toggled + alternating)


def launch_seconds(settings, ways):
    return settings.launch_pairs * (1.2 + ways * settings.launch_turns * (settings.launches + 1000) * 6e-6)


def run(proof):
    # On the simulated GPU this tells only that it works.
    proof.data["cost"] = {"launch": {}, "programs": []}
    launch(proof, proof.data["cost"]["launch"], LAUNCH_WAYS)
    loads = steered.Loads(proof)
    for name in proof.settings.programs:
        with proof.guard(f"{name}: cost", "rates"):
            program(proof, name, loads.command(name), proof.data["cost"]["programs"])


def pinned(command):
    """The command on one CPU of those that may be used."""
    if not shutil.which("taskset"):
        return command
    return ["taskset", "-c", str(max(os.sched_getaffinity(0))), *command]


def launch(proof, found, limited_ways, where=""):
    """`where` is put before what is told."""
    ways = {"native": None, **limited_ways}
    tenant = proof.tenant("launch-cost", "--launches", proof.settings.launches, "--each-line")
    commands = {way: pinned(proof.limited(limits, tenant) if limits else tenant) for way, limits in ways.items()}
    rounds = found["rounds"] = []
    for _ in range(proof.settings.launch_pairs):
        with contextlib.ExitStack() as stack:
            processes = {way: stack.enter_context(watched.Watched(proof, command)) for way, command in commands.items()}
            turns = [turn(processes, number) for number in range(proof.settings.launch_turns + 1)]
        # The first turn is for caches and clocks.
        rounds.append(turns[1:])
    native = statistics.median(one["native"]["median_ns"] for turns in rounds for one in turns)
    for way in limited_ways:
        # Events are one in hundreds of launches: they are in the mean and not in the median.
        ratio = paired(rounds, lambda one: one[way]["median_ns"] / one["native"]["median_ns"])
        more = paired(rounds, lambda one: one[way]["trimmed_ns"] - one["native"]["trimmed_ns"])
        found[way] = {"ratio_of_medians": ratio, "ns_more_in_the_mean": more}
        judged = (lambda ok: None) if proof.fake else bool
        proof.check(f"cuLaunchKernel, {where}{way}: median", judged(ratio[0] <= MOST_RATIO), f"ratio {shown(ratio)}, native {native:.0f} ns", f"at most {MOST_RATIO}")
        proof.check(f"cuLaunchKernel, {where}{way}: mean", judged(more[0] <= MOST_MORE_NS), f"{shown(more, 0)} ns more", f"at most {MOST_MORE_NS} ns more")


def turn(processes, number):
    """Each process measures once while the others wait; the next time in the other order."""
    found = {}
    for way in list(processes) if number % 2 == 0 else list(reversed(processes)):
        processes[way].go_on()
        found[way] = processes[way].hear(60)
    return found


def paired(rounds, compare):
    """The median of the turns of each round's processes, and of those the median with its interval."""
    return median_and_interval([statistics.median(map(compare, turns)) for turns in rounds])


def program(proof, name, command, rows):
    limited = proof.limited(["--compute", "99%"], command)
    count = proof.settings.process_pairs
    row = {"name": name}
    rows.append(row)
    # The first limited one is also the one that is toggled.
    with steered.running(proof, [(command, None), (limited, None)] * max(count, 1)) as programs:
        natives, limiteds = programs[0::2], programs[1::2]
        with proof.guard(f"{name}: 99 % beside not limited, one process", f"at least {LEAST_KEPT}"):
            toggled(proof, name, limiteds[0], row)
        processes(proof, name, natives[:count], limiteds[:count], row)


def toggled(proof, name, one, row):
    """Not limited, limited, not limited, ...: each limited stretch beside those before and after it."""
    rates = []
    for number in range(2 * proof.settings.toggles + 1):
        options = ["--policy", "none"] if number % 2 == 0 else ["--policy", "fixed", "--compute", "99%"]
        refused = steered.limit(proof, one, *options)
        if refused:
            raise StepFailed(f"sluice limit {' '.join(options)}: {refused}")
        rates += steered.rates(proof, [one], proof.settings.settle, proof.settings.segment)
    ratios = [2 * rates[i] / (rates[i - 1] + rates[i + 1]) for i in range(1, len(rates), 2)]
    # The same between stretches that are alike: what the method itself finds where there is nothing.
    idle = [rates[i + 2] / rates[i] for i in range(0, len(rates) - 2, 2)]
    row["toggled"] = {"rates": rates, "ratio": median_and_interval(ratios), "of_like": median_and_interval(idle)}
    ok = None if proof.fake else row["toggled"]["ratio"][0] >= LEAST_KEPT
    what = f"{name}: 99 % beside not limited, one process"
    proof.check(what, ok, f"{shown(row['toggled']['ratio'])}; like beside like {shown(row['toggled']['of_like'], 3)}", f"at least {LEAST_KEPT}")


def processes(proof, name, natives, limiteds, row):
    """Processes in turn, native and limited: they differ among themselves, too."""
    if not natives:
        return
    rates = {"native": [], "limited": []}
    for pair in zip(natives, limiteds):
        for way, one in zip(rates, pair):
            rates[way] += steered.rates(proof, [one], proof.settings.settle, proof.settings.process_seconds)
    ratio = median_and_interval([limited / native for limited, native in zip(rates["limited"], rates["native"])])
    row["processes"] = {"rates": rates, "ratio": ratio}
    spread = ", ".join(f"{way} {min(found):.1f} to {max(found):.1f}" for way, found in rates.items())
    proof.check(f"{name}: processes at 99 % beside native ones", None, f"{shown(ratio, 3)}; {spread} a second", "reported")
