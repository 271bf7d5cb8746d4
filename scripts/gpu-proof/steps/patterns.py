"""The compute limit holds for every way to launch, for several processes of one session, and for copies."""

from harness import StepFailed
from steps import dense, watched

SETTINGS = {
    "kernels_us": [130],
    "percents": [50],
    "native": 1.0,
    "seconds": 2.5,
    "patterns": ["ex", "coop", "graph", "multistream", "threads", "kernel --ptsz"],
    # These at the first length and percentage only.
    "processes": [3],
    "copies": ["dtod", "htod", "memset"],
    # The burst at the start is in these figures: at most 50 ms.
    "copy_seconds": 5.0,
}
FULL = {
    "kernels_us": [10, 130, 1000, 10_000],
    "percents": [10, 50, 90],
    "patterns": ["kernel", "ex", "coop", "graph", "multistream", "threads", "kernel --ptsz"],
    "copies": ["dtod", "htod", "dtoh", "any", "rows", "layers", "memset", "htod-sync", "dtoh-sync", "memset-sync"],
    "seconds": 3.0,
}
TOLERANCE_POINTS, COPY_POINTS = 2.0, 3.0
# The burst at the start, of what a session saves up by idling, is not counted.
WINDOW, SKIPPED = 0.5, 1
# What is launched at once is done or not: the time is many times that, so that one more is less than a point.
GRAPH_KERNELS, LEAST_UNITS = 8, 100
START = 0.4


def length(pattern, kernel_us, settings):
    """Seconds under a limit."""
    unit_us = kernel_us * (GRAPH_KERNELS if pattern == "graph" else 1)
    return max(settings.seconds, SKIPPED * WINDOW + LEAST_UNITS * unit_us / 1e6)


def seconds(settings):
    """About how long it takes."""
    each = settings.native + START
    total = 1 + len(settings.kernels_us) * START
    for pattern in settings.patterns:
        for kernel_us in settings.kernels_us:
            total += each + len(settings.percents) * (length(pattern, kernel_us, settings) + START)
    total += len(settings.processes) * (each + settings.seconds + 1 + START)
    return total + len(settings.copies) * (each + settings.copy_seconds + START)


def run(proof):
    proof.data["patterns"] = []
    first = {}
    for kernel_us in proof.settings.kernels_us:
        with proof.guard(f"kernels of {kernel_us} us alone", "a rate"):
            # One calibration for all: the kernel is the same.
            iterations = dense.native(proof, kernel_us, 0.3)["iterations"]
            first = first or {"kernel_us": kernel_us, "iterations": iterations}
            for pattern in proof.settings.patterns:
                launched(proof, pattern, kernel_us, iterations)
    for count in proof.settings.processes if first else []:
        processes(proof, count, **first)
    for api in proof.settings.copies:
        copied(proof, api)


def judge(proof, name, percents, points, row, delivered):
    """One line for all limits of what is otherwise the same."""
    proof.data["patterns"].append({**row, "percents": percents, "delivered": delivered})
    close = all(abs(got - percent) <= points for got, percent in zip(delivered, percents))
    proof.check(name, close, f"{', '.join(f'{got:.1f}' for got in delivered)} % of native", wanted(percents, points))


def wanted(percents, points):
    return f"{', '.join(map(str, percents))} within {points:g} points"


def launched(proof, pattern, kernel_us, iterations):
    """Native once, then under each limit."""
    percents = proof.settings.percents
    name = f"{pattern}, {kernel_us} us at {', '.join(map(str, percents))} %"
    with proof.guard(name, wanted(percents, TOLERANCE_POINTS)):
        options = ["--pattern", *pattern.split(), "--windows", WINDOW]
        native = dense.native(proof, kernel_us, proof.settings.native, *options, "--iterations", iterations)
        row = {"pattern": pattern, "kernel_us": kernel_us, "native": native, "limited": []}
        delivered = []
        for percent in percents:
            limited = dense.limited(proof, percent, kernel_us, length(pattern, kernel_us, proof.settings), iterations, *options)
            row["limited"].append(limited)
            delivered.append(100 * steady(limited) / native["rate"])
        judge(proof, name, percents, TOLERANCE_POINTS, row, delivered)


def steady(result):
    """Kernels a second after the first window."""
    after = result["windows"][SKIPPED:]
    if not after:
        raise StepFailed(f"only {len(result['windows'])} windows of {WINDOW} s: the time is too short")
    return sum(after) / (len(after) * WINDOW)


def processes(proof, count, kernel_us, iterations):
    """The session gets the share as a whole."""
    percent = proof.settings.percents[0]
    name = f"{count} processes of one session, {kernel_us} us at {percent} %"
    with proof.guard(name, wanted([percent], TOLERANCE_POINTS)):
        native = dense.native(proof, kernel_us, proof.settings.native, "--iterations", iterations)
        tenant = proof.tenant(*dense.again(kernel_us, proof.settings.seconds + 1, iterations, "--progress=0.1"))
        command = proof.limited(["--compute", f"{percent}%"], watched.program("several.py", count, *tenant))
        limited = proof.result(command, timeout=proof.settings.seconds * 4 + dense.STARTUP)
        judge(proof, name, [percent], TOLERANCE_POINTS, {"processes": count, "native": native, "limited": limited}, [100 * limited["rate"] / native["rate"]])


def copied(proof, api):
    percent = proof.settings.percents[0]
    name = f"copy --api {api} at {percent} %"
    with proof.guard(name, wanted([percent], COPY_POINTS)):
        # About a tenth of a millisecond of copying within the device, and less than one over the bus.
        size = "250KB" if proof.fake else "16MiB" if api.startswith(("htod", "dtoh")) else "128MiB"
        copy = ["copy", "--api", api, "--bytes", size, "--seconds"]
        native = proof.result(proof.tenant(*copy, proof.settings.native), timeout=dense.STARTUP)
        tenant = proof.tenant(*copy, proof.settings.copy_seconds)
        limited = proof.result(proof.limited(["--compute", f"{percent}%"], tenant), timeout=proof.settings.copy_seconds * 4 + dense.STARTUP)
        judge(proof, name, [percent], COPY_POINTS, {"copy": api, "native": native, "limited": limited}, [100 * limited["rate"] / native["rate"]])
