"""A memory limit of 1 GiB, against every family of allocation calls, races, death, PyTorch and nvidia-smi."""

import re
import shutil

from steps import watched
from steps.watched import mib

LIMIT = 1 << 30
LIMIT_TEXT = "1GiB"
# What is left after the context is well above this; less would be a false refusal.
LEAST_GRANTED = 256 << 20
APIS = ["alloc", "pitch", "managed", "async", "pool", "vmm", "array", "array3d", "mipmap", "graph"]
# Each graph's memory comes from the driver in pieces of this size, whatever it asks for.
CHUNKS = {"graph": "32MiB"}
CHUNK = "16MiB"
# Pools grow by as much; a smaller rest of the limit cannot be had from them.
PIECE = 32 << 20
# What the existing systems got wrong, and the criterion of this step that shows it right.
PEERS = [
    ("allocations from a pool not limited", "api pool"),
    ("arrays not limited, or all refused", "api array"),
    ("3-D arrays not limited, or all refused", "api array3d"),
    ("mipmapped arrays beyond the limit", "api mipmap"),
    ("managed memory not limited", "api managed"),
    ("memory of graphs not limited", "api graph"),
    ("cuMemAllocAsync refused with an undefined error", "api async"),
    ("two allocations of 600 MiB at once pass a limit that has room for one", "race"),
    ("deadlock after SIGKILL, memory of the dead not given back", "death"),
    ("nvidia-smi shows more in use than there is", "nvidia-smi"),
]


def run(proof):
    proof.data["memory"] = []
    fine = {}
    for api in APIS:
        name = f"--mem {LIMIT_TEXT}, tenant mem --api {api}"
        with proof.guard(name, "a result"):
            fine[f"api {api}"] = allocate(proof, api, name)
    for name, about, case in [
        ("nvidia-smi", "nvidia-smi under --mem shows the limit", nvidia_smi),
        ("race", "two processes that ask for the last bytes at once", race),
        ("death", "a process that is killed while it holds memory", death),
        ("pytorch", "PyTorch under a limit of 1 GiB", pytorch),
    ]:
        with proof.guard(about, "a result"):
            fine[name] = case(proof)
    for failure, criterion in PEERS:
        ok = fine.get(criterion, False)
        proof.check(f"not here: {failure}", ok, {True: "right", False: "wrong", None: "not run"}[ok], f"see {criterion}")


def allocate(proof, api, name):
    """One way to allocate; whether it kept the limit, and gave what fits."""
    tenant = proof.tenant("mem", "--api", api, "--chunk", CHUNKS.get(api, CHUNK), "--cap", "3GiB", "--hold", "0.2")
    with watched.Sampler(proof) as sampler:
        result = proof.result(proof.limited(["--mem", LIMIT_TEXT], tenant), timeout=30)
    granted, stop = result["granted_bytes"], result["stop"]
    used = result["meminfo_total"] - result["meminfo_free"]
    # The context counts as well: what is used beyond what was granted.
    context = proof.data.setdefault("context_bytes", used - granted)
    most, highest = LIMIT - context, sampler.found["highest"]
    chunk = granted // max(result["granted_chunks"], 1)
    least = max(LEAST_GRANTED, most - max(chunk, PIECE))
    proof.data["memory"].append({**result, "nvml_highest": highest})
    within = stop == "CUDA_ERROR_OUT_OF_MEMORY" and least <= granted <= most
    proof.check(name, within, f"{granted >> 20} MiB granted, {stop}", f"{least >> 20} to {most >> 20} MiB, CUDA_ERROR_OUT_OF_MEMORY")
    seen = 0 < highest <= LIMIT
    proof.check(f"{name}: NVML's figure", seen, f"highest {mib(highest)}", f"at most {LIMIT >> 20} MiB")
    if api == "alloc":
        shown = result["meminfo_total"] >> 20
        proof.check("cuMemGetInfo shows the limit", shown == LIMIT >> 20, f"{shown} MiB", f"{LIMIT >> 20} MiB")
    return within and seen


def race(proof):
    """Two contexts and one allocation of 600 MiB fit into 2 GiB; a second one does not."""
    program = watched.program("race.py", proof.tool("tenant"))
    result = proof.result(proof.limited(["--mem", "2GiB"], program), timeout=60)
    proof.data["race"] = result
    granted = sorted(size >> 20 for size in result["granted"])
    ok = granted == [0, 600] and "CUDA_ERROR_OUT_OF_MEMORY" in result["stops"]
    proof.check("two ask for 600 MiB at once, with room for one", ok, f"{granted} MiB granted", "[0, 600] MiB granted")
    return ok


def death(proof):
    """What the killed held is free within a second, and all of it can be had by the next process."""
    command = proof.limited(["--mem", LIMIT_TEXT], watched.program("survive_kill.py", proof.tool("tenant")))
    with watched.Watched(proof, command) as program:
        before = program.hear(40)["granted"]
        program.go_on()
        program.hear(10)
        took = watched.eventually(5, lambda: program.device()["memory"]["used"] == 0)
        program.go_on()
        after = program.hear(40)
    proof.data["death"] = {"before": before, "seconds": took, "after": after}
    ok = took is not None and took <= 1 and after["granted"] == before
    freed = "never" if took is None else f"after {took:.2f} s"
    text = f"free {freed}; {before >> 20} MiB before, {after['granted'] >> 20} MiB then, start to end {after['seconds']:.1f} s"
    proof.check("killed while it holds memory", ok, text, "free within 1 s, the same granted then")
    return ok


def nvidia_smi(proof):
    if shutil.which("nvidia-smi") is None:
        proof.check("nvidia-smi under --mem shows the limit", None if proof.fake else False, "no nvidia-smi here", "1024MiB")
        return None if proof.fake else False
    finished = proof.run(proof.limited(["--mem", LIMIT_TEXT], ["nvidia-smi"]), timeout=30)
    shown = re.findall(r"(\d+)MiB\s*/\s*(\d+)MiB", finished.out)
    proof.data["nvidia_smi"] = [" / ".join(pair) for pair in shown]
    ok = finished.ok and bool(shown) and all(total == "1024" and int(used) <= 1024 for used, total in shown)
    text = ", ".join(f"{used}MiB / {total}MiB" for used, total in shown) or finished.why()
    proof.check("nvidia-smi under --mem shows the limit", ok, text, "1024MiB")
    return ok


def pytorch(proof):
    if proof.fake:
        proof.check("PyTorch raises OutOfMemoryError", None, "not run: no real GPU", "the small total in its message")
        return None
    command = proof.limited(["--mem", LIMIT_TEXT], watched.program("torch_oom.py"))
    result = proof.result(command, timeout=60)
    proof.data["torch_oom"] = result
    message = result["message"]
    ok = result["error"] == "OutOfMemoryError" and bool(re.search(r"total capacity of 1(024\.00 MiB|\.00 GiB)", message))
    proof.check("PyTorch raises torch.OutOfMemoryError", ok, message[:110] or result["error"], "a total of 1024 MiB in its message")
    proof.check("PyTorch goes on after the refusal", result["works_afterwards"], result["works_afterwards"], "memory given back is usable")
    return ok and result["works_afterwards"]
