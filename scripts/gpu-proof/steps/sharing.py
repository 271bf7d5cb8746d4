"""Pairs of tenants that do not all fill the device, beside time slicing and MPS in the same run.

Under Sluice each has a guaranteed share (policy balance).
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from harness import StepFailed
from steps import dense, pairs

LOAD = str(pathlib.Path(__file__).parent.parent / "programs" / "torch_load.py")
SECONDS = 9
# names, shares under Sluice, each tenant's least part of its rate alone, least part of the sum that time slicing gives
CASES = [
    ("train", "train", [(50, 50)]),
    ("decode", "decode", [(50, 50)]),
    ("train", "decode", [(50, 50)]),
    ("dense 2500", "decode", [(50, 50), (75, 25), (25, 75)]),
    ("dense 130", "decode", [(50, 50)]),
    ("dense 130", "train", [(50, 50)]),
]


def run(proof):
    if proof.fake:
        proof.check("sparse tenants", None, "not run: no real GPU", "beside time slicing")
        return
    found = proof.data["sharing"] = {"alone": {}, "pairs": []}
    folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-proof-"))
    try:
        loads = Loads(proof)
        for name in sorted({name for first, second, _ in CASES for name in (first, second)}):
            found["alone"][name] = pairs.alone(proof, loads.command(name))
        for first, second, shares in CASES:
            with proof.guard(f"{first} + {second}", "rates"):
                case(proof, found, loads, (first, second), shares, folder)
        with proof.guard("MPS", "rates"), Mps(proof, folder) as env:
            for row in found["pairs"]:
                commands = [loads.command(name) for name in row["names"]]
                row["mps"] = relative(pairs.together(proof, commands, SECONDS, env), row["names"], found["alone"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def case(proof, found, loads, names, shares, folder):
    alone = found["alone"]
    commands = [loads.command(name) for name in names]
    row = {"names": names, "sluice": {}}
    found["pairs"].append(row)
    row["sliced"] = sliced = relative(pairs.together(proof, commands, SECONDS), names, alone)
    proof.check(f"{names[0]} + {names[1]}, time slicing", None, describe(sliced), "the hardware's own")
    for pair in shares:
        label = "/".join(map(str, pair))
        with pairs.Daemon(proof, folder / "hypervisor.sock"):
            limited = [proof.limited(["--compute", f"{share}%", "--policy", "balance"], command, daemon=folder / "hypervisor.sock") for share, command in zip(pair, commands)]
            got = relative(pairs.together(proof, limited, SECONDS), names, alone)
        row["sluice"][label] = got
        judge(proof, f"{names[0]} + {names[1]} at {label}", names, pair, got, sliced)


def judge(proof, what, names, shares, got, sliced):
    sparse = [not name.startswith("dense") for name in names]
    if all(sparse):
        least = 0.98 * sliced["sum"]
        proof.check(f"{what}: sum", got["sum"] >= least, describe(got), f"at least {least:.2f}")
    for name, is_sparse, share, part, before in zip(names, sparse, shares, got["each"], sliced["each"]):
        if shares == (50, 50) and not all(sparse):
            least = 0.95 if is_sparse else before - 0.02
        else:
            least = share / 100 - 0.02
        proof.check(f"{what}: {name}", part >= least, f"{part:.2f} of alone", f"at least {least:.2f}")


def relative(rates, names, alone):
    each = [rate / alone[name] for rate, name in zip(rates, names)]
    return {"each": each, "sum": sum(each), "rates": rates}


def describe(found):
    return " + ".join(f"{part:.2f}" for part in found["each"]) + f" = {found['sum']:.2f}"


class Loads:
    """The commands; dense loads are calibrated once."""

    def __init__(self, proof):
        self.proof = proof
        self.iterations = {}

    def command(self, name):
        if not name.startswith("dense"):
            return [sys.executable, LOAD, name, str(SECONDS)]
        kernel_us = int(name.split()[1])
        if kernel_us not in self.iterations:
            self.iterations[kernel_us] = dense.native(self.proof, kernel_us, 1)["iterations"]
        arguments = dense.again(kernel_us, SECONDS + 4, self.iterations[kernel_us], "--progress")
        return self.proof.tenant(*arguments)


class Mps:
    """The vendor's multi-process service for as long as the block runs."""

    def __init__(self, proof, folder):
        self.proof = proof
        self.env = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "mps"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "log")}
        (folder / "mps").mkdir()
        (folder / "log").mkdir()

    def __enter__(self):
        if shutil.which("nvidia-cuda-mps-control") is None:
            raise StepFailed("nvidia-cuda-mps-control is missing")
        self.proof.run(["nvidia-cuda-mps-control", "-d"], timeout=20, env=self.env)
        time.sleep(1)
        return self.env

    def __exit__(self, *_):
        environment = {**os.environ, **self.env}
        subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, env=environment, timeout=30, check=False)
