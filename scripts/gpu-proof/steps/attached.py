"""Tools that attach to a program: its results and its exit status are what they are natively.

PyTorch's profiler, the vendor's profilers and its sanitizer, where they are found; each with the program native and
limited, the tool started under `sluice run`. Nothing of the card's settings is changed.
"""

import pathlib
import shutil
import tempfile

from steps import frameworks, watched

SETTINGS = {"tools": ["none", "torch.profiler", "ncu", "nsys", "compute-sanitizer"], "percent": 50, "timeout": 100.0}
TOOLS = {
    "none": [],
    "torch.profiler": [],
    "ncu": ["ncu", "--clock-control", "none", "--target-processes", "all", "--launch-skip", "40", "--launch-count", "8", "--section", "SpeedOfLight"],
    "nsys": ["nsys", "profile", "--force-overwrite", "true", "--sample", "none"],
    "compute-sanitizer": ["compute-sanitizer", "--tool", "memcheck", "--target-processes", "all"],
}
# About, on an H200: both runs.
SECONDS = {"none": 18, "torch.profiler": 22, "ncu": 40, "nsys": 40, "compute-sanitizer": 70}
TOLERANCE = 1e-4


def seconds(settings):
    """About how long it takes."""
    return sum(SECONDS.get(tool, 40) for tool in settings.tools)


def run(proof):
    rows = proof.data["attached"] = []
    folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-attached-"))
    try:
        for tool in proof.settings.tools:
            with proof.guard(tool, "native's result and exit status"):
                attach(proof, rows, tool, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def attach(proof, rows, tool, folder):
    wanted = "native's result and exit status"
    if proof.fake:
        proof.check(tool, None, "SKIPPED: no real GPU", wanted)
        return
    start = TOOLS[tool]
    if start and shutil.which(start[0]) is None:
        proof.check(tool, None, f"SKIPPED: {start[0]} is not found", wanted)
        return
    if tool == "nsys":
        start = [*start, "-o", str(folder / "report")]
    command = [*start, *watched.program("attached.py", *(["--profile"] if tool == "torch.profiler" else []))]
    options = ["--compute", f"{proof.settings.percent}%", "--mem", "8GiB"]
    native = proof.run(command, timeout=proof.settings.timeout)
    limited = proof.run(proof.limited(options, command), timeout=proof.settings.timeout)
    row = {"tool": tool, "status": [native.status, limited.status], "seconds": [native.seconds, limited.seconds]}
    results = row["results"] = [native.json(), limited.json()]
    rows.append(row)
    if not native.ok:
        # The tool itself does not work on this machine.
        proof.check(tool, None, f"SKIPPED: natively {native.why()}; limited {limited.why()}", wanted)
        return
    if results[0] is None or results[1] is None:
        proof.show(f"== {tool}, limited: {limited.why()}\n{limited.err[-2500:]}\n{limited.out[-1500:]}")
        proof.check(tool, False, f"no result; limited: {limited.why()}", wanted)
        return
    difference = frameworks.largest_difference(results[0]["result"], results[1]["result"])
    same = native.status == limited.status and difference <= TOLERANCE and results[0].get("kernels") == results[1].get("kernels")
    kernels = f"; {results[0]['kernels']} and {results[1]['kernels']} kernels seen" if "kernels" in results[0] else ""
    text = f"status {native.status} and {limited.status}, difference {difference:.1e}{kernels}; {native.seconds:.0f} and {limited.seconds:.0f} s"
    proof.check(tool, same, text, wanted)
