"""Two programs of which one at least waits for its CPU: alone and together, not limited and limited, over and over.

The speed of such programs is their host's, and differs by 10 to 50 % from one moment to another. Each figure is
therefore a ratio to other stretches of the same cycle, with the same processes; the median over the cycles is judged.
Every other cycle runs backwards, so that a drift cancels.
"""

import dataclasses

from harness import StepFailed
from medians import median_and_interval, shown
from steps import steered

LEAST_OF_SLICING, LEAST_OF_ALONE = 0.98, 0.95
TOLERANCE = 0.02
# What the hardware does where nobody is limited.
SLICING = "slicing"


@dataclasses.dataclass
class Stretch:
    """Some of the programs at once; without shares they are not limited."""

    label: str
    who: tuple
    shares: tuple = None


def stretches(shares):
    """Those of one cycle, so that what is compared is close to each other."""
    limited = [Stretch(label(one), (0, 1), one) for one in shares]
    return [Stretch("alone 0", (0,)), *limited[1::2], Stretch(SLICING, (0, 1)), *limited[0::2], Stretch("alone 1", (1,))]


def label(shares):
    return "/".join(map(str, shares))


def settle(stretch, settings):
    """Densities are learnt anew after a change of limits."""
    return settings.turn_settle if stretch.shares else settings.settle_plain


def seconds(shares, settings):
    """About how long it takes."""
    return settings.turns * sum(settings.turn + settle(one, settings) + 0.1 for one in stretches(shares))


class InTurns:
    """Programs under one daemon, each the first process of a session."""

    def __init__(self, proof, names, is_dense, both):
        self.proof, self.names, self.is_dense, self.both = proof, names, is_dense, both
        self.cycles = []

    def measure(self, shares, row):
        """Runs the cycles and judges what they tell; what is found also goes into the pair's row."""
        row["in_turns"] = self.cycles
        try:
            self.run(stretches(shares))
        except StepFailed as failure:
            if not self.cycles:
                raise
            # What the whole cycles tell is not lost.
            turns = self.proof.settings.turns
            self.proof.check(f"{self.pair()}: all cycles", False, f"{len(self.cycles)} of {turns}: {failure}", f"{turns}")
        self.note(row, SLICING, "slicing, turns")
        for one in shares:
            self.note(row, label(one), f"sluice {label(one)}")
            self.judge(one)

    def pair(self):
        return " + ".join(self.names)

    def run(self, order):
        for number in range(self.proof.settings.turns):
            cycle = {}
            for stretch in order if number % 2 == 0 else reversed(order):
                self.limit(stretch.shares)
                programs = [self.both[index] for index in stretch.who]
                rates = steered.rates(self.proof, programs, settle(stretch, self.proof.settings), self.proof.settings.turn)
                if min(rates) <= 0:
                    raise StepFailed(f"a program stood still: {stretch.label}")
                cycle[stretch.label] = rates
            self.cycles.append(cycle)

    def limit(self, shares):
        for index, program in enumerate(self.both):
            options = ["--policy", "balance", "--compute", f"{shares[index]}%"] if shares else ["--policy", "none"]
            refused = steered.limit(self.proof, program, *options)
            if refused:
                raise StepFailed(f"sluice limit {' '.join(options)}: {refused}")

    # --- figures, one a cycle

    def of_alone(self, what, index):
        return [cycle[what][index] / cycle[f"alone {index}"][0] for cycle in self.cycles]

    def of_slicing(self, what, index):
        return [cycle[what][index] / cycle[SLICING][index] for cycle in self.cycles]

    def note(self, row, what, way):
        parts = [self.of_alone(what, index) for index in (0, 1)]
        each = [median_and_interval(part)[0] for part in parts]
        row["ways"][way] = {"each": each, "sum": median_and_interval(list(map(sum, zip(*parts))))[0]}

    def check(self, what, ratios, least, wanted):
        """`least` is none for what is only reported."""
        found = median_and_interval(ratios)
        ok = None if self.proof.fake or least is None else found[0] >= least
        self.proof.check(f"{self.pair()}{what}", ok, shown(found, 3), wanted)

    def judge(self, shares):
        where = f" at {label(shares)}"
        if not any(self.is_dense):
            means = [sum(pair) / 2 for pair in zip(*(self.of_slicing(label(shares), index) for index in (0, 1)))]
            self.check(f"{where}: mean", means, LEAST_OF_SLICING, f"at least {LEAST_OF_SLICING} of slicing")
        for index, (name, share) in enumerate(zip(self.names, shares)):
            what = f"{where}: {name}" + (f" ({index + 1})" if self.names[0] == self.names[1] else "")
            of_alone = self.of_alone(label(shares), index)
            if not any(self.is_dense) or shares[0] != shares[1]:
                least = share / 100 - TOLERANCE
                self.check(what, of_alone, least, f"at least {least:.2f} of alone, guaranteed")
            elif self.is_dense[index]:
                less = [got - sliced for got, sliced in zip(of_alone, self.of_alone(SLICING, index))]
                self.check(f"{what} less sliced", less, -TOLERANCE, f"at least {-TOLERANCE:.2f}, in parts of alone")
                self.check(f"{what}, of alone", of_alone, None, "reported")
            else:
                self.check(what, of_alone, LEAST_OF_ALONE, f"at least {LEAST_OF_ALONE} of alone")
                self.check(f"{what}, of sliced", self.of_slicing(label(shares), index), None, "reported")
