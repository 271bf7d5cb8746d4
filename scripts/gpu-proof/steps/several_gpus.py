"""Programs that use several devices together: a session holds its devices together.

One job: native, with a memory limit only, at 100 % and at 50 %; the limited one is one process that is told so in turn,
without a daemon. Two jobs under a daemon: sliced, at 50/50. A job on two devices beside a job on each of them. A rank
that is killed ends the job as natively. Needs two devices; for some cells, as many as the cell says.
"""

import os
import sys

from harness import StepFailed
from medians import median_and_interval, shown
from steps import daemon, real, steered, watched

SETTINGS = {
    "worlds": [2, 4],
    "kinds": ["ddp", "tensor", "pipeline", "peer", "threads", "collectives"],
    "pairs": ["ddp", "tensor"],
    # How the ranks are started; processes: without torchrun, only for the first kind.
    "starts": ["torchrun", "processes"],
    "cells": ["one", "two", "overlap", "killed"],
    "turns": 5,
    "turn": 1.6,
    "settle": 0.4,
    "together": 5.0,
    "daemon": 0,
}
FULL = {"turns": 12, "turn": 2.2, "together": 12.0}
START = 25
# Multicast between devices is left off: it can put a shared host's devices out of service.
ENVIRONMENT = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
LEAST_OPEN, HALF_RANGE, TOLERANCE, LEAST_SUM = 0.99, (0.47, 0.52), 0.03, 0.97
WAYS = {"memory limit only": ["--policy", "none"], "100 %": ["--policy", "fixed", "--compute", "100%"], "50 %": ["--policy", "fixed", "--compute", "50%"]}
MEMORY = ["--mem", "60GiB"]


def seconds(settings):
    """About how long it takes where there are two devices; nothing where there is one."""
    if visible() < 2:
        return 8
    worlds = max(sum(1 for world in settings.worlds if world <= visible()), 1)
    jobs = len(settings.kinds) + ("processes" in settings.starts)
    one = jobs * (START + settings.turns * (len(WAYS) + 1) * (settings.turn + settings.settle))
    two = len(settings.pairs) * (START + 5 * (settings.together + 1))
    cells = {"one": worlds * one, "two": worlds * two, "overlap": 2 * START + 5 * settings.together, "killed": 2 * START}
    return sum(cells.get(cell, 0) for cell in settings.cells)


def visible():
    """How many NVIDIA devices this machine has, without asking the driver."""
    try:
        return sum(name.removeprefix("nvidia").isdigit() for name in os.listdir("/dev") if name.startswith("nvidia"))
    except OSError:
        return 0


def run(proof):
    found = proof.data["several_gpus"] = {"gates": proof.gates(), "one": [], "two": [], "overlap": [], "killed": []}
    count = devices(proof)
    if count < 2:
        why = "no real GPU" if proof.fake else f"{count} visible device"
        proof.check("several GPUs", None, f"SKIPPED: {why}", "two or more visible devices")
        return
    with daemon.socket() as socket:
        for world in proof.settings.worlds:
            if world > count:
                proof.check(f"{world} GPUs", None, f"SKIPPED: {count} visible devices", f"{world} visible devices")
                continue
            if "one" in proof.settings.cells:
                for kind in proof.settings.kinds:
                    one_job(proof, found["one"], kind, world, "torchrun", socket)
                if "processes" in proof.settings.starts:
                    one_job(proof, found["one"], proof.settings.kinds[0], world, "processes", socket)
            if "two" in proof.settings.cells:
                for kind in proof.settings.pairs:
                    two_jobs(proof, found["two"], kind, world, socket)
        if "overlap" in proof.settings.cells:
            overlap(proof, found["overlap"], socket)
        if "killed" in proof.settings.cells:
            killed(proof, found["killed"])


def devices(proof):
    if proof.fake:
        return 0
    finished = proof.run([sys.executable, "-c", "import torch; print(torch.cuda.device_count())"], timeout=60)
    if not finished.ok:
        raise StepFailed(f"PyTorch: {finished.why()}")
    return int(finished.out.strip().splitlines()[-1])


def job(kind, world, start="torchrun", *options):
    return watched.program("ranks.py", kind, "--world", world, "--launcher", start, *(options or ["--commands", "--seconds", steered.LONGEST]))


def tell(proof, program, options):
    refused = steered.limit(proof, program, *options)
    if refused:
        raise StepFailed(f"sluice limit {' '.join(options)}: {refused}")


def ended_right(program):
    """Whether the job ended with right results."""
    return bool((program.result or {}).get("correct"))


# --- one job


def one_job(proof, rows, kind, world, start, socket):
    name = f"{kind}, {world} GPUs" + ("" if start == "torchrun" else f", {start}")
    with proof.guard(name, "rates"):
        if not proof.settings.daemon:
            measure_one(proof, rows, name, job(kind, world, start), None)
            return
        with daemon.Daemon(proof, socket):
            measure_one(proof, rows, name, job(kind, world, start), socket)


