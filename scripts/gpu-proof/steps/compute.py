"""A compute limit delivers its share of the native rate, whatever the length of the kernels."""

from steps import dense

TOLERANCE_POINTS = 2.0
LIMITS = [25, 50, 75]
# kernel length in us, seconds for a limited run
KERNELS = [(15, 4), (130, 4), (2500, 4), (20_000, 8)]


def run(proof):
    rows = proof.data["compute"] = []
    for kernel_us, seconds in KERNELS:
        native = dense.native(proof, kernel_us, 3)
        row = {"kernel_us": kernel_us, "measured_us": native["kernel_us"], "native_rate": native["rate"], "native": native, "limited": {}}
        rows.append(row)
        for percent in LIMITS:
            result = dense.limited(proof, percent, kernel_us, seconds, native["iterations"])
            delivered = 100 * result["rate"] / native["rate"]
            row["limited"][percent] = {"delivered": delivered, **result}
            proof.check(
                f"--compute {percent}%, kernels of {kernel_us} us",
                abs(delivered - percent) <= TOLERANCE_POINTS,
                f"{delivered:.1f} % of native",
                f"{percent} within {TOLERANCE_POINTS:g} points",
            )
