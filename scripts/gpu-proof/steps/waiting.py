"""What waiting costs the host: CPU time of a program that is held at a tenth, its launches not counted.

`tenant` tells the CPU time of its whole process. What as many kernels cost natively is taken off: the launches, and
the driver's own waiting for the device.
"""

from steps import dense

SETTINGS = {"kernels_us": [2500, 130], "percent": 10, "native": 2.0, "seconds": 5.0}
# In percent of a core.
MOST = 5.0


def seconds(settings):
    """About how long it takes."""
    return len(settings.kernels_us) * (settings.native + settings.seconds + 1.8)


def run(proof):
    proof.data["waiting"] = []
    percent = proof.settings.percent
    for kernel_us in proof.settings.kernels_us:
        name = f"waiting at {percent} %, kernels of {kernel_us} us"
        with proof.guard(name, f"below {MOST:g} % of a core"):
            native = dense.native(proof, kernel_us, proof.settings.native)
            limited = dense.limited(proof, percent, kernel_us, proof.settings.seconds, native["iterations"])
            proof.data["waiting"].append({"kernel_us": kernel_us, "native": native, "limited": limited})
            launching = native["cpu_seconds"] / native["kernels"] * limited["kernels"]
            whole, without = (100 * cpu / limited["seconds"] for cpu in (limited["cpu_seconds"], launching))
            text = f"{whole - without:.2f} % of a core: {whole:.2f} in all, natively {without:.2f} for as many"
            proof.check(name, whole - without < MOST, text, f"below {MOST:g} % of a core")
