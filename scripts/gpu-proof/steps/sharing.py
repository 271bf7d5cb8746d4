"""Pairs of tenants beside each other: time sliced by the hardware, under Sluice, under the vendor's MPS.

All processes of a pair are there from the start, two for each way, and all but those that are measured pause. For
each way: the first alone, both, the second alone, both. Figures are relative to the same process alone, those of
dense programs to alone and native.
Under Sluice each has a guaranteed share (policy balance). Pairs with a program that waits for its CPU are judged by
what `in_turns` does with the processes under Sluice, alone and sliced included.
"""

from steps import daemon, in_turns, mps, steered

SETTINGS = {
    "pairs": ["train+train", "decode+decode", "dense2500+decode", "dense130+decode", "dense130+dense130"],
    "ways": ["slicing", "sluice", "mps"],
    # Under Sluice; those that are not equal where one of the two is dense and the other is not.
    "shares": ["50/50", "75/25", "25/75"],
    "alone": 1.5,
    "together": 2.5,
    # Leases and densities adapt within a second; without Sluice nothing has to.
    "settle": 1.0,
    "settle_plain": 0.3,
    # Programs of which one at least waits for its CPU: cycles, and how long a stretch is measured after it has settled.
    "turns": 3,
    "turn": 2.5,
    "turn_settle": 2.0,
}
FULL = {
    "pairs": ["train+train", "decode+decode", "train+decode", "dense2500+decode", "dense130+decode", "dense130+train", "dense130+dense130", "dense2500+dense2500"],
    "alone": 2.0,
    "together": 3.0,
    "turns": 6,
}
START = {"train": 9, "decode": 9, "graph": 9}
LEAST_SUM_DENSE, TOLERANCE = 0.97, 0.02


def seconds(settings):
    """About how long it takes."""
    total = 14 * ("mps" in settings.ways)
    for pair in settings.pairs:
        names = pair.split("+")
        total += max(START.get(name, 2) for name in names)
        turns = "sluice" in settings.ways and not all(map(is_dense, names))
        ways = [way for way in settings.ways if way != "sluice" or not turns]
        total += sum(2 * (settings.alone + settings.together + 2 * settle(way, settings)) for way in ways) + 1
        total += in_turns.seconds(shares_of(names, settings), settings) if turns else 0
    return total


def settle(way, settings):
    return settings.settle if way == "sluice" else settings.settle_plain


def is_dense(name):
    return name.startswith("dense")


def shares_of(names, settings):
    """The pairs of shares that are asked of a pair of programs."""
    mixed = is_dense(names[0]) != is_dense(names[1])
    return [tuple(map(int, one.split("/"))) for one in settings.shares if mixed or one == "50/50"]


def run(proof):
    found = proof.data["sharing"] = {"pairs": []}
    loads = steered.Loads(proof)
    with daemon.socket() as socket, mps.wanted(proof, "mps" in proof.settings.ways) as service:
        for pair in proof.settings.pairs:
            with proof.guard(pair, "rates"):
                one = Pair(proof, loads, pair.split("+"), socket, service, found)
                one.measure()
                # What could not be started with it once is not waited for again.
                service = one.service


class Pair:
    """Two programs, in two processes for each way."""

    def __init__(self, proof, loads, names, socket, service, found):
        self.proof, self.names, self.socket, self.service = proof, names, socket, service
        self.settings = proof.settings
        self.commands = [loads.command(name) for name in names]
        self.shares = shares_of(names, self.settings)
        self.row = {"names": names, "ways": {}, "rates": {}}
        found["pairs"].append(self.row)

    def measure(self):
        ways = [way for way in self.settings.ways if way != "mps" or self.service]
        try:
            self.side_by_side(ways)
        except steered.NotStarted as failure:
            if "mps" not in ways:
                raise
            # The vendor's service is no reason to measure nothing.
            self.proof.check("MPS", None, f"not measured from here on: {failure}", "the vendor's, in the same run")
            self.service = None
            self.side_by_side([way for way in ways if way != "mps"])

    def side_by_side(self, ways):
        with daemon.Daemon(self.proof, self.socket):
            commands = [command for way in ways for command in self.started(way)]
            with steered.running(self.proof, commands) as programs:
                by_way = {way: programs[2 * i : 2 * i + 2] for i, way in enumerate(ways)}
                for way, both in by_way.items():
                    with self.proof.guard(f"{' + '.join(self.names)}, {way}", "rates"):
                        self.way(way, both)

    def started(self, way):
        """The commands for one way, with their environments."""
        if way == "mps":
            return [(command, self.service.env) for command in self.commands]
        if way == "slicing" or not self.shares:
            return [(command, None) for command in self.commands]
        limits = [["--compute", f"{share}%", "--policy", "balance"] for share in self.shares[0]]
        return [(self.proof.limited(limit, command, daemon=self.socket), None) for limit, command in zip(limits, self.commands)]

    def way(self, way, both):
        if way == "sluice" and not all(map(is_dense, self.names)):
            dense = [is_dense(name) for name in self.names]
            in_turns.InTurns(self.proof, self.names, dense, both).measure(self.shares, self.row)
            return
        alone, together = [], []
        for program in both:
            alone += steered.rates(self.proof, [program], settle(way, self.settings), self.settings.alone)
            together.append(self.together(way, both))
        if way == "sluice":
            label = in_turns.label(self.shares[0])
            self.judge(label, self.shares[0], self.note(f"sluice {label}", alone, together))
            return
        what = {"slicing": "the hardware's own", "mps": "the vendor's"}[way]
        found = self.note(way, alone, together)
        clients = f", {self.service.clients()} clients" if way == "mps" else ""
        self.proof.check(f"{' + '.join(self.names)}, {way}", None, describe(found) + clients, what)

    def together(self, way, both):
        return steered.rates(self.proof, both, settle(way, self.settings), self.settings.together)

    def note(self, label, alone, together):
        """Rates together, relative to alone: to the same process alone, or natively where all processes of the
        program are as fast as each other."""
        sliced = self.row["rates"].get("slicing")
        native = sliced["alone"] if sliced else alone
        means = [sum(rates) / len(rates) for rates in zip(*together)]
        bases = [by_itself if is_dense(name) else single for name, single, by_itself in zip(self.names, alone, native)]
        each = [mean / base for mean, base in zip(means, bases)]
        found = {"each": each, "sum": sum(each)}
        if sliced:
            found["alone"] = [single / by_itself for single, by_itself in zip(alone, native)]
        self.row["ways"][label] = found
        self.row["rates"][label] = {"alone": alone, "together": together}
        return found

    def judge(self, label, shares, found):
        """Programs that both fill the device."""
        what = f"{' + '.join(self.names)} at {label}"
        # Judged where there is a real device: the simulated one tells only that all of this works.
        verdict = (lambda ok: None) if self.proof.fake else bool
        self.proof.check(f"{what}: sum", verdict(found["sum"] >= LEAST_SUM_DENSE), describe(found), f"at least {LEAST_SUM_DENSE}")
        for name, share, part in zip(self.names, shares, found["each"]):
            least = share / 100 - TOLERANCE
            self.proof.check(f"{what}: {name}", verdict(part >= least), f"{part:.3f} of alone", f"at least {least:.3f}, its guarantee")


def describe(found):
    text = " + ".join(f"{part:.2f}" for part in found["each"]) + f" = {found['sum']:.2f}"
    if "alone" not in found:
        return text
    return f"{text}; alone {', '.join(f'{part:.2f}' for part in found['alone'])} of native"
