"""Several tenants that each fill the device, under one daemon: each gets its weight, and little is lost.

Pauses are those between two completions in a tenant, by the device's clock: from the end of the work of one lease
to the end of the first work of the next one, which is a little longer than the wait for the lease.
"""

import pathlib
import shutil
import tempfile

from steps import daemon, dense, steered

SETTINGS = {
    "kernels_us": [130, 2500],
    "shares": ["50/50", "50/30/20", "12.5/12.5/12.5/12.5/12.5/12.5/12.5/12.5", "30/20/15/10/10/5/5/5"],
    "native": 2.0,
    "seconds": 4.0,
    "settle": 3.0,
}
FULL = {"shares": ["50/50", "70/30", "34/33/33", "50/30/20", "12.5/12.5/12.5/12.5/12.5/12.5/12.5/12.5", "30/20/15/10/10/5/5/5"], "seconds": 6.0}
TOLERANCE_POINTS, LEAST_SUM = 2.0, 0.97
# 1.2 periods of the scheduler's.
LONGEST_WAIT_MS = 120


def seconds(settings):
    """About how long it takes."""
    tenants = sum(shares.count("/") + 1 for shares in settings.shares)
    runs = len(settings.shares) * (settings.seconds + settings.settle + 0.5) + 0.4 * tenants
    return len(settings.kernels_us) * (settings.native + 1 + runs)


def run(proof):
    rows = proof.data["many"] = []
    # Not under $OUT: the path of a socket has to be short.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-proof-"))
    try:
        for kernel_us in proof.settings.kernels_us:
            with proof.guard(f"kernels of {kernel_us} us alone", "a rate"):
                native = dense.native(proof, kernel_us, proof.settings.native)
                loads = steered.Loads(proof)
                loads.iterations[kernel_us] = native["iterations"]
                for shares in proof.settings.shares:
                    name = f"{kernel_us} us, {label(shares)}"
                    with proof.guard(name, "rates"), daemon.Daemon(proof, folder / "hypervisor.sock"):
                        row = {"kernel_us": kernel_us, "shares": [float(share) for share in shares.split("/")]}
                        rows.append(row)
                        measure(proof, name, row, native, loads, folder / "hypervisor.sock")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def label(shares):
    """Shares as text; equal ones once."""
    parts = shares.split("/")
    return f"{len(parts)} tenants at {parts[0] if len(set(parts)) == 1 else shares}"


def measure(proof, name, row, native, loads, socket):
    tenant = loads.command(f"dense{row['kernel_us']}")
    commands = [(proof.limited(["--compute", f"{share:g}%"], tenant, daemon=socket), None) for share in row["shares"]]
    with steered.running(proof, commands) as programs:
        rates = steered.rates(proof, programs, proof.settings.settle, proof.settings.seconds)
    row["each"] = each = [100 * rate / native["rate"] for rate in rates]
    row["pauses"] = pauses = [(program.result or {}).get("pauses") for program in programs]
    judged = (lambda ok: None) if proof.fake else bool
    off = max(abs(got - share) for got, share in zip(each, row["shares"]))
    shown = " ".join(f"{got:.1f}" for got in each)
    proof.check(f"{name}: each", judged(off <= TOLERANCE_POINTS), f"{shown}, at most {off:.1f} off", f"within {TOLERANCE_POINTS:g} points")
    proof.check(f"{name}: sum", judged(sum(each) >= 100 * LEAST_SUM), f"{sum(each) / 100:.3f} of one alone", f"at least {LEAST_SUM}")
    known = [one for one in pauses if one]
    worst = max((one["p95_ms"] for one in known), default=None)
    longest = max((one["longest_ms"] for one in known), default=None)
    text = f"{worst:.0f} ms in the worst tenant, longest {longest:.0f} ms" if known else "not told"
    proof.check(f"{name}: 95 of 100 pauses", judged(bool(known) and worst <= LONGEST_WAIT_MS), text, f"at most {LONGEST_WAIT_MS} ms")
