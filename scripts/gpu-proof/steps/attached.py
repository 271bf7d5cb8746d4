"""Tools that attach to a program: its results and its exit status are what they are natively.

PyTorch's profiler, the vendor's profilers, its sanitizer and its debugger, where they are found; each with the program
native and limited, the tool started under `sluice run`. Nothing of the card's settings is changed.
"""

import pathlib
import re
import shutil
import subprocess
import tempfile

from steps import frameworks, watched

SETTINGS = {"tools": ["none", "torch.profiler", "ncu", "nsys", "compute-sanitizer", "cuda-gdb"], "percent": 50, "timeout": 100.0}
TOOLS = {
    "none": [],
    "torch.profiler": [],
    "ncu": ["ncu", "--clock-control", "none", "--target-processes", "all", "--launch-skip", "40", "--launch-count", "8", "--section", "SpeedOfLight"],
    "nsys": ["nsys", "profile", "--force-overwrite", "true", "--sample", "none"],
    "compute-sanitizer": ["compute-sanitizer", "--tool", "memcheck", "--target-processes", "all"],
    "cuda-gdb": ["cuda-gdb", "--batch", "--nx", "--return-child-result"],
}
# It stops where the kernel begins, twice, and then lets the program end. Where the name also stands for the function on the
# host that launches it, every other stop is there.
COMMANDS = [
    "set breakpoint pending on",
    "break debugged",
    "run",
    *["info cuda kernels", "continue"] * 3,
    "info cuda kernels",
    "delete",
    "continue",
]
# About, on an H200: both runs.
SECONDS = {"none": 18, "torch.profiler": 22, "ncu": 40, "nsys": 40, "compute-sanitizer": 70, "cuda-gdb": 40}
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
    if tool == "cuda-gdb":
        return debug(proof, rows, start, folder)
    command = [*start, *watched.program("attached.py", *(["--profile"] if tool == "torch.profiler" else []))]
    native, limited, results = both(proof, rows, tool, command)
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


def both(proof, rows, tool, command):
    """How the command ended native and limited, and what it found."""
    options = ["--compute", f"{proof.settings.percent}%", "--mem", "8GiB"]
    native = proof.run(command, timeout=proof.settings.timeout)
    limited = proof.run(proof.limited(options, command), timeout=proof.settings.timeout)
    results = [native.json(), limited.json()]
    rows.append({"tool": tool, "status": [native.status, limited.status], "seconds": [native.seconds, limited.seconds], "results": results})
    return native, limited, results


def debug(proof, rows, start, folder):
    """The vendor's debugger: it stops in a kernel, sees it on the device, and the program goes on to its result."""
    wanted = "native's stops in the kernel, result and exit status"
    if shutil.which("nvcc") is None:
        proof.check("cuda-gdb", None, "SKIPPED: nvcc is not found", wanted)
        return
    program = folder / "debugged"
    source = frameworks.PROGRAMS / "debugged.cu"
    subprocess.run(["nvcc", "-g", "-G", "-arch=native", "-o", program, source], check=True, timeout=120)
    told = [word for command in COMMANDS for word in ("-ex", command)]
    native, limited, results = both(proof, rows, "cuda-gdb", [*start, *told, "--args", str(program)])
    seen = rows[-1]["kernels"] = [kernels(native.out), kernels(limited.out)]
    if not native.ok or not seen[0] or results[0] is None:
        # It does not work on this machine.
        proof.show(f"== cuda-gdb, native: {native.why()}\n{native.err[-2500:]}\n{native.out[-2500:]}")
        proof.check("cuda-gdb", None, f"SKIPPED: natively {native.why()}; limited {limited.why()}; kernels {seen}", wanted)
        return
    same = native.status == limited.status and seen[0] == seen[1] and results[0] == results[1]
    if not same:
        proof.show(f"== cuda-gdb, limited: {limited.why()}\n{limited.err[-2500:]}\n{limited.out[-2500:]}")
    text = f"status {native.status} and {limited.status}; stopped in {len(seen[0])} and {len(seen[1])} kernels, {seen[1][:1]}; "
    proof.check("cuda-gdb", same, f"{text}result {results[1]}; {native.seconds:.0f} and {limited.seconds:.0f} s", wanted)


def kernels(text):
    """What `info cuda kernels` has told of the kernel each time: the sizes of grid and blocks, and its arguments but for
    addresses."""
    found = re.findall(r"\((\d+,\d+,\d+)\)\s+\((\d+,\d+,\d+)\)\s+(debugged.*)", text)
    return [[grid, block, re.sub(r"0x[0-9a-f]+", "ADDRESS", arguments)] for grid, block, arguments in found]
