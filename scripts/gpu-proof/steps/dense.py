"""`tenant dense`, alone or under `sluice run`."""

# A program that needs longer than this to start and calibrate is stuck.
STARTUP = 30


def native(proof, kernel_us, seconds, *options):
    """The load alone on the device."""
    command = proof.tenant("dense", "--kernel-us", kernel_us, "--seconds", seconds, *options)
    return proof.result(command, timeout=seconds * 2 + STARTUP)


def again(kernel_us, seconds, iterations, *options):
    """Arguments for the same kernel in a further run: without a calibration, which a limit would disturb."""
    return ["dense", "--kernel-us", kernel_us, "--seconds", seconds, "--iterations", iterations, *options]


def limited(proof, percent, kernel_us, seconds, iterations, *options):
    """The load under a compute limit of its own."""
    tenant = proof.tenant(*again(kernel_us, seconds, iterations, *options))
    return proof.result(proof.limited(["--compute", f"{percent}%"], tenant), timeout=seconds * 4 + STARTUP)
