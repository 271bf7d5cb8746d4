"""The compute limit holds for every way to launch."""

from steps import dense

TOLERANCE_POINTS = 2.0
PERCENT, KERNEL_US, SECONDS = 50, 130, 3
PATTERNS = [
    ["--pattern", "ex"],
    ["--pattern", "coop"],
    ["--pattern", "graph"],
    ["--pattern", "multistream"],
    ["--pattern", "threads"],
    ["--pattern", "kernel", "--ptsz"],
]


def run(proof):
    proof.data["patterns"] = []
    # One calibration for all: the kernel is the same.
    iterations = dense.native(proof, KERNEL_US, 1)["iterations"]
    for options in PATTERNS:
        name, wanted = f"--compute {PERCENT}%, {' '.join(options)}", f"{PERCENT} within {TOLERANCE_POINTS:g} points"
        with proof.guard(name, wanted):
            native = dense.native(proof, KERNEL_US, 2, *options, "--iterations", iterations)
            result = dense.limited(proof, PERCENT, KERNEL_US, SECONDS, iterations, *options)
            delivered = 100 * result["rate"] / native["rate"]
            proof.data["patterns"].append({"options": options, "delivered": delivered, "native": native, "limited": result})
            close = abs(delivered - PERCENT) <= TOLERANCE_POINTS
            proof.check(name, close, f"{delivered:.1f} % of native", wanted)
