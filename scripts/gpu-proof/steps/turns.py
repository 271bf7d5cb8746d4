"""Turns are short: two programs that fill the device, each with a share, and beside them what slicing gives.

Pauses are those between two completions in a tenant, by the device's clock. What each gets is told for each second as
well. Two equal real trainings at 50/50 are judged by their speeds.
"""

import contextlib
import math
import time

from harness import StepFailed
from medians import median_and_interval, percentile, shown
from steps import curve, daemon, dense, real, steered

SETTINGS = {
    "kernels_us": [60, 250, 1000, 2500],
    "shares": ["25/75", "50/50", "75/25", "10/90"],
    "native": 1.5,
    "seconds": 4.0,
    "settle": 1.5,
    "trainings": ["train-large"],
    "training_seconds": 8.0,
}
FULL = {"native": 2.0, "seconds": 8.0, "settle": 2.0, "training_seconds": 25.0}
JUDGE = {"trainings": ["vit", "moe"]}
# Pauses are looked for in windows as short as this.
WINDOW = 0.001
TOLERANCE_POINTS, SECOND_POINTS, LEAST_SUM, MOST_P95_MS, SPEED_POINTS = 1.0, 2.0, 0.98, 12.0, 2.0
POLICY = ["--policy", "fixed"]
# Of the time in which two trainings are looked at.
PARTS = 6


def seconds(settings):
    """About how long it takes."""
    each = settings.settle + settings.seconds + 1.2
    trainings = len(settings.trainings) * (2.5 * real.START + 2 * (settings.training_seconds + 2) + 8)
    return len(settings.kernels_us) * (settings.native + 1.5 + (len(settings.shares) + 1) * each) + trainings


def run(proof):
    found = proof.data["turns"] = {"gates": proof.gates(), "dense": [], "trainings": []}
    with daemon.socket() as socket:
        for kernel_us in proof.settings.kernels_us:
            with proof.guard(f"kernels of {kernel_us} us alone", "a rate"):
                kernels(proof, found["dense"], kernel_us, socket)
        for name in proof.settings.trainings:
            with proof.guard(f"two of {name}", "speeds"):
                trainings(proof, found["trainings"], name, socket)


def kernels(proof, rows, kernel_us, socket):
    native = dense.native(proof, kernel_us, proof.settings.native)
    loads = steered.Loads(proof)
    loads.iterations[kernel_us] = native["iterations"]
    tenant = loads.command(f"dense{kernel_us}", "--windows", WINDOW)
    for shares in [None, *proof.settings.shares]:
        name = f"{kernel_us} us, {shares or 'slicing'}"
        with proof.guard(name, "rates"), contextlib.ExitStack() as stack:
            commands = [(tenant, None)] * 2
            if shares:
                stack.enter_context(daemon.Daemon(proof, socket))
                commands = [(proof.limited(["--compute", f"{share}%", *POLICY], tenant, daemon=socket), None) for share in shares.split("/")]
            row = measure(proof, kernel_us, shares, native["rate"], commands)
            rows.append(row)
            judge(proof, name, row)


def measure(proof, kernel_us, shares, native, commands):
    with steered.running(proof, commands) as programs:
        for program in programs:
            program.say("go")
        time.sleep(proof.settings.settle)
        begin = time.monotonic()
        time.sleep(proof.settings.seconds)
        end = time.monotonic()
    curves = [curve.Curve(program, WINDOW) for program in programs]
    each_second = [[100 * one.rate(begin + at, begin + at + 1) / native for one in curves] for at in range(int(end - begin))]
    pauses = [waits(one, begin, end, kernel_us) for one in curves]
    told_by_tenants = [(program.result or {}).get("pauses") for program in programs]
    return {"kernel_us": kernel_us, "shares": shares, "each": [100 * one.rate(begin, end) / native for one in curves], "seconds": each_second, "pauses": pauses, "told_by_tenants": told_by_tenants}


def waits(one, begin, end, kernel_us):
    """Percentiles of the pauses between two moments, each to a window; shorter ones than two kernels are none."""
    first, last = (max(int((moment - one.at) / WINDOW), 0) for moment in (begin, end))
    least = max(2, math.ceil(2 * kernel_us / 1e6 / WINDOW))
    runs = [1e3 * WINDOW * length for length in zero_runs(one.windows[first:last]) if length >= least]
    return {"count": len(runs), **{f"p{percent}_ms": percentile(runs, percent) for percent in (50, 95, 99)}, "longest_ms": max(runs)} if runs else None


