"""Programs that use several devices together: a session holds its devices together.

One job: native, with a memory limit only, at 100 % and at 50 %; the limited one is one process that is told so in turn,
without a daemon. Two jobs under a daemon: sliced, at 50/50. A job on two devices beside a job on each of them. A rank
that is killed ends the job as natively. Needs two devices; for some cells, as many as the cell says.

Programs are started all at once and pause while they are not measured. Each case has a time limit; one that fails,
hangs or gets nowhere leaves the others what they found. Writes several-gpus.md beside the proof's other results.
"""

import contextlib
import os
import sys
import time

from harness import StepFailed
from medians import median_and_interval, shown
from steps import daemon, real, steered, watched

SETTINGS = {
    "worlds": [2],
    "cells": ["one", "two", "overlap", "killed"],
    # How one job is started, for each: torchrun, processes (without it), or in one process.
    "kinds": ["ddp", "dp", "tensor", "pipeline", "peer", "threads", "collectives"],
    "ways": ["memory", "100", "50"],
    "pairs": ["ddp", "tensor"],
    "shares": ["slicing", "fixed", "balance"],
    "starts": ["torchrun", "processes"],
    # How often each is measured, and for how long.
    "turns": 4,
    "turn": 1.2,
    "settle": 0.4,
    "rounds": 2,
    "together": 2.5,
    # Of the cell `one`; the others need one.
    "daemon": 0,
    # What a case may take.
    "limit": 75.0,
}
FULL = {"worlds": [2, 4], "kinds": [*SETTINGS["kinds"], "ddp-processes"], "turns": 12, "turn": 2.0, "rounds": 6, "together": 5.0, "limit": 200.0}
# Programs that start at once, on one device each.
START, START_EACH, START_LIMIT = 25, 0.8, 80
# Multicast between devices is left off: it can put a shared host's devices out of service. And ranks do not take each
# other's CPUs.
ENVIRONMENT = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1", "OMP_NUM_THREADS": "1"}
LEAST_OPEN, HALF_RANGE, TOLERANCE, LEAST_SUM = 0.99, (0.47, 0.52), 0.03, 0.97
WAYS = {"memory": ["--policy", "none"], "100": ["--policy", "fixed", "--compute", "100%"], "50": ["--policy", "fixed", "--compute", "50%"]}
SHARES = {"slicing": ["--policy", "none"], "fixed": ["--policy", "fixed", "--compute", "50%"], "balance": ["--policy", "balance", "--compute", "50%"]}
# Until what was saved up is used: twice a period of 0.3 s.
SETTLE_LIMITED = 1.0
# Until the daemon has compared turns and overlap.
SETTLE_COMPARED = 4.5
NAMES = {"memory": "memory limit only", "100": "100 %", "50": "50 %", "slicing": "sliced", "fixed": "50/50 fixed", "balance": "50/50 balance"}
SIMULATED = ("ddp", "tensor", "pipeline", "collectives", "threads", "jax")


def seconds(settings):
    """About how long it takes where there are two devices; nothing where there is one."""
    if visible() < 2:
        return 8
    worlds = max(sum(1 for world in settings.worlds if world <= visible()), 1)
    kinds, pairs = len(settings.kinds), len(settings.pairs)
    stretch = settings.settle + settings.turn + 0.2
    beside = len(settings.shares) * (SETTLE_COMPARED + settings.together + 0.2)
    one = start(4 * kinds) + kinds * settings.turns * ((len(settings.ways) + 1) * stretch + SETTLE_LIMITED)
    two = start(4 * pairs) + pairs * settings.rounds * (2 * stretch + beside)
    overlap = start(4) + settings.rounds * (3 * stretch + 2 * (1.2 + settings.together))
    cells = {"one": worlds * one, "two": worlds * two, "overlap": overlap, "killed": 40}
    return sum(cells.get(cell, 0) for cell in settings.cells)


def start(processes):
    return START + START_EACH * processes


