"""Unchanged programs run to the end under limits, with the results that they have without."""

import math
import pathlib
import shutil
import subprocess
import sys
import tempfile

PROGRAMS = pathlib.Path(__file__).parent.parent / "programs"
MEMORY_GIB = 20
OPTIONS = ["--compute", "50%", "--mem", f"{MEMORY_GIB}GiB"]
# name, file, largest relative difference of the results, seconds for one run
RUNS = [
    ("PyTorch training", "torch_train.py", 1e-3, 60),
    ("PyTorch decode", "torch_decode.py", 1e-2, 60),
    ("torch.compile with CUDA graphs", "torch_compile.py", 1e-2, 120),
    ("JAX", "jax_grad.py", 1e-2, 75),
    ("CuPy", "cupy_ops.py", 1e-3, 60),
    ("Triton", "triton_ops.py", 1e-3, 60),
]
# Compiled by nvcc: name, file, what nvcc is told besides. It links the CUDA runtime into them.
COMPILED = [
    ("static CUDA runtime", "runtime_ops.cu", []),
    ("static CUDA runtime with streams of threads", "runtime_ops.cu", ["--default-stream", "per-thread"]),
]
SETTINGS = {"programs": [name for name, *_ in [*RUNS, *COMPILED]]}
ENVIRONMENT = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def run(proof):
    rows = proof.data["frameworks"] = []
    chosen = proof.settings.programs
    for name, file, tolerance, seconds in RUNS:
        if name in chosen:
            compare(proof, rows, name, [sys.executable, str(PROGRAMS / file)], tolerance, seconds)
    with tempfile.TemporaryDirectory(prefix="sluice-compiled-") as folder:
        for name, file, told in COMPILED:
            if name in chosen:
                with proof.guard(name, "native's results"):
                    command = compiled(proof, name, file, told, pathlib.Path(folder))
                    if command:
                        compare(proof, rows, name, command, 1e-6, 30)


def compiled(proof, name, file, told, folder):
    """A command that runs what nvcc makes of it; none where there is no nvcc."""
    if proof.fake:
        proof.check(name, None, "not run: no real GPU", "native's results")
        return None
    if shutil.which("nvcc") is None:
        proof.check(name, None, "SKIPPED: nvcc is not found", "native's results")
        return None
    program = folder / name.replace(" ", "-")
    subprocess.run(["nvcc", "-O2", "-arch=native", *told, "-o", program, PROGRAMS / file], check=True, timeout=120)
    return [str(program)]


def compare(proof, rows, name, command, tolerance, seconds):
    wanted = f"native's results within {tolerance:g}"
    if proof.fake:
        proof.check(name, None, "not run: no real GPU", wanted)
        return
    native = proof.run(command, timeout=seconds, env=ENVIRONMENT)
    limited = proof.run(proof.limited(OPTIONS, command), timeout=seconds * 1.5, env=ENVIRONMENT)
    row = {"name": name, "native": native.json(), "limited": limited.json()}
    row["seconds"] = {"native": native.seconds, "limited": limited.seconds}
    rows.append(row)
    failed = [f"{way}: {one.why()}" for way, one in [("native", native), ("limited", limited)] if not one.ok or one.json() is None]
    if failed:
        proof.check(name, False, "; ".join(failed), wanted)
        return
    difference = largest_difference(row["native"]["result"], row["limited"]["result"])
    row["difference"] = difference
    rates = [row[way]["rate"] for way in ("native", "limited")]
    correct = all(row[way].get("correct", True) for way in ("native", "limited"))
    proof.check(
        name,
        difference <= tolerance and correct,
        f"difference {difference:.1e}; {rates[0]:.1f} -> {rates[1]:.1f} {row['native']['unit']} ({rates[1] / rates[0]:.2f} of native)",
        wanted,
    )
    if "memory_total" in row["limited"]:
        shown = row["limited"]["memory_total"] >> 20
        proof.check(f"{name}: the memory that it sees", shown == MEMORY_GIB << 10, f"{shown} MiB", f"{MEMORY_GIB << 10} MiB")


def largest_difference(a, b):
    """The largest difference of two lists of numbers, relative to the largest number in them;
    infinite if they do not match at all."""
    if len(a) != len(b) or not a or not all(map(math.isfinite, a + b)):
        return math.inf
    scale = max(map(abs, a + b)) or 1.0
    return max(abs(x - y) for x, y in zip(a, b)) / scale
