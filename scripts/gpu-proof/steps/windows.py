"""A compute limit holds over seconds and in every single second, whatever the length of the kernels."""

from steps import dense

SETTINGS = {
    "kernels_us": [10, 130, 2500, 10_000],
    "percents": [10, 50, 90],
    "native": 2.5,
    # Whole windows after the first.
    "windows": 5,
    # For kernels of 50 ms and more, of which few are in a window.
    "long_windows": 10,
}
FULL = {"kernels_us": [10, 100, 1000, 10_000, 100_000], "percents": [10, 25, 50, 75, 90]}
LONG_US = 50_000
TOLERANCE_POINTS, WINDOW_POINTS = 2.0, 5.0
START = 0.7


def windows_of(kernel_us, settings):
    return settings.long_windows if kernel_us >= LONG_US else settings.windows


def seconds(settings):
    """About how long it takes."""
    native = len(settings.kernels_us) * (settings.native + START + 0.5)
    limited = sum(windows_of(kernel_us, settings) + 1 + START for kernel_us in settings.kernels_us)
    return native + limited * len(settings.percents)


def run(proof):
    rows = proof.data["windows"] = []
    for kernel_us in proof.settings.kernels_us:
        with proof.guard(f"kernels of {kernel_us} us alone", "a rate"):
            native = dense.native(proof, kernel_us, proof.settings.native)
            row = {"kernel_us": kernel_us, "native_rate": native["rate"], "limited": {}}
            rows.append(row)
            for percent in proof.settings.percents:
                deliver(proof, row, percent, native)


def deliver(proof, row, percent, native):
    kernel_us = row["kernel_us"]
    count = windows_of(kernel_us, proof.settings)
    name, wanted = f"--compute {percent}%, kernels of {kernel_us} us, {count} s", f"{percent} within {TOLERANCE_POINTS:g} points"
    with proof.guard(name, wanted):
        # A little longer than the last window, which has to be whole.
        result = dense.limited(proof, percent, kernel_us, count + 1.05, native["iterations"], "--windows", 1)
        shares = [100 * kernels / native["rate"] for kernels in result["windows"]]
        after = shares[1 : count + 1]
        delivered = sum(after) / len(after)
        row["limited"][percent] = {"delivered": delivered, "lowest": min(after), "highest": max(after), "windows": shares, "result": result}
        proof.check(name, abs(delivered - percent) <= TOLERANCE_POINTS, f"{delivered:.1f} % of native", wanted)
        worst = max(abs(share - percent) for share in after)
        judged = worst <= WINDOW_POINTS if kernel_us < LONG_US else None
        proof.check(f"{name}: each second", judged, f"{min(after):.1f} to {max(after):.1f} %", f"within {WINDOW_POINTS:g} points" if judged is not None else "reported")
