"""Two or more programs on one GPU, in each way to share it.

Ways: sliced by the hardware, without limits; clients of one MPS server; and with equal shares under Sluice: in turns, at
once, in the way that the daemon chooses (all three with policy `balance`), and with policy `fixed`. For each group of
programs, named with `+`, all processes start at once and pause; then each program is measured alone and each way once a
round, every other round from the last to the first. A part is a program's speed in relation to the plain process alone in
the same round.

Writes pairs.md beside the proof's other results.
"""

import contextlib
import statistics

from harness import StepFailed
from steps import daemon, mps, real, steered

# What the daemon is told and the policy of both sessions; none: no daemon.
WAYS = {
    "slicing": None,
    "mps": None,
    "turns": (["--share", "turns"], "balance"),
    "overlap": (["--share", "overlap"], "balance"),
    "chosen": ([], "balance"),
    "fixed": ([], "fixed"),
}
SETTINGS = {
    "pairs": ["lstm+jax", "train-large+jax", "convnet+beam", "convnet+sparse", "generate+train-small"],
    "ways": ["slicing", "chosen"],
    "rounds": 2,
    "seconds": 1.2,
    # The daemon compares both ways within two seconds.
    "settle": 2.0,
}
FULL = {"ways": list(WAYS), "rounds": 3}
JUDGE = {"pairs": ["convnet+graph", "unet+jax", "vit+lstm", "moe+cupy", "decode+train-large"]}
SETTLE_PLAIN, START = 0.3, 18
# How much less than the better of slicing and turns a group may get done, and a session less than its share.
LESS = 0.03
GUARANTEE_LESS = 0.02


def seconds(settings):
    """About how long it takes."""
    limited = sum(1 for way in settings.ways if WAYS.get(way))
    plain = len(settings.ways) - limited + 2
    cell = settings.seconds + 0.3
    each = START + settings.rounds * (limited * (cell + settings.settle) + plain * (cell + SETTLE_PLAIN))
    return len(settings.pairs) * each


def run(proof):
    settings, rows = proof.settings, []
    for way in settings.ways:
        if way not in WAYS:
            raise StepFailed(f"pairs.ways: {way}: expected some of {', '.join(WAYS)}")
    proof.data["pairs"] = {"gates": proof.gates(), "rows": rows}
    try:
        with contextlib.ExitStack() as stack:
            sockets = {}
            for way in [way for way in settings.ways if WAYS[way]]:
                sockets[way] = stack.enter_context(daemon.socket())
                stack.enter_context(daemon.Daemon(proof, sockets[way], WAYS[way][0]))
            service = stack.enter_context(mps.wanted(proof, [way for way in settings.ways if way == "mps"]))
            for pair in settings.pairs:
                with proof.guard(pair, "the whole group"):
                    rows.append(measure(proof, pair, sockets, service))
    finally:
        (proof.out / "pairs.md").write_text(table(rows, settings.ways), encoding="utf-8")
        proof.show(table(rows, settings.ways))


def measure(proof, pair, sockets, service):
    """All rounds of a group."""
    settings, names = proof.settings, pair.split("+")
    ways = [way for way in settings.ways if way != "mps" or service]
    named = {}
    for way in ways:
        for index, name in enumerate(names):
            command = real.command(proof, name)
            if WAYS[way]:
                options = ["--compute", f"{100 / len(names):g}%", "--policy", WAYS[way][1]]
                command = proof.limited(options, command, daemon=sockets[way])
            named[f"{way} {index}"] = (command, service.env if way == "mps" else {})
    rounds = []
    with steered.started(proof, named) as programs:
        if len(programs) < len(named):
            raise StepFailed("not all of its programs run")
        cells = [("alone", index) for index in range(len(names))] + [(way, None) for way in ways]
        for number in range(settings.rounds):
            got = {}
            for way, index in cells if number % 2 == 0 else reversed(cells):
                who = [programs[f"slicing {index}"]] if way == "alone" else [programs[f"{way} {one}"] for one in range(len(names))]
                settle = settings.settle if WAYS.get(way) else SETTLE_PLAIN
                got[way, index] = steered.slow_rates(proof, who, settle, settings.seconds)
            rounds.append(got)
    return judge(proof, pair, ways, rounds)


def judge(proof, pair, ways, rounds):
    """The row of a group: for each way the parts of its programs, round by round."""
    row = {"pair": pair, "ways": {}}
    for way in ways:
        parts = [[got / one["alone", index][0] for index, got in enumerate(one[way, None])] for one in rounds]
        row["ways"][way] = {"each": [statistics.median(each) for each in zip(*parts)], "sums": sorted(map(sum, parts))}
    if "chosen" in row["ways"] and "slicing" in row["ways"]:
        chosen = row["ways"]["chosen"]
        best = max(middle(row["ways"][way]) for way in ("slicing", "turns") if way in row["ways"])
        guarantee = 1 / len(chosen["each"]) - GUARANTEE_LESS
        # A guarantee may force turns.
        ok = middle(chosen) >= best - LESS or (min(chosen["each"]) >= guarantee and min(row["ways"]["slicing"]["each"]) < guarantee)
        proof.check(f"{pair}: chosen", None if proof.fake else ok, shown(chosen), f"{best - LESS:.2f} together, or each {guarantee:.2f}")
    return row


def middle(way):
    return statistics.median(way["sums"])


def shown(way):
    each = " + ".join(f"{part:.2f}" for part in way["each"])
    return f"{each} = {middle(way):.2f} [{way['sums'][0]:.2f}-{way['sums'][-1]:.2f}]"


def table(rows, ways):
    """Markdown."""
    lines = [f"| pair | {' | '.join(ways)} |", "| --- |" + " --- |" * len(ways)]
    for row in rows:
        cells = [shown(row["ways"][way]) if way in row["ways"] else "-" for way in ways]
        lines.append(f"| {row['pair'].replace('+', ' + ')} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
