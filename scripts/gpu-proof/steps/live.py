"""A change of share, policy, soft limit, weight or priority while programs run takes effect within 100 ms.

Each kind of change is made to and fro, many times, by `sluice limit`. Looked at is what the device did from 100 to
300 ms after the command had returned, by the device's clock. Told as well is how soon the new rate was there: when the
first 50 ms begin in which, averaged over the changes of a kind, nine tenths of the way are gone.
"""

import itertools
import time

from harness import StepFailed
from steps import curve, daemon, steered

SETTINGS = {
    "kinds": ["share", "limit", "share-daemon", "limit-daemon", "policy", "soft", "weight", "priority"],
    # Short ones: work that was launched before a change is not taken back.
    "kernel_us": 130,
    "toggles": 5,
    "native": 1.0,
    # Beside another the daemon first has to find out that each fills the device.
    "settle": 1.0,
}
FULL = {"toggles": 20}
WITHIN, LOOK, TOLERANCE_POINTS = 0.1, 0.2, 5.0
# The shortest time whose rate means something, and how much of the way from the old rate to the new one it has to have gone.
SHORT, WAY = 0.05, 0.9
WINDOW = 0.002
START = 1.5

BALANCED = ["--compute", "10%", "--policy", "balance"]
HALF = ["--compute", "50%", "--policy", "balance"]
# Whether there is a daemon, how the programs begin, and what the first is told in turn, with the percent that it then gets.
KINDS = {
    "share": (False, [[]], [(["--compute", "75%"], 75), (["--compute", "25%"], 25)]),
    "limit": (False, [[]], [(["--compute", "75%"], 75), (["--policy", "none"], 100)]),
    "share-daemon": (True, [[]], [(["--compute", "75%"], 75), (["--compute", "25%"], 25)]),
    "limit-daemon": (True, [[]], [(["--compute", "75%"], 75), (["--policy", "none"], 100)]),
    "policy": (True, [["--compute", "30%"]], [(["--policy", "balance"], 100), (["--policy", "fixed"], 30)]),
    "soft": (True, [["--compute", "30%"]], [(["--burst", "80%"], 80), (["--burst", "40%"], 40)]),
    # Of the 80 % that are guaranteed to nobody.
    "weight": (True, [BALANCED, [*BALANCED, "--weight", "3"]], [(["--weight", "9"], 70), (["--weight", "1"], 30)]),
    "priority": (True, [HALF, HALF], [(["--priority", "low"], 5), (["--priority", "high"], 50)]),
}


def seconds(settings):
    """About how long it takes."""
    each = START + settings.native + settings.settle + 2 * settings.toggles * (WITHIN + LOOK + 0.06)
    return 1 + len(settings.kinds) * each


def run(proof):
    rows = proof.data["live"] = []
    loads = steered.Loads(proof)
    with daemon.socket() as socket:
        for kind in proof.settings.kinds:
            with proof.guard(f"live change: {kind}", "rates"):
                if kind not in KINDS:
                    raise StepFailed(f"expected some of {', '.join(KINDS)}")
                change(proof, rows, loads, kind, socket)


def change(proof, rows, loads, kind, socket):
    with_daemon, begins, changes = KINDS[kind]
    command = loads.command(f"dense{proof.settings.kernel_us}", "--windows", WINDOW)
    if not with_daemon:
        part, moments = toggle(proof, [(proof.limited([], command), None)], begins, changes)
    else:
        with daemon.Daemon(proof, socket):
            part, moments = toggle(proof, [(proof.limited([], command, daemon=socket), None)] * len(begins), begins, changes)
    of = "native" if len(begins) == 1 else "what both get"
    for number, (options, expected) in enumerate(changes):
        times = moments[number :: len(changes)]
        shares = [part(at + WITHIN, at + WITHIN + LOOK) for at in times]
        share = sum(shares) / len(shares)
        after = until_changed(part, times, changes[number - 1][1], expected)
        rows.append({"kind": kind, "options": options, "expected": expected, "shares": shares, "new_rate_after_s": after})
        soon = "not there by then" if after is None else f"there after {1e3 * after:.0f} ms"
        text = f"{share:.1f} % of {of} ({min(shares):.1f} to {max(shares):.1f}); {soon}"
        ok = abs(share - expected) <= TOLERANCE_POINTS
        proof.check(f"{kind}: sluice limit {' '.join(options)}", ok, text, f"{expected} within {TOLERANCE_POINTS:g} points, {1e3 * WITHIN:.0f} to {1e3 * (WITHIN + LOOK):.0f} ms after")


def toggle(proof, commands, begins, changes):
    """What tells the first program's percentage between two moments, and when each change was made."""
    with steered.running(proof, commands) as programs:
        first = programs[0]
        first.say("go")
        time.sleep(0.2)
        begin = time.monotonic()
        time.sleep(proof.settings.native)
        end = time.monotonic()
        for program, options in zip(programs, begins):
            if options:
                limit(proof, program, options)
            program.say("go")
        time.sleep(proof.settings.settle)
        # As many to as fro; the first comes from elsewhere than the others.
        limit(proof, first, changes[-1][0])
        time.sleep(WITHIN + LOOK)
        moments = []
        for options, _ in itertools.chain.from_iterable([changes] * proof.settings.toggles):
            limit(proof, first, options)
            moments.append(time.monotonic())
            time.sleep(WITHIN + LOOK + 0.03)
    curves = [curve.Curve(program, WINDOW) for program in programs]
    native = curves[0].rate(begin, end)

    def part(begin, end):
        rates = [one.rate(begin, end) for one in curves]
        # Beside another: of what both get, so that this is about who gets it.
        return 100 * rates[0] / (native if len(rates) == 1 else max(sum(rates), native / 1000))

    return part, moments


def until_changed(part, times, old, new):
    """How long after changes, averaged over them, the first 50 ms begin that have gone most of the way."""
    for step in range(int((WITHIN + LOOK) / WINDOW)):
        after = step * WINDOW
        share = sum(part(at + after, at + after + SHORT) for at in times) / len(times)
        if (share - old) / (new - old) >= WAY:
            return after
    return None


def limit(proof, program, options):
    refused = steered.limit(proof, program, *options)
    if refused:
        raise StepFailed(f"sluice limit {' '.join(options)}: {refused}")
