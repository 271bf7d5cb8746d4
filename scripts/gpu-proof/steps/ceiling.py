"""NVML's own figure stays within the limit while programs allocate, free and fragment at random close to it."""

from steps import watched
from steps.watched import mib

LIMIT_MIB = 4096
# Less would say nothing about the limit.
NEAR = 0.90
SECONDS = 8
# name, library, further arguments, PYTORCH_CUDA_ALLOC_CONF
PROGRAMS = [
    ("the driver's calls", "driver", [], ""),
    ("PyTorch, its own allocator", "torch", [], "backend:native"),
    ("PyTorch, expandable segments", "torch", [], "expandable_segments:True"),
    ("PyTorch, cudaMallocAsync", "torch", [], "backend:cudaMallocAsync"),
    ("PyTorch, loading code all the while", "torch", ["--modules"], "backend:native"),
]


def run(proof):
    rows = proof.data["ceiling"] = []
    chosen = [one for one in PROGRAMS if one[1] in watched.libraries(proof)]
    commands = []
    for _, library, further, setting in chosen:
        command = watched.program("memory_churn.py", "--with", library, "--seconds", SECONDS, *further)
        commands.append((proof.limited(["--mem", f"{LIMIT_MIB}MiB"], command), {"PYTORCH_CUDA_ALLOC_CONF": setting}))
    # Each in a session of its own.
    with watched.Sampler(proof) as sampler:
        ended = watched.side_by_side(proof, commands, timeout=SECONDS + 40)
    found = sampler.found
    pace = f"{found['samples']} samples, one in {found['mean_ms']:.1f} ms, longest pause {found['longest_ms']:.0f} ms"
    proof.check("NVML is asked often enough", found["mean_ms"] <= 20, pace, "every 10 ms, at most 20 in the mean")
    for (name, *_), finished in zip(chosen, ended):
        wanted = f"{NEAR * LIMIT_MIB:.0f} to {LIMIT_MIB} MiB at the highest"
        with proof.guard(f"{name}: NVML's figure", wanted):
            said = watched.said_by(finished)
            highest = sampler.highest(said["pid"])
            rows.append({"name": name, "highest_bytes": highest, **said})
            within = NEAR * LIMIT_MIB <= highest / watched.MIB <= LIMIT_MIB
            did = f"{said['steps']} steps, {said['refused']} refused, {said['retried']} then fitted"
            loaded = f", code loaded {said['loaded']} times" if said["loaded"] else ""
            proof.check(f"{name}: NVML's figure", within and said["refused"] > 0, f"highest {mib(highest)}; {did}{loaded}", wanted)
    proof.data["ceiling_sampling"] = found
    if proof.fake:
        proof.check("PyTorch's allocators under a limit", None, "not run: no real GPU", f"at most {LIMIT_MIB} MiB")