def visible():
    """How many NVIDIA devices this machine has, without asking the driver."""
    try:
        return sum(name.removeprefix("nvidia").isdigit() for name in os.listdir("/dev") if name.startswith("nvidia"))
    except OSError:
        return 0


def run(proof):
    found = proof.data["several_gpus"] = {"gates": proof.gates(), "rows": []}
    rows, settings = found["rows"], proof.settings
    count = devices(proof)
    if count < 2:
        proof.check("several GPUs", None, f"SKIPPED: {count} visible device", "two or more visible devices")
        return
    try:
        with daemon.socket() as socket:
            for world in settings.worlds:
                if world > count:
                    proof.check(f"{world} GPUs", None, f"SKIPPED: {count} visible devices", f"{world} visible devices")
                    continue
                if "one" in settings.cells:
                    with proof.guard(f"jobs on {world} GPUs", "rates"):
                        one_job_each(proof, rows, world, socket)
                if "two" in settings.cells:
                    with proof.guard(f"two jobs on {world} GPUs", "rates"), daemon.Daemon(proof, socket):
                        two_jobs_each(proof, rows, world, socket)
            if "overlap" in settings.cells:
                with proof.guard("a job on {0,1} beside jobs on {0} and on {1}", "rates"), daemon.Daemon(proof, socket):
                    overlap(proof, rows, socket)
        if "killed" in settings.cells:
            killed(proof, rows)
    finally:
        (proof.out / "several-gpus.md").write_text(table(rows), encoding="utf-8")
        proof.show(table(rows))


def devices(proof):
    if proof.fake:
        return 2
    finished = proof.run([sys.executable, "-c", "import torch; print(torch.cuda.device_count())"], timeout=60)
    if not finished.ok:
        raise StepFailed(f"PyTorch: {finished.why()}")
    return int(finished.out.strip().splitlines()[-1])


def job(proof, kind, world, *options):
    """`kind`: as `ranks.py` calls it, and how its ranks are started where that is not by torchrun."""
    kind, _, start = kind.partition("-")
    if proof.fake:
        start, options = "processes", [*options, "--simulated"]
    return watched.program("ranks.py", kind, "--world", world, "--launcher", start or "torchrun", *options)


def steered_job(proof, kind, world):
    return job(proof, kind, world, "--commands", "--seconds", steered.LONGEST)


def tell(proof, program, options):
    refused = steered.limit(proof, program, *options)
    if refused:
        raise StepFailed(f"sluice limit {' '.join(options)}: {refused}")


def note(proof, rows, case, way, ratios, ok, wanted, further=""):
    """`ratios`: of each program, one for each time that it was measured."""
    if not ratios or not ratios[0]:
        proof.check(f"{case}: {NAMES.get(way, way)}", False, "nothing measured", wanted)
        return
    each = [median_and_interval(one) for one in ratios]
    rows.append({"case": case, "way": NAMES.get(way, way), "each": each, "sum": sum(one[0] for one in each), "ratios": ratios})
    text = " + ".join(shown(one, 3) for one in each) + (f" = {rows[-1]['sum']:.3f}" if len(each) > 1 else "") + " of alone"
    proof.check(f"{case}: {NAMES.get(way, way)}", None if proof.fake or wanted == "reported" else ok([one[0] for one in each]), text + further, wanted)


def results(proof, case, programs):
    """Whether jobs that have ended did so with right results; what was killed told none."""
    right = [(program.result or {}).get("correct") for program in programs]
    proof.check(f"{case}: results", all(right), ", ".join(map(str, right)), "right in all")


# --- one job


