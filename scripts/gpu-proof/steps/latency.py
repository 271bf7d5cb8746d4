"""Latency beside training: a server whose requests come at random, and a loop that decodes word by word.

A request takes from its arrival until its result is there; what it takes from when it is begun is told as well.

Ways: each alone, sliced by the hardware, under the vendor's MPS, and under Sluice at 50/50 `fixed`, 50/50 `balance`,
and with the server at high and the training at low priority. The requests are the same in each. The policies are
changed in one pair of processes while they run; slicing and MPS have pairs of their own.

Writes latency.md and a picture for each server beside the proof's other results.
"""

import time

from harness import StepFailed
from medians import percentile
from steps import daemon, mps, picture, real, steered

# Options of a front by its name, and the program that it is.
FRONTS = {"server": ["--rate", 20], "graph-loop": ["--took"], "classifier": ["--rate", 20], "beam-loop": ["--took"]}
WORKS = {"server": "forward", "graph-loop": "graph", "classifier": "classify", "beam-loop": "beam"}
# Their options for the server and for the training.
HALF = ["--compute", "50%", "--policy"]
POLICIES = {
    "fixed": ([*HALF, "fixed", "--priority", "high"], [*HALF, "fixed", "--priority", "high"]),
    "balance": ([*HALF, "balance", "--priority", "high"], [*HALF, "balance", "--priority", "high"]),
    "high-low": ([*HALF, "balance", "--priority", "high"], [*HALF, "balance", "--priority", "low"]),
}
SETTINGS = {"fronts": ["server", "graph-loop"], "back": "train-large", "ways": ["slicing", *POLICIES, "mps"], "seconds": 8.0, "settle": 1.5}
FULL = {"seconds": 25.0, "settle": 2.0}
JUDGE = {"fronts": ["classifier", "beam-loop"], "back": "unet"}
COLUMNS = ["p50", "p95", "p99", "max", "service_p99"]


def seconds(settings):
    """About how long it takes."""
    cell = settings.seconds + settings.settle + 0.3
    # Each alone, and the training for less long.
    alone = cell + min(settings.seconds, 8) + settings.settle
    starts = ("slicing" in settings.ways) + ("mps" in settings.ways) + any(way in POLICIES for way in settings.ways)
    return len(settings.fronts) * (alone + len(settings.ways) * cell + starts * 1.5 * real.START) + 10 * ("mps" in settings.ways)


def run(proof):
    found = proof.data["latency"] = {"gates": proof.gates(), "rows": []}
    rows = found["rows"]
    fronts = [Front(proof, name, rows) for name in proof.settings.fronts]
    with daemon.socket() as socket:
        for front in fronts:
            with proof.guard(f"{front.name}: alone and sliced", "latencies"):
                front.plain()
            with proof.guard(f"{front.name}: policies", "latencies"), daemon.Daemon(proof, socket):
                front.policies(socket)
    with mps.wanted(proof, "mps" in proof.settings.ways) as service:
        for front in fronts if service else []:
            with proof.guard(f"{front.name}: MPS", "latencies"):
                front.under("mps", service.env)
    for front in fronts:
        with proof.guard(f"{front.name}: criteria", "latencies"):
            front.judge()
            front.draw()
    (proof.out / "latency.md").write_text(table(rows), encoding="utf-8")
    proof.show(table(rows))


