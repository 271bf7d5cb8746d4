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
    rows = proof.data["patterns"] = []
    iterations = None
    for options in PATTERNS:
        known = ["--iterations", iterations] if iterations else []
        native = dense.native(proof, KERNEL_US, 2, *options, *known)
        iterations = native["iterations"]
        result = dense.limited(proof, PERCENT, KERNEL_US, SECONDS, iterations, *options)
        delivered = 100 * result["rate"] / native["rate"]
        rows.append({"options": options, "delivered": delivered, "native": native, "limited": result})
        proof.check(
            f"--compute {PERCENT}%, {' '.join(options)}",
            abs(delivered - PERCENT) <= TOLERANCE_POINTS,
            f"{delivered:.1f} % of native",
            f"{PERCENT} within {TOLERANCE_POINTS:g} points",
        )
