"""Two tenants under the daemon: each gets its share, and together they lose little."""

import pathlib
import shutil
import subprocess
import tempfile
import threading
import time

from harness import StepFailed, kill_group
from steps import daemon, dense, listener

TOLERANCE_POINTS = 3.0
LEAST_SUM = 0.96
KERNELS = [2500, 130]
SHARES = [(50, 50), (75, 25)]
SECONDS = 6


def run(proof):
    rows = proof.data["pairs"] = []
    # Not under $OUT: the path of a socket has to be short.
    folder = tempfile.mkdtemp(prefix="sluice-proof-")
    try:
        measure(proof, rows, pathlib.Path(folder) / "hypervisor.sock")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(proof, rows, socket):
    for kernel_us in KERNELS:
        with proof.guard(f"kernels of {kernel_us} us alone, and two without Sluice", "rates"):
            native = dense.native(proof, kernel_us, 3)
            tenant = proof.tenant(*dense.again(kernel_us, SECONDS, native["iterations"], "--progress"))
            found = relative(together(proof, [tenant, tenant]), native)
            row = {"kernel_us": kernel_us, "native": native, "without_sluice": found, "daemon": {}}
            rows.append(row)
            name = f"two tenants without Sluice, kernels of {kernel_us} us"
            proof.check(name, None, describe(found), "the hardware's own time slicing")
            for shares in SHARES:
                share(proof, row, shares, tenant, socket)


def share(proof, row, shares, tenant, socket):
    name = f"two tenants at {shares[0]}/{shares[1]}, kernels of {row['kernel_us']} us"
    wanted = f"within {TOLERANCE_POINTS:g} points"
    with proof.guard(name, wanted), daemon.Daemon(proof, socket):
        commands = [proof.limited(["--compute", f"{share}%"], tenant, daemon=socket) for share in shares]
        found = relative(together(proof, commands), row["native"])
        row["daemon"][f"{shares[0]}/{shares[1]}"] = found
        close = all(abs(100 * got - share) <= TOLERANCE_POINTS for got, share in zip(found["each"], shares))
        proof.check(f"{name}: each", close, describe(found), wanted)
        enough = found["sum"] >= LEAST_SUM
        proof.check(f"{name}: sum", enough, f"{found['sum']:.3f} of one alone", f"at least {LEAST_SUM}")


def relative(rates, native):
    each = [rate / native["rate"] for rate in rates]
    return {"each": each, "sum": sum(each), "rates": rates}


def describe(found):
    return " + ".join(f"{100 * got:.1f}" for got in found["each"]) + f" = {100 * found['sum']:.1f} % of one alone"


def alone(proof, command):
    """The rate of one program by itself."""
    return together(proof, [command])[0]


def together(proof, commands, seconds=SECONDS, env=None):
    """Runs the programs at once; the rate of each over the time in which all of them ran."""
    runs = [Run(proof, command, env) for command in commands]
    give_up = time.monotonic() + min(seconds * 4 + dense.STARTUP, proof.left())
    try:
        for run_ in runs:
            run_.wait(give_up)
    finally:
        for run_ in runs:
            run_.end()
    begin = max(run_.lines[0][0] for run_ in runs)
    end = min(run_.lines[-1][0] for run_ in runs)
    return [run_.rate(begin, end) for run_ in runs]


class Run(listener.Listener):
    """A tenant that tells its progress, each line with the time when it came."""

    def __init__(self, proof, command, env=None):
        self.lines = []
        super().__init__(proof, command, env)

    def heard(self, said):
        if "elapsed" in said:
            self.lines.append((time.monotonic(), said["elapsed"], said["kernels"]))

    def wait(self, give_up):
        try:
            status = self.process.wait(max(give_up - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            raise StepFailed("a tenant of the pair did not end") from None
        for reader in self.readers:
            reader.join(5)
        text = "".join(self.errors).strip()
        self.proof.log(f"  status {status}, {len(self.lines)} progress lines; err: {text[-2000:]}")
        if status != 0:
            raise StepFailed(f"a tenant of the pair: exit status {status}: {text[-200:]}")
        if len(self.lines) < 4:
            raise StepFailed("a tenant of the pair told no progress")

    def end(self):
        """Ends it if it still runs, because it or the other one failed."""
        if self.process.poll() is None:
            kill_group(self.process)
            self.process.wait()

    def rate(self, begin, end):
        within = [(elapsed, kernels) for at, elapsed, kernels in self.lines if begin <= at <= end]
        if len(within) < 4:
            raise StepFailed("the two tenants did not run at the same time")
        (e0, k0), (e1, k1) = within[0], within[-1]
        return (k1 - k0) / (e1 - e0)