def one_job_each(proof, rows, world, socket):
    settings, commands = proof.settings, {}
    limited = socket if settings.daemon else None
    for kind in settings.kinds:
        if proof.fake and kind not in SIMULATED:
            proof.check(f"{kind}, {world} GPUs", None, "SKIPPED: not simulated", "rates")
            continue
        command = steered_job(proof, kind, world)
        commands[f"{kind}, native"] = (command, ENVIRONMENT)
        commands[f"{kind}, limited"] = (proof.limited(memory(proof), command, daemon=limited), ENVIRONMENT)
    service = daemon.Daemon(proof, socket) if settings.daemon else contextlib.nullcontext()
    with service, steered.started(proof, commands, START_LIMIT) as programs:
        for kind in settings.kinds:
            both = [programs.get(f"{kind}, {way}") for way in ("native", "limited")]
            case = f"{kind}, {world} GPUs"
            if None in both:
                continue
            with proof.guard(case, "rates"), proof.within(settings.limit):
                one_job(proof, rows, case, *both)
            steered.end_all(both)
            results(proof, case, both)


def memory(proof):
    return ["--mem", "8GiB" if proof.fake else "60GiB"]


def one_job(proof, rows, case, native, limited):
    settings, turns = proof.settings, []
    try:
        for number in range(settings.turns):
            turn, order = {}, ["native", *settings.ways]
            for way in order if number % 2 == 0 else reversed(order):
                if way == "native":
                    turn[way] = steered.rates(proof, [native], settings.settle, settings.turn)[0]
                    continue
                tell(proof, limited, WAYS[way])
                turn[way] = steered.slow_rates(proof, [limited], SETTLE_LIMITED if way == "50" else settings.settle, settings.turn)[0]
            turns.append(turn)
    finally:
        # What whole turns tell is not lost.
        for way in settings.ways if turns else []:
            low, high = HALF_RANGE if way == "50" else (LEAST_OPEN, 9)
            wanted = f"{low} to {high}" if way == "50" else f"at least {low}"
            rate = median_and_interval([turn["native"] for turn in turns])[0]
            ratios = [turn[way] / turn["native"] for turn in turns]
            note(proof, rows, case, way, [ratios], lambda each: low <= each[0] <= high, wanted, f" ({rate:.1f} steps/s)")


# --- two jobs on the same devices


def two_jobs_each(proof, rows, world, socket):
    commands = {}
    for kind in proof.settings.pairs:
        command = proof.limited([], steered_job(proof, kind, world), daemon=socket)
        commands.update({f"{kind}, {which}": (command, ENVIRONMENT) for which in ("first", "second")})
    with steered.started(proof, commands, START_LIMIT) as programs:
        for kind in proof.settings.pairs:
            case, both = f"two of {kind}, {world} GPUs", [programs.get(f"{kind}, {which}") for which in ("first", "second")]
            if None in both:
                continue
            with proof.guard(case, "rates"), proof.within(proof.settings.limit):
                beside(proof, rows, case, both, proof.settings.shares, socket)
            steered.end_all(both)
            results(proof, case, both)


def beside(proof, rows, case, programs, ways, socket):
    """Each alone, and all of them at once in each way, round after round. Of the last round, what part of each device's
    time each was charged for: that is what is promised, and what a program makes of it is its own."""
    settings, ratios, charges = proof.settings, {way: [[] for _ in programs] for way in ways}, {}
    try:
        for number in range(settings.rounds):
            for program in programs:
                tell(proof, program, SHARES["slicing"])
            alone = [steered.rates(proof, [program], settings.settle, settings.turn)[0] for program in programs]
            for way in ways if number % 2 == 0 else list(reversed(ways)):
                for program in programs:
                    tell(proof, program, SHARES[way])
                before, begun = daemon.charged(socket, programs), time.monotonic()
                settle = SETTLE_COMPARED if way == "balance" else SETTLE_LIMITED
                rates = steered.slow_rates(proof, programs, settle, settings.together)
                charges[way] = parts(before, daemon.charged(socket, programs), time.monotonic() - begun)
                for found, rate, base in zip(ratios[way], rates, alone):
                    found.append(rate / base)
    finally:
        sums = [sum(median_and_interval(one)[0] for one in ratios[way]) for way in ways if way != "balance" and ratios[way][0]]
        better = max(sums, default=LEAST_SUM) - TOLERANCE
        for way in ways:
            if way == "slicing":
                note(proof, rows, case, way, ratios[way], None, "reported")
            elif way == "balance":
                wanted = f"each at least {0.5 - TOLERANCE:.2f}, sum at least {better:.3f}"
                note(proof, rows, case, way, ratios[way], lambda each: min(each) >= 0.5 - TOLERANCE and sum(each) >= better, wanted, charges.get(way, ""))
            elif len(programs) == 2:
                note(proof, rows, case, way, ratios[way], fair, f"each within {TOLERANCE} of 0.5, sum {LEAST_SUM}", charges.get(way, ""))
            else:
                note(proof, rows, case, way, ratios[way], lambda each: min(each) >= 0.5 - TOLERANCE, f"each at least {0.5 - TOLERANCE:.2f}", charges.get(way, ""))


