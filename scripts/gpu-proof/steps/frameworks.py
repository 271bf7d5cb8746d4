"""Unchanged programs run to the end under limits, with the results that they have without."""

import math
import pathlib
import sys

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
]
ENVIRONMENT = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def run(proof):
    rows = proof.data["frameworks"] = []
    for name, file, tolerance, seconds in RUNS:
        wanted = f"native's results within {tolerance:g}"
        if proof.fake:
            proof.check(name, None, "not run: no real GPU", wanted)
            continue
        command = [sys.executable, str(PROGRAMS / file)]
        native = proof.run(command, timeout=seconds, env=ENVIRONMENT)
        limited = proof.run(proof.limited(OPTIONS, command), timeout=seconds * 1.5, env=ENVIRONMENT)
        row = {"name": name, "native": native.json(), "limited": limited.json()}
        row["seconds"] = {"native": native.seconds, "limited": limited.seconds}
        rows.append(row)
        failed = [f"{way}: {one.why()}" for way, one in [("native", native), ("limited", limited)] if not one.ok or one.json() is None]
        if failed:
            proof.check(name, False, "; ".join(failed), wanted)
            continue
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
