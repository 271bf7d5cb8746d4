"""The compute limit holds for every way to launch, for several processes of one session, and for copies."""

from steps import dense, watched

SETTINGS = {
    "percent": 50,
    "kernel_us": 130,
    "native": 1.0,
    "seconds": 2.5,
    "patterns": ["ex", "coop", "graph", "multistream", "threads", "kernel --ptsz"],
    "processes": [3],
    "copies": ["dtod", "htod", "memset"],
    # The burst at the start is in these figures: at most 50 ms.
    "copy_seconds": 5.0,
}
FULL = {"copies": ["dtod", "htod", "dtoh", "any", "rows", "layers", "memset", "htod-sync", "dtoh-sync", "memset-sync"], "seconds": 4.0}
TOLERANCE_POINTS, COPY_POINTS = 2.0, 3.0
# The burst at the start, of what a session saves up by idling, is not counted.
WINDOW, SKIPPED = 0.5, 1
START = 0.4


def seconds(settings):
    """About how long it takes."""
    runs = len(settings.patterns) + len(settings.processes)
    each = settings.native + 2 * START
    return 1 + START + runs * (each + settings.seconds) + len(settings.copies) * (each + settings.copy_seconds)


def run(proof):
    proof.data["patterns"] = []
    # One calibration for all: the kernel is the same.
    iterations = dense.native(proof, proof.settings.kernel_us, 1)["iterations"]
    for pattern in proof.settings.patterns:
        launched(proof, ["--pattern", *pattern.split()], iterations)
    for count in proof.settings.processes:
        processes(proof, count, iterations)
    for api in proof.settings.copies:
        copied(proof, api)


def judge(proof, name, points, row, rates):
    delivered = 100 * rates[1] / rates[0]
    proof.data["patterns"].append({**row, "delivered": delivered})
    close = abs(delivered - proof.settings.percent) <= points
    proof.check(name, close, f"{delivered:.1f} % of native", f"{proof.settings.percent} within {points:g} points")


def guarded(proof, name, points):
    return proof.guard(name, f"{proof.settings.percent} within {points:g} points")


def launched(proof, options, iterations):
    name = f"--compute {proof.settings.percent}%, {' '.join(options)}"
    with guarded(proof, name, TOLERANCE_POINTS):
        kernel_us, percent = proof.settings.kernel_us, proof.settings.percent
        more = [*options, "--windows", WINDOW]
        native = dense.native(proof, kernel_us, proof.settings.native, *more, "--iterations", iterations)
        limited = dense.limited(proof, percent, kernel_us, proof.settings.seconds, iterations, *more)
        rates = [native["rate"], steady(limited)]
        judge(proof, name, TOLERANCE_POINTS, {"options": options, "native": native, "limited": limited}, rates)


def steady(result):
    """Kernels a second after the first window."""
    after = result["windows"][SKIPPED:]
    return sum(after) / (len(after) * WINDOW)


def processes(proof, count, iterations):
    """The session gets the share as a whole."""
    name = f"--compute {proof.settings.percent}%, {count} processes of one session"
    with guarded(proof, name, TOLERANCE_POINTS):
        kernel_us, limit = proof.settings.kernel_us, ["--compute", f"{proof.settings.percent}%"]
        native = dense.native(proof, kernel_us, proof.settings.native, "--iterations", iterations)
        tenant = proof.tenant(*dense.again(kernel_us, proof.settings.seconds + 1, iterations, "--progress=0.1"))
        command = proof.limited(limit, watched.program("several.py", count, *tenant))
        limited = proof.result(command, timeout=proof.settings.seconds * 4 + dense.STARTUP)
        judge(proof, name, TOLERANCE_POINTS, {"processes": count, "native": native, "limited": limited}, [native["rate"], limited["rate"]])


def copied(proof, api):
    name = f"--compute {proof.settings.percent}%, tenant copy --api {api}"
    with guarded(proof, name, COPY_POINTS):
        # About a tenth of a millisecond of copying within the device, and less than one over the bus.
        size = "250KB" if proof.fake else "16MiB" if api.startswith(("htod", "dtoh")) else "128MiB"
        copy = ["copy", "--api", api, "--bytes", size, "--seconds"]
        native = proof.result(proof.tenant(*copy, proof.settings.native), timeout=dense.STARTUP)
        tenant = proof.tenant(*copy, proof.settings.copy_seconds)
        limited = proof.result(proof.limited(["--compute", f"{proof.settings.percent}%"], tenant), timeout=proof.settings.copy_seconds * 4 + dense.STARTUP)
        judge(proof, name, COPY_POINTS, {"copy": api, "native": native, "limited": limited}, [native["rate"], limited["rate"]])
