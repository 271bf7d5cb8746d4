"""A compute limit delivers its share of the native rate, whatever the length of the kernels."""

from steps import dense

TOLERANCE_POINTS = 2.0
LIMITS = [25, 50, 75]
# kernel length in us, seconds for a limited run
KERNELS = [(15, 4), (130, 4), (2500, 4), (20_000, 8)]


def run(proof):
    rows = proof.data["compute"] = []
    for kernel_us, seconds in KERNELS:
        with proof.guard(f"kernels of {kernel_us} us alone", "a rate"):
            native = dense.native(proof, kernel_us, 3)
            row = {"kernel_us": kernel_us, "native_rate": native["rate"], "native": native, "limited": {}}
            rows.append(row)
            for percent in LIMITS:
                deliver(proof, row, percent, seconds)


def deliver(proof, row, percent, seconds):
    kernel_us, native = row["kernel_us"], row["native"]
    name, wanted = f"--compute {percent}%, kernels of {kernel_us} us", f"{percent} within {TOLERANCE_POINTS:g} points"
    with proof.guard(name, wanted):
        result = dense.limited(proof, percent, kernel_us, seconds, native["iterations"])
        delivered = 100 * result["rate"] / native["rate"]
        row["limited"][percent] = {"delivered": delivered, **result}
        close = abs(delivered - percent) <= TOLERANCE_POINTS
        proof.check(name, close, f"{delivered:.1f} % of native", wanted)
