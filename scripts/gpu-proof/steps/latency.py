"""Latency beside training: a server whose requests come at random, and a loop that decodes word by word.

A request takes from its arrival until its result is there; what it takes from when it is begun is told as well.

Ways: each alone; limited, by itself, and the same process without limits (processes differ); sliced by the hardware; under
the vendor's MPS, without and with its client priorities (the training at the lower one); and under Sluice at 50/50 `fixed`,
50/50 `balance`, and with the server at high and the training at low priority; that last one also under MPS with its client
priorities. The requests are the same in each. Programs start all at once, those of MPS after the others, and pause while
they are not measured. All ways are measured round after round, every other time from the last to the first: a machine may
be slower for a while. Each round's p99 is told.

With `latency.trace=1` the limiters' traces and what each request took are written as well.

Writes latency.md and a picture beside the proof's other results.
"""

import json
import statistics
import time

from harness import StepFailed
from medians import percentile, percentile_and_interval
from steps import daemon, mps, picture, real, steered

# Options of a front by its name, and the program that it is.
FRONTS = {"server": ["--rate", 20], "graph-loop": ["--took"], "decode-loop": ["--took"], "classifier": ["--rate", 20], "beam-loop": ["--took"]}
WORKS = {"server": "forward", "graph-loop": "graph", "decode-loop": "decode", "classifier": "classify", "beam-loop": "beam"}
# Options of `sluice` for the server and for the training.
HALF = ["--compute", "50%", "--policy"]
POLICIES = {
    "fixed": ([*HALF, "fixed", "--priority", "high"], [*HALF, "fixed", "--priority", "high"]),
    "balance": ([*HALF, "balance", "--priority", "high"], [*HALF, "balance", "--priority", "high"]),
    "high-low": ([*HALF, "balance", "--priority", "high"], ["--compute", "2%", "--policy", "balance", "--priority", "low"]),
}
OPTIONS = {**POLICIES, "none": (["--policy", "none"], [])}
# Processes that a way needs, those of the server and of the training, and the policy under which they are.
WAYS = {
    "slicing": ("plain", "plain", None),
    "by-itself": ("sluice", None, "high-low"),
    "unlimited": ("sluice", None, "none"),
    **{policy: ("sluice", "sluice", policy) for policy in POLICIES},
    "mps": ("mps", "mps", None),
    "mps-priority": ("mps", "mps-low", None),
    "mps-high-low": ("mps-sluice", "mps-sluice-low", "high-low"),
}
# The service's: 0 is the higher one, and the one without the variable.
LOW_CLIENT = {"CUDA_MPS_CLIENT_PRIORITY": "1"}
SETTINGS = {"fronts": ["server", "graph-loop"], "back": "train-large", "ways": ["slicing", *POLICIES, "mps", "mps-priority"], "rounds": 2, "seconds": 4.0, "settle": 1.5, "trace": 0}
FULL = {"ways": list(WAYS), "rounds": 4, "seconds": 8.0, "settle": 2.0}
JUDGE = {"fronts": ["classifier", "beam-loop"], "back": "unet"}
COLUMNS = ["p50", "p95", "p99", "max", "service_p99"]
START, START_EACH = 16, 1.5


def seconds(settings):
    """About how long it takes."""
    cell = settings.seconds + settings.settle + 0.4
    plain, under_mps = ways(settings, False), ways(settings, True)
    processes = [len(needed(settings, some)) for some in (plain, under_mps) if some]
    each = len(settings.fronts) * (len(settings.ways) + 2) * cell
    return settings.rounds * each + sum(START + START_EACH * one for one in processes) + 12 * bool(under_mps)


def ways(settings, under_mps):
    return [way for way in settings.ways if way.startswith("mps") == under_mps]


def needed(settings, some):
    """The processes of some ways: of which kind, and which program; `back` is the training."""
    fronts = {(WAYS[way][0], front) for way in some for front in settings.fronts}
    return sorted(fronts | {(WAYS[way][1], "back") for way in some if WAYS[way][1]})


