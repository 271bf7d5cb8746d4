"""Several tenants that each fill the device, under one daemon: each gets its share, and little is lost. Beside that,
what the hardware's own slicing gives as many without Sluice.

Pauses are those between two completions in a tenant, by the device's clock: from the end of the work of one lease
to the end of the first work of the next one, which is a little longer than the wait for the lease.
"""

from steps import daemon, dense, steered

SETTINGS = {
    "kernels_us": [130, 2500],
    # As many without Sluice.
    "sliced": [2],
    "shares": ["50/50", "75/25", "50/30/20", "12.5/12.5/12.5/12.5/12.5/12.5/12.5/12.5", "30/20/15/10/10/5/5/5"],
    "native": 2.0,
    "seconds": 4.0,
    "settle": 3.0,
}
FULL = {"sliced": [2, 3, 8], "shares": ["50/50", "75/25", "34/33/33", "50/30/20", "12.5/12.5/12.5/12.5/12.5/12.5/12.5/12.5", "30/20/15/10/10/5/5/5"], "seconds": 6.0}
TOLERANCE_POINTS, LEAST_SUM = 2.0, 0.97
# 1.2 periods of the scheduler's.
LONGEST_WAIT_MS = 120


def seconds(settings):
    """About how long it takes."""
    tenants = sum(settings.sliced) + sum(shares.count("/") + 1 for shares in settings.shares)
    runs = (len(settings.sliced) + len(settings.shares)) * (settings.seconds + settings.settle + 0.5) + 0.4 * tenants
    return len(settings.kernels_us) * (settings.native + 1 + runs)


def run(proof):
    rows = proof.data["many"] = []
    with daemon.socket() as socket:
        for kernel_us in proof.settings.kernels_us:
            with proof.guard(f"kernels of {kernel_us} us alone", "a rate"):
                native = dense.native(proof, kernel_us, proof.settings.native)
                loads = steered.Loads(proof)
                loads.iterations[kernel_us] = native["iterations"]
                tenant = loads.command(f"dense{kernel_us}")
                for count in proof.settings.sliced:
                    name = f"{kernel_us} us, {count} tenants without Sluice"
                    with proof.guard(name, "rates"):
                        row = {"kernel_us": kernel_us, "shares": None}
                        rows.append(row)
                        measure(proof, row, native, [(tenant, None)] * count)
                        proof.check(name, None, described(row["each"]), "the hardware's own slicing")
                for shares in proof.settings.shares:
                    name = f"{kernel_us} us, {label(shares)}"
                    with proof.guard(name, "rates"), daemon.Daemon(proof, socket):
                        row = {"kernel_us": kernel_us, "shares": [float(share) for share in shares.split("/")]}
                        rows.append(row)
                        limited = [proof.limited(["--compute", f"{share:g}%"], tenant, daemon=socket) for share in row["shares"]]
                        judge(proof, name, row, measure(proof, row, native, [(command, None) for command in limited]))


def label(shares):
    """Shares as text; equal ones once."""
    parts = shares.split("/")
    return f"{len(parts)} tenants at {parts[0] if len(set(parts)) == 1 else shares}"


def measure(proof, row, native, commands):
    """Runs them at once; takes note of what each gets, in percent of one alone, and gives their pauses."""
    with steered.running(proof, commands) as programs:
        rates = steered.rates(proof, programs, proof.settings.settle, proof.settings.seconds)
    row["each"] = [100 * rate / native["rate"] for rate in rates]
    row["pauses"] = pauses = [(program.result or {}).get("pauses") for program in programs]
    return pauses


def described(each):
    return " ".join(f"{got:.1f}" for got in each) + f" = {sum(each):.1f} % of one alone"


def judge(proof, name, row, pauses):
    each = row["each"]
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
