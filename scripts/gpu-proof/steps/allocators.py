"""Allocators that keep what is freed: PyTorch's three fill and free again and again, JAX takes its part at once."""

from steps import watched
from steps.watched import mib

LIMIT_MIB = 4096
BACKENDS = ["backend:native", "expandable_segments:True", "backend:cudaMallocAsync"]
LARGE = 2 << 30


def run(proof):
    rows = proof.data["allocators"] = []
    if proof.fake:
        chosen = [("the driver's calls", "driver", "")]
    else:
        chosen = [(f"PyTorch, {setting}", "torch", setting) for setting in BACKENDS]
    options = ["--mem", f"{LIMIT_MIB}MiB"]
    commands = [
        (proof.limited(options, watched.program("allocator_rounds.py", "--with", library)), {"PYTORCH_CUDA_ALLOC_CONF": setting})
        for _, library, setting in chosen
    ]
    if not proof.fake:
        commands.append((proof.limited(options, watched.program("jax_preallocate.py")), None))
    with watched.Sampler(proof) as sampler:
        ended = watched.side_by_side(proof, commands, timeout=75)
    for (name, *_), finished in zip(chosen, ended):
        with proof.guard(f"{name}: fill and free five times", "rounds of the same size"):
            said = watched.said_by(finished)
            highest = sampler.highest(said["pid"])
            rows.append({"name": name, "highest_bytes": highest, **said})
            rounds = said["rounds"]
            even = max(rounds) - min(rounds) <= 1 and 0.75 * LIMIT_MIB <= min(rounds) * 32 <= LIMIT_MIB
            text = ", ".join(map(str, rounds))
            proof.check(f"{name}: fill and free five times", even, f"{text} of 32 MiB", "the same within one, 75 to 100 % of the limit")
            kept = f"{said['small']} of 512 KiB kept, retries {said['retries']}"
            enough = said["large"] and said["small"] << 19 > (LIMIT_MIB << 20) - LARGE
            proof.check(f"{name}: gives back what it keeps and retries", enough, f"{kept}; {mib(LARGE)}: {said['large']}", f"{mib(LARGE)} succeed")
            within = highest <= LIMIT_MIB << 20
            proof.check(f"{name}: NVML's figure", within, f"highest {mib(highest)}", f"at most {LIMIT_MIB} MiB")
    if proof.fake:
        proof.check("JAX with preallocation", None, "not run: no real GPU", "works")
        return
    wanted = f"right, and 75 % of the limit to {LIMIT_MIB} MiB by NVML"
    with proof.guard("JAX with preallocation", wanted):
        said = watched.said_by(ended[-1])
        highest = sampler.highest(said["pid"])
        rows.append({"name": "JAX", "highest_bytes": highest, **said})
        within = 0.70 * LIMIT_MIB <= highest / watched.MIB <= LIMIT_MIB
        right = said["correct"] and said["platform"] == "gpu"
        text = f"right: {right}; its allocator's limit {mib(said['limit'])}; NVML highest {mib(highest)}"
        proof.check("JAX with preallocation", right and within, text, wanted)