def parts(before, after, seconds):
    """What part of the time each program was charged for, on each of its devices; as text."""
    each = ["/".join(f"{(us - old.get(device, 0)) / 1e6 / seconds:.3f}" for device, us in sorted(new.items())) for old, new in zip(before, after)]
    return f"; charged {' + '.join(each)} of the time"


def fair(each):
    return max(abs(one - 0.5) for one in each) <= TOLERANCE and sum(each) >= LEAST_SUM


# --- a job on two devices, and one on each of them


def overlap(proof, rows, socket):
    """All have half of their devices. The job's figure comes first."""
    commands = {"ddp on {0,1}": (proof.limited([], steered_job(proof, "ddp", 2), daemon=socket), {**ENVIRONMENT, "CUDA_VISIBLE_DEVICES": "0,1"})}
    for device in ("0", "1"):
        name = f"train-large on {{{device}}}"
        commands[name] = (proof.limited([], real.command(proof, "train-large"), daemon=socket), {"CUDA_VISIBLE_DEVICES": device})
    with steered.started(proof, commands, START_LIMIT) as programs:
        if len(programs) < len(commands):
            raise StepFailed("not all of them run")
        with proof.within(proof.settings.limit):
            beside(proof, rows, "ddp on {0,1}, train-large on {0}, on {1}", list(programs.values()), [way for way in proof.settings.shares if way != "balance"], socket)
        steered.end_all(programs.values())
    results(proof, "ddp on {0,1}", [programs["ddp on {0,1}"]])


# --- a rank that dies


def killed(proof, rows):
    """All at once: only their ends are looked at."""
    starts, commands = ["processes"] if proof.fake else proof.settings.starts, []
    for start in starts:
        command = job(proof, f"ddp-{start}", 2, "--seconds", 60, "--kill-after", 3)
        commands += [(command, ENVIRONMENT), (proof.limited(["--compute", "50%"], command), ENVIRONMENT)]
    found = watched.side_by_side(proof, commands, 90)
    for start, native, limited in zip(starts, found[::2], found[1::2]):
        if native is None or limited is None:
            proof.check(f"a rank killed, {start}", False, "no time left", "as natively")
            continue
        same = native.status == limited.status and not limited.timed_out and limited.seconds <= native.seconds + 10
        text = f"status {native.status} after {native.seconds:.0f} s, limited {limited.status} after {limited.seconds:.0f} s"
        proof.check(f"a rank killed, {start}", same, text, "as natively, at most 10 s later")
        rows.append({"case": f"a rank killed, {start}", "way": text})


def table(rows):
    """Markdown."""
    lines = ["| case | way | of alone (95 %) | sum |", "| --- | --- | --- | ---: |"]
    for row in rows:
        each = " + ".join(shown(one, 3) for one in row.get("each", []))
        total = f"{row['sum']:.3f}" if len(row.get("each", [])) > 1 else ""
        lines.append(f"| {row['case']} | {row['way']} | {each} | {total} |")
    return "\n".join(lines) + "\n"
