"""What an open gate costs real programs: at 100 %, at 99 %, and at the share that they need and 5 points more.

Processes of one program differ by up to a tenth. So one process is limited and not limited in turns, without a pause
(`sluice limit`), and each limited stretch is compared with those before and after it, which were not. Beside it, as
changes of a live process may not switch everything off: a native process and one that was limited from its start, in
turns while the other pauses, pair after pair of processes.

Programs that wait for their CPU differ by a tenth from one second to the next, too: now and then the machine takes
their CPU away. With `open-gate.medians=1` each step is waited for, and a stretch's speed is that of its median step.

The need of a program is what it is charged for, as `sluice status` tells it, while it may have all of the device.
"""

import contextlib
import json
import math
import statistics
import time

import medians
from harness import StepFailed
from steps import daemon, real, steered

SETTINGS = {
    "programs": real.TUNED,
    # Percent, or `need` for what the program needs and 5 points more.
    "limits": ["100", "99"],
    "toggles": 10,
    "slice": 1.0,
    # Of a stretch: what was launched before a change is not taken back.
    "discard": 0.25,
    # Pairs of processes, how often each of a pair runs, and how long.
    "pairs": 1,
    "turns": 6,
    "turn": 1.2,
    # So many programs' processes start at once.
    "at_once": 4,
    # 1: under a daemon; 0: with the session's own account.
    "daemon": 0,
    # 1: the speed in one process is that of the median step.
    "medians": 0,
}
FULL = {"limits": ["100", "99", "need"], "toggles": 30, "pairs": 4, "turns": 8, "at_once": 1}
JUDGE = {"programs": real.JUDGED}
LEAST = {"100": 0.99, "99": 0.98, "need": 0.98}
POINTS_MORE = 5


def seconds(settings):
    """About how long it takes."""
    toggled = settings.toggles * len(settings.limits) * 2 * (settings.slice + 0.03) + settings.slice
    if "need" in settings.limits:
        toggled += 2.5
    each = toggled * (settings.toggles > 0) + settings.pairs * settings.turns * 2 * (settings.turn + 0.1)
    at_once = max(min(settings.at_once, len(settings.programs)), 1)
    starts = math.ceil(len(settings.programs) / at_once) * (real.START + 1.5 * at_once * (2 * settings.pairs + (settings.toggles > 0)))
    return len(settings.programs) * each + starts


def run(proof):
    settings = proof.settings
    rows = proof.data["open_gate"] = [{"name": name, "gates": proof.gates()} for name in settings.programs]
    with daemon.socket() as socket:
        service = daemon.Daemon(proof, socket) if settings.daemon else contextlib.nullcontext()
        socket = socket if settings.daemon else None
        at_once = max(settings.at_once, 1)
        with service:
            for begin in range(0, len(rows), at_once):
                some(proof, rows[begin : begin + at_once], socket)
    proof.show(table(rows))


def some(proof, rows, socket):
    """Programs whose processes start together, and pause until it is their turn."""
    commands = {}
    for row in rows:
        native = real.command(proof, row["name"])
        if proof.settings.toggles:
            watched = real.command(proof, row["name"], *(["--took"] if proof.settings.medians else []))
            commands[f"{row['name']}, in turns"] = (proof.limited([], watched, daemon=socket), None)
        for number in range(proof.settings.pairs):
            commands[f"{row['name']}, native {number + 1}"] = (native, None)
            commands[f"{row['name']}, limited {number + 1}"] = (proof.limited(["--compute", "100%"], native, daemon=socket), None)
    with steered.started(proof, commands) as programs:
        for row in rows:
            name = row["name"]
            if program := programs.get(f"{name}, in turns"):
                with proof.guard(f"{name}: one process", "rates"):
                    toggled(proof, row, program)
            both = [[programs.get(f"{name}, {way} {number + 1}") for way in ("native", "limited")] for number in range(proof.settings.pairs)]
            if whole := [one for one in both if None not in one]:
                with proof.guard(f"{name}: pairs of processes", "rates"):
                    pairs(proof, row, whole)
            steered.end_all([program for key, program in programs.items() if key.startswith(f"{name}, ")])


def table(rows):
    """Markdown."""
    lines = ["| program | limit | of native (95 %) | ratios | like beside like |", "| --- | --- | --- | ---: | --- |"]
    for row in rows:
        told = row.get("toggled", {"ratios": {}, "rates": []})
        idle = of_like(told["rates"])
        for limit, ratios in told["ratios"].items():
            if ratios:
                alike = medians.shown(medians.median_and_interval(idle)) if idle else ""
                lines.append(f"| {row['name']} | {limit} | {medians.shown(medians.median_and_interval(ratios))} | {len(ratios)} | {alike} |")
        if ratios := ratios_of(row.get("pairs", [])):
            lines.append(f"| {row['name']} | 100, pairs of processes | {medians.shown(medians.median_and_interval(ratios))} | {len(ratios)} | |")
    return "\n".join(lines) + "\n"


def ratios_of(found):
    return [turn["limited"] / turn["native"] for turns in found for turn in turns]


# --- one process, limited and not limited in turns