def measure_one(proof, rows, name, command, socket):
    settings, turns = proof.settings, []
    rows.append({"name": name, "turns": turns})
    try:
        with steered.running(proof, [(command, ENVIRONMENT), (proof.limited(MEMORY, command, daemon=socket), ENVIRONMENT)]) as (native, limited):
            for number in range(settings.turns):
                turn = {}
                ways = [None, *WAYS]
                for way in ways if number % 2 == 0 else reversed(ways):
                    if way:
                        tell(proof, limited, WAYS[way])
                    turn[way or "native"] = steered.rates(proof, [limited if way else native], settings.settle, settings.turn)[0]
                turns.append(turn)
    finally:
        for way in WAYS if turns else []:
            ratio = median_and_interval([turn[way] / turn["native"] for turn in turns])
            low, high = HALF_RANGE if way == "50 %" else (LEAST_OPEN, None)
            ok = ratio[0] >= low and (high is None or ratio[0] <= high)
            wanted = f"{low} to {high}" if high else f"at least {low}"
            native = median_and_interval([turn["native"] for turn in turns])[0]
            proof.check(f"{name}: {way}", ok, f"{shown(ratio, 3)} of native ({native:.1f} steps/s)", wanted)
    proof.check(f"{name}: results", ended_right(native) and ended_right(limited), f"native {ended_right(native)}, limited {ended_right(limited)}", "right in both")


# --- two jobs on the same devices


def two_jobs(proof, rows, kind, world, socket):
    name, settings = f"two of {kind}, {world} GPUs", proof.settings
    row = {"name": name, "rates": {}}
    rows.append(row)
    ways = {"slicing": ["--policy", "none"], "50/50 fixed": ["--policy", "fixed", "--compute", "50%"], "50/50 balance": ["--policy", "balance", "--compute", "50%"]}
    with proof.guard(name, "rates"), daemon.Daemon(proof, socket):
        command = proof.limited([], job(kind, world), daemon=socket)
        with steered.running(proof, [(command, ENVIRONMENT)] * 2) as both:
            alone = [steered.rates(proof, [one], settings.settle, 2.5)[0] for one in both]
            row["rates"]["alone"] = alone
            for way, options in ways.items():
                with proof.guard(f"{name}: {way}", "rates"):
                    for one in both:
                        tell(proof, one, options)
                    each = [rate / by_itself for rate, by_itself in zip(steered.slow_rates(proof, both, 1.0, settings.together), alone)]
                    row["rates"][way] = each
                    ok = None
                    if way != "slicing":
                        ok = max(abs(one - 0.5) for one in each) <= TOLERANCE and sum(each) >= LEAST_SUM
                    proof.check(f"{name}: {way}", ok, f"{each[0]:.3f} + {each[1]:.3f} = {sum(each):.3f} of alone", "reported" if ok is None else f"each within {TOLERANCE}, sum {LEAST_SUM}")
        proof.check(f"{name}: results", all(map(ended_right, both)), ", ".join(str(ended_right(one)) for one in both), "right in both")


# --- a job on two devices, and one on each of them


def overlap(proof, rows, socket):
    """All have half of their devices."""
    settings, half = proof.settings, ["--policy", "fixed", "--compute", "50%"]
    row = {"names": ["ddp on {0,1}", "train-large on {0}", "train-large on {1}"]}
    rows.append(row)
    with proof.guard("a job on {0,1} beside jobs on {0} and on {1}", "rates"), daemon.Daemon(proof, socket):
        commands = [(proof.limited([], job("ddp", 2), daemon=socket), {**ENVIRONMENT, "CUDA_VISIBLE_DEVICES": "0,1"})]
        for device in ("0", "1"):
            commands.append((proof.limited([], real.command(proof, "train-large"), daemon=socket), {"CUDA_VISIBLE_DEVICES": device}))
        with steered.running(proof, commands) as programs:
            alone = row["alone"] = [steered.rates(proof, [one], settings.settle, 2.5)[0] for one in programs]
            row["sliced"] = [rate / base for rate, base in zip(steered.slow_rates(proof, programs, 1.0, settings.together), alone)]
            for program in programs:
                tell(proof, program, half)
            row["each"] = each = [rate / base for rate, base in zip(steered.slow_rates(proof, programs, 1.0, settings.together), alone)]
        for name, got, sliced in zip(row["names"], each, row["sliced"]):
            proof.check(f"{name}, each at 50 %", got >= 0.5 - TOLERANCE, f"{got:.3f} of alone, sliced {sliced:.3f}", f"at least {0.5 - TOLERANCE:.2f}")


# --- a rank that dies


def killed(proof, rows):
    for start in proof.settings.starts:
        command = job("ddp", 2, start, "--seconds", 60, "--kill-after", 3)
        with proof.guard(f"a rank killed, {start}", "as natively"):
            native = proof.run(command, timeout=90, env=ENVIRONMENT)
            limited = proof.run(proof.limited(["--compute", "50%"], command), timeout=90, env=ENVIRONMENT)
            rows.append({"start": start, "status": [native.status, limited.status], "seconds": [native.seconds, limited.seconds]})
            same = native.status == limited.status and not limited.timed_out and limited.seconds <= native.seconds + 10
            text = f"status {native.status} after {native.seconds:.0f} s, limited {limited.status} after {limited.seconds:.0f} s"
            proof.check(f"a rank killed, {start}", same, text, "as natively, at most 10 s later")
