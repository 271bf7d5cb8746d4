"""The estimate of GPU time, beside the vendor's profiler."""

import json
import pathlib
import subprocess
import sys
import time

from harness import StepFailed, kill_group

LOAD = str(pathlib.Path(__file__).parent.parent / "programs" / "torch_load.py")
SECONDS = 10
# load, largest error of the estimate, as a part
CASES = [("train", 0.05), ("decode", 0.05), ("graph", 0.05)]


def run(proof):
    rows = proof.data["estimate"] = []
    for name, tolerance in CASES:
        wanted = f"within {100 * tolerance:.0f} %"
        if proof.fake:
            proof.check(f"estimate of {name}", None, "not run: no real GPU", wanted)
            continue
        with proof.guard(f"estimate of {name}", wanted):
            native = proof.result([sys.executable, LOAD, name, "5", "--profile"], timeout=90)
            command = proof.limited(["--compute", "99%"], [sys.executable, LOAD, name, str(SECONDS)])
            rate, charged = follow(proof, command)
            truth = native["busy_s_per_step"]
            estimate = charged / rate
            row = {"name": name, "native_rate": native["rate"], "rate": rate, "busy_us_per_step": truth * 1e6, "estimated_us_per_step": estimate * 1e6}
            row["utilisation"] = native["rate"] * truth
            rows.append(row)
            error = estimate / truth - 1
            proof.check(f"estimate of {name}", abs(error) <= tolerance, f"{1e6 * estimate:.0f} us a step, profiler {1e6 * truth:.0f} us: {100 * error:+.1f} %", wanted)
            kept = rate / native["rate"]
            proof.check(f"{name} at 99 %", None, f"{kept:.3f} of native ({native['rate']:.1f} steps/s, utilisation {row['utilisation']:.2f})", "at least 0.99")


def follow(proof, command):
    """Steps a second, and device time charged a second, over the last half of a run."""
    process = proof.start(command)
    lines = []
    try:
        for line in process.stdout:
            progress = json.loads(line) if line.startswith("{") else {}
            if "elapsed" in progress:
                if progress["elapsed"] >= SECONDS / 2:
                    lines.append((time.monotonic(), progress["kernels"], charged_us(proof)))
        process.wait(30)
    finally:
        if process.poll() is None:
            kill_group(process)
            process.wait()
        proof.log(f"  err: {process.stderr.read()[-1500:]}")
    if len(lines) < 4:
        raise StepFailed("told no progress")
    (t0, k0, c0), (t1, k1, c1) = lines[0], lines[-1]
    return (k1 - k0) / (t1 - t0), (c1 - c0) / 1e6 / (t1 - t0)


def charged_us(proof):
    out = subprocess.run([proof.tool("sluice"), "status", "--json"], capture_output=True, text=True, timeout=10, env=proof.environment).stdout
    return sum(numbers(json.loads(out), "charged_us"))


def numbers(value, name):
    """All values of a name anywhere in a document."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == name and isinstance(inner, int):
                yield inner
            else:
                yield from numbers(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from numbers(inner, name)