def toggled(proof, row, program):
    name = row["name"]
    percents = {limit: percent(proof, program, limit, row) for limit in proof.settings.limits}
    stretches = in_turns(proof, program, percents)
    row["made_with"] = real.made_with(program)
    speed = median_speed if proof.settings.medians else steered.Steered.progress
    rates = [(what, speed(program, begin, end)) for what, begin, end in stretches]
    row["toggled"] = {"percents": percents, "rates": rates, "ratios": {}}
    idle = of_like(rates)
    for limit, value in percents.items():
        ratios = beside_neighbours(rates, limit)
        row["toggled"]["ratios"][limit] = ratios
        if value is None:
            proof.check(f"{name} at its need: one process", None, "not measured: nothing is charged to it here (the daemon keeps the account)", "a ratio")
            continue
        at = f"{value:g} %" + (f" (need {row['need']:.1f} + {POINTS_MORE})" if limit == "need" else "")
        judge(proof, f"{name} at {at}: one process in turns", limit, ratios, f"; like beside like {medians.shown(medians.median_and_interval(idle))}; {row['made_with']}" if idle else "")


def median_speed(program, begin, end):
    """Steps a second, if all between two moments took as long as the median one."""
    took = [ms for at, _, ms in list(program.took) if begin <= at <= end]
    return 1000 / statistics.median(took) if took else 0.0


def in_turns(proof, program, percents):
    """Not limited, limited, not limited, ...: which it was, and from when until when it is looked at."""
    order = [limit for limit, value in percents.items() if value is not None]
    stretches = []
    if not order:
        raise StepFailed("no limit to compare with")
    program.say("go")
    time.sleep(0.3)
    for number in range(2 * len(order) * proof.settings.toggles + 1):
        what = None if number % 2 == 0 else order[number // 2 % len(order)]
        apply(proof, program, percents.get(what))
        begin = time.monotonic() + proof.settings.discard * proof.settings.slice
        time.sleep(proof.settings.slice)
        stretches.append((what, begin, time.monotonic()))
        if proof.left() < 5:
            # What was measured is not lost.
            break
    steered.pause([program])
    return stretches


def apply(proof, program, value):
    """`value`: percent, or none for no limit."""
    options = ["--policy", "none"] if value is None else ["--policy", "fixed", "--compute", f"{value:g}%"]
    refused = steered.limit(proof, program, *options)
    if refused:
        raise StepFailed(f"sluice limit {' '.join(options)}: {refused}")


def beside_neighbours(rates, limit):
    """Each stretch under a limit, relative to the mean of the two beside it without one; those that stood still too
    tell nothing."""
    places = [i for i, (what, _) in enumerate(rates) if what == limit and 0 < i < len(rates) - 1]
    return [2 * rates[i][1] / beside for i in places if (beside := rates[i - 1][1] + rates[i + 1][1])]


def of_like(rates):
    """The same between stretches that are alike: what the method finds where there is nothing."""
    native = [rate for what, rate in rates if what is None]
    return [2 * native[i] / beside for i in range(1, len(native) - 1) if (beside := native[i - 1] + native[i + 1])]


def percent(proof, program, limit, row):
    """The limit in percent; none where a need is not known."""
    if limit != "need":
        return float(limit)
    apply(proof, program, 100.0)
    program.say("go")
    time.sleep(0.7)
    before, begun = charged(proof, program), time.monotonic()
    time.sleep(1.6)
    after, ended = charged(proof, program), time.monotonic()
    steered.pause([program])
    row["need"] = 100 * (after - before) / 1e6 / (ended - begun)
    return min(float(math.ceil(row["need"] + POINTS_MORE)), 100.0) if row["need"] > 0 else None


def charged(proof, program):
    """Microseconds of device time that the program's session was charged for, on the device that it uses most."""
    finished = proof.run([proof.tool("sluice"), "status", "--json"], timeout=10)
    sessions = json.loads(finished.out)["sessions"] if finished.ok else []
    for session in sessions:
        # A session is named by the process of `sluice run`, and numbers further.
        if session["session"].startswith(f"{program.process.pid}-"):
            return max(sum(one["charged_us"] or 0 for one in device["processes"]) for device in session["devices"])
    raise StepFailed(f"sluice status knows no session of process {program.process.pid}")


# --- pairs of processes


def pairs(proof, row, whole):
    """A native process and a limited one, each in its turn, pair after pair of processes."""
    name, found = row["name"], []
    row["pairs"] = found
    try:
        for both in whole:
            found.append([])
            for number in range(proof.settings.turns):
                found[-1].append(turn(proof, both, number))
    finally:
        # What whole turns tell is not lost.
        if ratios := ratios_of(found):
            means = [medians.median_and_interval(ratios_of([turns]))[0] for turns in found if turns]
            each = f"; by pair {' '.join(f'{one:.4f}' for one in means)}"
            judge(proof, f"{name} at 100 %: pairs of processes", None, ratios, each)


def turn(proof, both, number):
    """The rates of the two; every other time the limited one comes first."""
    order = ["native", "limited"] if number % 2 == 0 else ["limited", "native"]
    by_way = dict(zip(["native", "limited"], both))
    settle = proof.settings.discard * proof.settings.turn
    return {way: steered.rates(proof, [by_way[way]], settle, proof.settings.turn - settle)[0] for way in order}


def judge(proof, what, limit, ratios, further):
    """`limit` is none for what is only reported: processes differ more than the limit does."""
    if not ratios:
        proof.check(what, None, "no whole turn", "a ratio")
        return
    ratio = medians.median_and_interval(ratios)
    least = LEAST.get(limit, LEAST["99"]) if limit else None
    ok = None if proof.fake or least is None else ratio[0] >= least
    proof.check(what, ok, f"{medians.shown(ratio)}, {len(ratios)} ratios{further}", f"at least {least}" if least else "reported")
