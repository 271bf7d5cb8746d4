"""The daemon is killed, comes back, stands still (SIGSTOP) and goes on, while tenants run that fill the device.

Each tenant goes on from its own account: never above its share, and where it is alone not below it either; two of them
are sliced by the hardware then. Pauses are those between two completions by the device's clock: the longest one in the
first second without an answer, and the longest one later. What a turn takes is the longest one before, or, on the
tenant's own account, later than a second after the kill. Leases are back when the daemon charges a tenant for new ones.
"""

import contextlib
import os
import signal
import time

from harness import StepFailed
from steps import curve, daemon, dense, steered

SETTINGS = {
    "kernel_us": 130,
    # The tenants of a run.
    "shares": ["50", "50/50"],
    "native": 1.5,
    # Beside another the daemon first has to find out that each fills the device.
    "settle": 1.5,
    "before": 2.0,
    "gone": 3.0,
    "back": 2.5,
    "stopped": 2.0,
}
ABOVE_POINTS, BELOW_POINTS = 2.0, 3.0
# After a change of the daemon's state this much is not in the rates.
SKIPPED = 0.3
FIRST, MOST_LONGER = 1.0, 0.05
RESUMED, GIVE_UP = 1.0, 5.0
WINDOW = 0.001


def seconds(settings):
    """About how long it takes."""
    one = settings.settle + settings.before + settings.gone + settings.back + settings.stopped + settings.back
    return settings.native + 1 + len(settings.shares) * (one + 2)


def run(proof):
    rows = proof.data["daemon-loss"] = []
    kernel_us = proof.settings.kernel_us
    native = dense.native(proof, kernel_us, proof.settings.native)
    loads = steered.Loads(proof)
    loads.iterations[kernel_us] = native["iterations"]
    tenant = loads.command(f"dense{kernel_us}", "--windows", WINDOW)
    with daemon.socket() as socket:
        for shares in proof.settings.shares:
            with proof.guard(f"daemon lost, {shares}", "rates"):
                row = {"shares": [float(share) for share in shares.split("/")]}
                rows.append(row)
                Loss(proof, row, socket).run(tenant, native["rate"])


class Loss:
    """One run: the daemon's states, and what the tenants did in each."""

    def __init__(self, proof, row, socket):
        self.proof, self.row, self.socket = proof, row, socket
        self.shares = row["shares"]
        # What begins when, on the machine's clock; the last one is the end.
        self.moments = []
        # Judged where there is a real device.
        self.judged = (lambda ok: None) if proof.fake else bool

    def run(self, tenant, native):
        commands = [(self.proof.limited(["--compute", f"{share:g}%"], tenant, daemon=self.socket), None) for share in self.shares]
        with daemon.Daemon(self.proof, self.socket) as first, steered.running(self.proof, commands) as programs:
            for program in programs:
                program.say("go")
            time.sleep(self.proof.settings.settle)
            self.phase("with the daemon", self.proof.settings.before)
            self.disturb(first, programs)
        self.row["moments"] = self.moments
        curves = [curve.Curve(program, WINDOW) for program in programs]
        self.rates(curves, native)
        self.pauses(curves)
        for what, found in self.row["resumed"].items():
            shown = ", ".join("not at all" if one is None else f"{1e3 * one:.0f} ms" for one in found)
            ok = all(one is not None and one <= RESUMED for one in found)
            self.proof.check(f"{self.name()}, {what}: leases", self.judged(ok), f"again after {shown}", f"within {RESUMED:g} s")

    def name(self):
        return f"{'/'.join(f'{share:g}' for share in self.shares)} %"

    def disturb(self, first, programs):
        settings, self.row["resumed"] = self.proof.settings, {}
        self.begin("daemon killed")
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait()
        time.sleep(settings.gone)
        begun = time.monotonic()
        with daemon.Daemon(self.proof, self.socket) as second:
            # From when it listens; whoever hears of it tries it.
            self.begin("daemon back")
            self.row["start"] = time.monotonic() - begun
            self.row["resumed"]["daemon back"] = self.resumed(programs, [0] * len(programs))
            self.rest(settings.back)
            self.begin("daemon stopped")
            second.process.send_signal(signal.SIGSTOP)
            try:
                time.sleep(settings.stopped)
            finally:
                self.begin("daemon goes on")
                second.process.send_signal(signal.SIGCONT)
            # Nobody is charged for the stop, so what is charged from now on is for new leases.
            self.row["resumed"]["daemon goes on"] = self.resumed(programs, self.charged(programs))
            self.rest(settings.back)
            self.begin("end")

    # --- the daemon's states

    def begin(self, what):
        self.moments.append((what, time.monotonic()))

    def phase(self, what, seconds):
        self.begin(what)
        time.sleep(seconds)

    def rest(self, seconds):
        time.sleep(max(self.moments[-1][1] + seconds - time.monotonic(), 0))

    def charged(self, programs):
        """Microseconds that the daemon has charged each program's session."""
        return [sum(each.values()) for each in daemon.charged(self.socket, programs)]

    def resumed(self, programs, before):
        """Seconds since the last moment until each program is charged for more than a millisecond."""
        since, found = self.moments[-1][1], [None] * len(programs)
        while None in found and time.monotonic() - since < GIVE_UP:
            with contextlib.suppress(StepFailed):
                for index, charged in enumerate(self.charged(programs)):
                    if found[index] is None and charged > before[index] + 1000:
                        found[index] = time.monotonic() - since
            time.sleep(0.005)
        return found

    # --- what is found

    def rates(self, curves, native):
        self.row["rates"] = {}
        for (what, begin), (_, end) in zip(self.moments, self.moments[1:]):
            each = [100 * one.rate(begin + SKIPPED, end) / native for one in curves]
            self.row["rates"][what] = each
            pairs = list(zip(each, self.shares))
            ok = all(got <= share + ABOVE_POINTS for got, share in pairs)
            wanted = f"at most {ABOVE_POINTS:g} points above"
            if len(curves) == 1:
                ok = ok and all(got >= share - BELOW_POINTS for got, share in pairs)
                wanted += f", {BELOW_POINTS:g} below"
            shown = " + ".join(f"{got:.1f}" for got in each)
            self.proof.check(f"{self.name()}, {what}: rates", self.judged(ok), f"{shown} % of native", wanted)

    def pauses(self, curves):
        own, self.row["pauses"] = None, {}
        for number, (what, begin) in enumerate(self.moments):
            if what not in ("daemon killed", "daemon stopped"):
                continue
            since, until = self.moments[number - 1][1] + SKIPPED, self.moments[number + 1][1]
            before = [one.longest_pause(since, begin) for one in curves]
            first = [one.longest_pause(begin, begin + FIRST) for one in curves]
            later = [one.longest_pause(begin + FIRST, until) for one in curves]
            # What a turn takes without a daemon: nothing is tried there that takes long.
            own = own or later
            self.row["pauses"][what] = {"before": before, "first": first, "later": later}
            ok = all(max(found) - max(turns) <= MOST_LONGER for found, turns in zip(zip(first, later), zip(before, own)))
            text = f"{milliseconds(first)}, later {milliseconds(later)}; before {milliseconds(before)}"
            self.proof.check(f"{self.name()}, {what}: longest pauses", self.judged(ok), text, f"at most {1e3 * MOST_LONGER:.0f} ms beyond a turn")


def milliseconds(times):
    return ", ".join(f"{1e3 * one:.0f}" for one in times) + " ms"