class Front:
    """A server or a loop, beside the training."""

    def __init__(self, proof, name, rows):
        if name not in FRONTS:
            raise StepFailed(f"expected some of {', '.join(FRONTS)}")
        self.proof, self.name, self.rows, self.settings = proof, name, rows, proof.settings
        self.front = real.command(proof, WORKS[name], *FRONTS[name])
        self.back = real.command(proof, self.settings.back)
        self.alone = self.back_alone = self.step_ms = None

    def plain(self):
        """Alone, and beside each other without Sluice."""
        with steered.running(self.proof, [(self.front, None), (self.back, None)]) as (front, back):
            self.back_alone = steered.rates(self.proof, [back], self.settings.settle, min(self.settings.seconds, 8))[0]
            self.alone = self.cell("alone", front, None)
            self.step_ms = (front.result or {}).get("step_ms")
            if "slicing" in self.settings.ways:
                self.cell("slicing", front, back)

    def policies(self, socket):
        ways = [way for way in self.settings.ways if way in POLICIES]
        if not ways:
            return
        commands = [self.proof.limited(options, one, daemon=socket) for options, one in zip(POLICIES[ways[0]], [self.front, self.back])]
        with steered.running(self.proof, [(command, None) for command in commands]) as both:
            for way in ways:
                with self.proof.guard(f"{self.name}: {way}", "latencies"):
                    for program, options in zip(both, POLICIES[way]):
                        refused = steered.limit(self.proof, program, *options)
                        if refused:
                            raise StepFailed(f"sluice limit {' '.join(options)}: {refused}")
                    self.cell(way, *both)

    def under(self, way, env):
        with steered.running(self.proof, [(self.front, env), (self.back, env)]) as both:
            self.cell(way, *both)

    def cell(self, way, front, back):
        """One row of the table."""
        programs = [one for one in (front, back) if one]
        if self.proof.left() < self.settings.settle + self.settings.seconds:
            raise StepFailed("no time left")
        for program in reversed(programs):
            program.say("go")
        time.sleep(self.settings.settle)
        begin = time.monotonic()
        time.sleep(self.settings.seconds)
        end = time.monotonic()
        for program in programs:
            program.say("pause")
        # What has ended is told a little later.
        time.sleep(0.15)
        within = [one for one in list(front.took) if begin <= one[0] <= end]
        took = [ms for _, ms, _ in within]
        if not took:
            raise StepFailed(f"{way}: no request was answered in {end - begin:.0f} s")
        row = {"front": self.name, "way": way, "count": len(took), "rate": len(took) / (end - begin), "max": max(took)}
        row.update({f"p{percent}": percentile(took, percent) for percent in (50, 95, 99)})
        # Without the wait for requests before it: what others publish.
        row["service_p99"] = percentile([ms for _, _, ms in within], 99)
        row["rate_of_alone"] = row["rate"] / self.alone["rate"] if self.alone else None
        if back:
            row["training"] = back.progress(begin, end)
            row["training_of_alone"] = row["training"] / self.back_alone if self.back_alone else None
        self.rows.append(row)
        return row

    def row(self, way):
        return next((row for row in self.rows if row["front"] == self.name and row["way"] == way), None)

    # --- what must hold

    def judge(self):
        for way in self.settings.ways:
            row = self.row(way)
            if row is None:
                continue
            measured = f"p99 {row['p99']:.2f} ms{self.of('alone', row)}{self.of('slicing', row)}; {part(row['rate_of_alone'])} of alone; training {part(row['training_of_alone'])}"
            ok, wanted = self.verdict(way, row)
            self.proof.check(f"{self.name} beside {self.settings.back}: {way}", None if self.proof.fake else ok, measured, wanted)

    def of(self, way, row):
        other = self.row(way)
        return f", {row['p99'] / other['p99']:.2f} x {way}" if other and other is not row else ""

    def verdict(self, way, row):
        training, own = row["training_of_alone"], row["rate_of_alone"]
        if way not in POLICIES or training is None or own is None:
            return None, "reported"
        if "--rate" in FRONTS[self.name]:
            if way == "high-low" and self.step_ms:
                least = 0.9 * (1 - self.alone["rate"] * self.step_ms / 1000)
                return row["p99"] <= 1.15 * self.alone["p99"] and training >= least, f"p99 1.15 x alone, training {least:.2f}"
            sliced = self.row("slicing")
            if way == "balance" and sliced:
                return row["p99"] <= 0.7 * sliced["p99"] and training >= 0.85, "p99 0.7 x slicing, training 0.85"
        elif way == "balance":
            return row["p99"] <= 6 and own >= 0.48 and training >= 0.48, "p99 6 ms, each 0.48"
        elif way == "high-low":
            return row["p99"] <= 2 and own >= 0.95, "p99 2 ms, 0.95 of alone"
        return None, "reported"

    def draw(self):
        points = [(row["way"], row["training_of_alone"], row["p99"]) for row in self.rows if row["front"] == self.name and row.get("training_of_alone") is not None]
        if points and self.alone:
            title = f"{self.name} beside {self.settings.back} ({self.proof.gates()} gates)"
            (self.proof.out / f"latency-{self.name}.svg").write_text(picture.scatter(title, points, self.alone["p99"]), encoding="utf-8")


def part(value):
    return "-" if value is None else f"{value:.3f}"


def table(rows):
    """Markdown."""
    lines = [f"| program | way | {' | '.join(name.replace('_', ' ') for name in COLUMNS)} (ms) | a second | of alone | training, of alone |", "| --- | --- |" + " ---: |" * (len(COLUMNS) + 3)]
    for row in rows:
        cells = [row["front"], row["way"], *(f"{row[column]:.2f}" for column in COLUMNS), f"{row['rate']:.1f}", part(row["rate_of_alone"]), part(row.get("training_of_alone"))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