def zero_runs(values):
    """The lengths of the stretches of zeros that have something on both sides."""
    lengths, here, begun = [], 0, False
    for value in values:
        if value > 0:
            if begun and here:
                lengths.append(here)
            begun, here = True, 0
        else:
            here += 1
    return lengths


def judge(proof, name, row):
    each, total = row["each"], sum(row["each"]) / 100
    known = [one for one in row["pauses"] if one]
    waits = "; ".join(" ".join(f"{key.removesuffix('_ms')} {value:.1f}" for key, value in one.items() if key.endswith("_ms")) for one in known)
    got = " + ".join(f"{one:.1f}" for one in each)
    if not row["shares"]:
        proof.check(name, None, f"{got} = {total:.3f} of alone; waits {waits} ms", "the hardware's own")
        return
    judged = (lambda ok: None) if proof.fake else bool
    shares = [float(share) for share in row["shares"].split("/")]
    # The sum is judged apart: a share is a part of what both get.
    of_sum = [one / total for one in each] if total else each
    off = max(abs(one - share) for one, share in zip(of_sum, shares))
    worst_second = max((abs(100 * one / sum(second) - share) for second in row["seconds"] if sum(second) for one, share in zip(second, shares)), default=None)
    proof.check(f"{name}: shares", judged(off <= TOLERANCE_POINTS), f"{got} % of alone; of the sum at most {off:.2f} points off", f"within {TOLERANCE_POINTS:g} points")
    if worst_second is not None:
        proof.check(f"{name}: each second", judged(worst_second <= SECOND_POINTS), f"at most {worst_second:.2f} points off", f"within {SECOND_POINTS:g} points")
    proof.check(f"{name}: sum", judged(total >= LEAST_SUM), f"{total:.4f} of alone", f"at least {LEAST_SUM}")
    p95 = max((one["p95_ms"] for one in known), default=None)
    proof.check(f"{name}: waits, p95", judged(p95 is not None and p95 <= MOST_P95_MS), f"{waits} ms" if known else "not told", f"at most {MOST_P95_MS:g} ms")


# --- two equal real trainings


def trainings(proof, rows, name, socket):
    command, row = real.command(proof, name), {"name": name, "ways": {}}
    rows.append(row)
    with daemon.Daemon(proof, socket):
        half = ["--compute", "50%"]
        limited = proof.limited([*half, "--policy", "fixed"], command, daemon=socket)
        for way, commands in {"slicing": [command] * 2, "sluice": [limited] * 2}.items():
            with proof.guard(f"two of {name}, {way}", "speeds"), steered.running(proof, [(one, None) for one in commands]) as both:
                if way == "slicing":
                    row["alone"] = [steered.rates(proof, [one], 0.5, 3.0)[0] for one in both]
                policies = ["slicing"] if way == "slicing" else ["fixed", "balance"]
                for policy in policies:
                    if policy == "balance":
                        for one in both:
                            refused = steered.limit(proof, one, *half, "--policy", "balance")
                            if refused:
                                raise StepFailed(f"sluice limit: {refused}")
                    begin, end = steered.run_for(proof, both, 2.0, proof.settings.training_seconds)
                    length = (end - begin) / PARTS
                    parts = [[one.progress(begin + length * part, begin + length * (part + 1)) for part in range(PARTS)] for one in both]
                    row["ways"][policy] = parts
                    told(proof, name, policy, parts, row.get("alone"))


def told(proof, name, policy, parts, alone):
    """`parts`: of each training, its speed in each part of the time."""
    base = sum(alone) / len(alone) if alone else None
    if not base:
        raise StepFailed("not judged: the speed alone is not known")
    rates = [sum(one) / len(one) for one in parts]
    found = median_and_interval([100 * (one - other) / base for one, other in zip(*parts)])
    apart = 100 * abs(rates[0] - rates[1]) / base
    text = f"{rates[0]:.2f} + {rates[1]:.2f} steps/s = {sum(rates) / base:.3f} of alone; {apart:.1f} points apart, by parts {shown(found, 1)}"
    ok = None if proof.fake or policy == "slicing" else apart <= SPEED_POINTS
    proof.check(f"two of {name}, 50/50 {policy}: speeds", ok, text, "the hardware's own" if policy == "slicing" else f"within {SPEED_POINTS:g} points")