def run(proof):
    settings, found = proof.settings, {"gates": proof.gates(), "back": proof.settings.back, "rows": []}
    proof.data["latency"] = found
    for name, known, what in [*((one, FRONTS, "fronts") for one in settings.fronts), *((one, WAYS, "ways") for one in settings.ways)]:
        if name not in known:
            raise StepFailed(f"latency.{what}: {name}: expected some of {', '.join(known)}")
    rows = found["rows"]
    fronts = [Front(proof, name, rows) for name in settings.fronts]
    try:
        with daemon.socket() as socket, daemon.Daemon(proof, socket):
            # What is alone is of the first processes.
            some = ways(settings, False)
            with steered.started(proof, commands(proof, [*some, "slicing"], socket, {})) as programs:
                for front in fronts:
                    front.measure(programs, ["alone", *some])
            some = ways(settings, True)
            with mps.wanted(proof, some) as service:
                if service:
                    with steered.started(proof, commands(proof, some, socket, service.env)) as programs:
                        proof.log(f"  {service.clients()} MPS clients")
                        for front in fronts:
                            front.measure(programs, some)
    finally:
        for front in fronts:
            front.judge()
        (proof.out / "latency.md").write_text(table(rows), encoding="utf-8")
        drawn = picture.latency(found)
        if drawn:
            (proof.out / "latency.svg").write_text(drawn, encoding="utf-8")
        proof.show(table(rows))


def commands(proof, some, socket, env):
    """The processes that some ways need, by name. `sluice run` starts them under any policy: each way sets its own."""
    found = {}
    for kind, name in needed(proof.settings, some):
        command = real.command(proof, proof.settings.back) if name == "back" else real.command(proof, WORKS[name], *FRONTS[name])
        if "sluice" in kind:
            command = proof.limited(POLICIES["balance"][0], command, daemon=socket)
        trace = {"SLUICE_LOG": "trace", "SLUICE_LOG_FILE": str(proof.out / f"trace, {name}, {kind}")} if proof.settings.trace else {}
        found[f"{name}, {kind}"] = (command, {**trace, **env, **(LOW_CLIENT if kind.endswith("low") else {})})
    return found


class Found:
    """What the rounds of one way tell: milliseconds of requests, the same without the wait for those before it, seconds,
    and the training's steps a second."""

    def __init__(self):
        self.rounds = []

    def all(self):
        took, service, seconds, trainings = ([one[n] for one in self.rounds] for n in range(4))
        return sum(took, []), sum(service, []), sum(seconds), [one for one in trainings if one is not None]


