"""A memory limit of 1 GiB, against every family of allocation calls, PyTorch and nvidia-smi."""

import pathlib
import re
import shutil
import sys

LIMIT = 1 << 30
LIMIT_TEXT = "1GiB"
# What is left after the context is well above this; less would be a false refusal.
LEAST_GRANTED = 256 << 20
REQUIRED = ["alloc", "pitch", "managed", "async", "pool", "vmm"]
FURTHER = ["array", "array3d", "mipmap", "graph"]


def run(proof):
    rows = proof.data["memory"] = []
    most = LIMIT
    for api in REQUIRED + FURTHER:
        tenant = proof.tenant("mem", "--api", api, "--chunk", "16MiB", "--cap", "3GiB")
        finished = proof.run(proof.limited(["--mem", LIMIT_TEXT], tenant), timeout=30)
        result = finished.json() if finished.ok else None
        if result is None:
            rows.append({"api": api, "failed": finished.why()})
            proof.check(f"--mem {LIMIT_TEXT}, tenant mem --api {api}", False, finished.why(), "a result")
            continue
        rows.append(result)
        granted, stop = result["granted_bytes"], result["stop"]
        if api == "alloc":
            # The context counts as well: what is used beyond what was granted.
            context = result["meminfo_total"] - result["meminfo_free"] - granted
            most = LIMIT - context
            proof.data["context_bytes"] = context
        stopped = stop == "CUDA_ERROR_OUT_OF_MEMORY" and LEAST_GRANTED <= granted <= most
        proof.check(
            f"--mem {LIMIT_TEXT}, tenant mem --api {api}",
            stopped if api in REQUIRED else (True if stopped else None),
            f"{granted >> 20} MiB granted, {stop}",
            f"{LEAST_GRANTED >> 20} to {most >> 20} MiB, CUDA_ERROR_OUT_OF_MEMORY",
        )
        if api == "alloc":
            shown = result["meminfo_total"] >> 20
            proof.check("cuMemGetInfo shows the limit", shown == LIMIT >> 20, f"{shown} MiB", f"{LIMIT >> 20} MiB")
    nvidia_smi(proof)
    pytorch(proof)


def nvidia_smi(proof):
    if shutil.which("nvidia-smi") is None:
        proof.check("nvidia-smi under --mem shows the limit", None if proof.fake else False, "no nvidia-smi here", "1024MiB")
        return
    finished = proof.run(proof.limited(["--mem", LIMIT_TEXT], ["nvidia-smi"]), timeout=30)
    shown = re.findall(r"(\d+)MiB\s*/\s*(\d+)MiB", finished.out)
    proof.data["nvidia_smi"] = [" / ".join(pair) for pair in shown]
    ok = finished.ok and bool(shown) and all(total == "1024" for _, total in shown)
    text = ", ".join(f"{used}MiB / {total}MiB" for used, total in shown) or finished.why()
    proof.check("nvidia-smi under --mem shows the limit", ok, text, "1024MiB")


def pytorch(proof):
    if proof.fake:
        proof.check("PyTorch raises OutOfMemoryError", None, "not run: no real GPU", "the small total in its message")
        return
    program = pathlib.Path(__file__).parent.parent / "programs" / "torch_oom.py"
    command = proof.limited(["--mem", LIMIT_TEXT], [sys.executable, str(program)])
    result = proof.result(command, timeout=60)
    proof.data["torch_oom"] = result
    message = result["message"]
    ok = result["error"] == "OutOfMemoryError" and bool(re.search(r"total capacity of 1(024\.00 MiB|\.00 GiB)", message))
    proof.check("PyTorch raises torch.OutOfMemoryError", ok, message[:110] or result["error"], "a total of 1024 MiB in its message")
    proof.check("PyTorch goes on after the refusal", result["works_afterwards"], result["works_afterwards"], "memory given back is usable")