class Front:
    """A server or a loop, beside the training."""

    def __init__(self, proof, name, rows):
        self.proof, self.name, self.rows, self.settings = proof, name, rows, proof.settings
        self.alone = self.step_ms = None
        # The training's own speed, of each round.
        self.back_alone = []

    def measure(self, programs, some):
        found = {way: Found() for way in some}
        try:
            for number in range(self.settings.rounds):
                for way in some if number % 2 == 0 else reversed(some):
                    with self.proof.guard(f"{self.name}: {way}", "latencies"):
                        self.cell(way, programs, found[way])
        finally:
            # What whole rounds tell is not lost.
            for way in some:
                self.note(way, found[way])

    def cell(self, way, programs, found):
        """One way in one round."""
        kinds = WAYS["slicing" if way == "alone" else way]
        front, back = programs.get(f"{self.name}, {kinds[0]}"), programs.get(f"back, {kinds[1]}")
        if front is None or (back is None and kinds[1]):
            raise StepFailed("not all of its programs run")
        if way == "alone":
            self.back_alone.append(steered.rates(self.proof, [back], self.settings.settle, min(self.settings.seconds, 6))[0])
            self.step_ms, back = (front.result or {}).get("step_ms"), None
        beside = [one for one in (front, back) if one]
        for program, options in zip(beside, OPTIONS.get(kinds[2], ())):
            refused = steered.limit(self.proof, program, *options)
            if refused:
                raise StepFailed(f"sluice limit {' '.join(options)}: {refused}")
        begin, end = steered.run_for(self.proof, beside, self.settings.settle, self.settings.seconds)
        # What has ended is told a little later.
        time.sleep(0.1)
        took = [one for one in list(front.took) if begin <= one[0] <= end]
        if self.settings.trace:
            times = {"from": begin, "to": end, "took": took}
            (self.proof.out / f"took, {self.name}, {way}, {len(found.rounds)}.json").write_text(json.dumps(times), encoding="utf-8")
        training = back.progress(begin, end) if back else None
        found.rounds.append(([ms for _, ms, _ in took], [ms for _, _, ms in took], end - begin, training))
        if not took:
            told = f"; the training got {training:.2f} steps/s" if back else ""
            raise StepFailed(f"{way}: no request was answered in {end - begin:.0f} s{told}")

    def note(self, way, found):
        """One row of the table."""
        took, service, seconds, trainings = found.all()
        if not took:
            return
        row = {"front": self.name, "way": way, "count": len(took), "rate": len(took) / seconds, "max": max(took)}
        if trainings:
            row["training"] = statistics.mean(trainings)
            row["training_of_alone"] = row["training"] / statistics.mean(self.back_alone) if self.back_alone else None
        row.update({f"p{percent}": percentile(took, percent) for percent in (50, 95, 99)})
        row["p99_interval"] = percentile_and_interval(took, 99)[1:]
        row["p99_rounds"] = [percentile(one[0], 99) for one in found.rounds if one[0]]
        # Without the wait for requests before it: what others publish.
        row["service_p99"] = percentile(service, 99)
        if way == "alone":
            self.alone = row
        row["rate_of_alone"] = row["rate"] / self.alone["rate"] if self.alone and way != "alone" else None
        self.rows.append(row)

    def row(self, way):
        return next((row for row in self.rows if row["front"] == self.name and row["way"] == way), None)

    # --- what must hold

    def judge(self):
        for way in self.settings.ways:
            row = self.row(way)
            if row is None:
                continue
            low, high = row["p99_interval"]
            rounds = " ".join(f"{one:.1f}" for one in row["p99_rounds"])
            measured = f"p99 {row['p99']:.2f} ms ({low:.1f} to {high:.1f}; by round {rounds}){self.of('alone', row)}{self.of('unlimited', row)}{self.of('slicing', row)}; {part(row['rate_of_alone'])} of alone; training {part(row.get('training_of_alone'))}"
            ok, wanted = self.verdict(way, row)
            self.proof.check(f"{self.name} beside {self.settings.back}: {way}", None if self.proof.fake else ok, measured, wanted)

    def of(self, way, row):
        other = self.row(way)
        return f", {row['p99'] / other['p99']:.2f} x {way}" if other and other is not row else ""

    def verdict(self, way, row):
        training, own = row.get("training_of_alone"), row["rate_of_alone"]
        if way not in POLICIES or training is None or own is None:
            return None, "reported"
        if "--rate" in FRONTS[self.name]:
            if way == "high-low" and self.step_ms:
                least = 0.9 * (1 - self.alone["rate"] * self.step_ms / 1000)
                return row["p99"] <= 1.1 * self.alone["p99"] and training >= least, f"p99 1.1 x alone, training {least:.2f}"
            sliced = self.row("slicing")
            if way == "balance" and sliced:
                return row["p99"] <= 0.5 * sliced["p99"] and training >= 0.85, "p99 0.5 x slicing, training 0.85"
        elif way == "balance":
            return row["p99"] <= 6 and own >= 0.48 and training >= 0.48, "p99 6 ms, each 0.48"
        elif way == "high-low":
            return row["p99"] <= 2 and own >= 0.97, "p99 2 ms, 0.97 of alone"
        return None, "reported"


def part(value):
    return "-" if value is None else f"{value:.3f}"


def table(rows):
    """Markdown."""
    lines = [f"| program | way | {' | '.join(name.replace('_', ' ') for name in COLUMNS)} (ms) | p99, 95 % | p99 by round | a second | of alone | training, of alone |", "| --- | --- |" + " ---: |" * (len(COLUMNS) + 5)]
    for row in rows:
        cells = [row["front"], row["way"], *(f"{row[column]:.2f}" for column in COLUMNS), "{:.1f} to {:.1f}".format(*row["p99_interval"]), " ".join(f"{one:.1f}" for one in row["p99_rounds"]), f"{row['rate']:.1f}", part(row["rate_of_alone"]), part(row.get("training_of_alone"))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
