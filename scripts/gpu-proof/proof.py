#!/usr/bin/env python3
"""Proves Sluice on a real GPU, from prebuilt binaries.

Each step has time limits of its own and does not stop the others. Exit status: 0 if every
criterion passed, 1 if one failed, 2 for wrong usage.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import time
import traceback

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import report  # noqa: E402
import settings  # noqa: E402
import steps  # noqa: E402
from harness import NEEDED, NEEDED_FAKE, Harness, StepFailed  # noqa: E402
from steps import picture  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent


def arguments():
    names = ", ".join(name for name, _, _ in steps.ALL)
    parser = argparse.ArgumentParser(prog="gpu-proof.sh", description=__doc__)
    parser.add_argument("binaries", nargs="?", help="directory with sluice, hypervisor, tenant and libcuda_limiter.so, or with bin/ that holds them")
    parser.add_argument("--only", metavar="STEPS", help=f"comma list of the steps to run: {names}")
    parser.add_argument("--fake", action="store_true", help="on the GPU simulated in software; the Python frameworks are left out")
    parser.add_argument("--budget", type=float, default=530, metavar="SECONDS", help="steps that do not fit any more are not run (default: 530)")
    parser.add_argument(
        "--set",
        metavar="STEP.NAME=VALUE",
        action="append",
        default=[],
        help="change a setting of a step, lists with commas; --plan shows them. Without STEP.: tune (default) or judge, which programs are run",
    )
    parser.add_argument("--env", metavar="NAME=VALUE", action="append", default=[], help="a variable for the programs and the library under test, such as SLUICE_GATES=stream")
    parser.add_argument("--smoke", action="store_true", help="only the step smoke: each program for two seconds")
    parser.add_argument("--full", action="store_true", help="the whole tables of the steps that have a shorter one")
    parser.add_argument("--draw", metavar="RESULT", help="draw latency.svg into $OUT from an earlier gpu-proof.json, and run nothing")
    parser.add_argument("--plan", action="store_true", help="print the steps with their settings and about how long they take, and run nothing")
    given = parser.parse_args()
    given.judge = "judge" in given.set
    given.set = [one for one in given.set if one not in ("tune", "judge")]
    for one in given.env:
        if "=" not in one:
            parser.error(f"--env {one}: expected NAME=VALUE")
    given.env = dict(one.split("=", 1) for one in given.env)
    if given.smoke:
        given.only = "smoke"
    known = [name for name, _, _ in steps.ALL]
    chosen = given.only.split(",") if given.only else known
    for name in chosen:
        if name not in known:
            parser.error(f"--only {name}: expected some of {names}")
    given.plan_rows = plan(parser, given, chosen)
    if given.plan or given.draw:
        return given
    needed = NEEDED + (NEEDED_FAKE if given.fake else [])
    root = HERE.parent.parent
    around = [HERE.parent / "bin", root / "bin", root / "target/release", root / "target/debug"]
    tried = [pathlib.Path(given.binaries), pathlib.Path(given.binaries) / "bin"] if given.binaries else around
    for folder in tried:
        if all((folder / name).is_file() for name in needed):
            given.binaries = folder.resolve()
            return given
    parser.error(f"no directory holds all of {', '.join(needed)}; looked in {', '.join(map(str, tried))}; build them with 'cargo build --release'")


def plan(parser, given, chosen):
    """Each chosen step's name, settings, seconds and function."""
    for one in given.set:
        if "=" not in one:
            parser.error(f"--set {one}: expected STEP.NAME=VALUE, tune or judge")
    changed = dict(one.split("=", 1) for one in given.set)
    rows = []
    try:
        for name, seconds, step in steps.ALL:
            values = settings.resolve(name, step, given.full, given.judge, changed)
            if name in chosen:
                rows.append((name, values, settings.about(seconds, values), step))
    except settings.WrongSetting as wrong:
        parser.error(str(wrong))
    if changed:
        parser.error(f"--set {next(iter(changed))}: expected STEP.NAME=VALUE with a step of {', '.join(name for name, _, _ in steps.ALL)}")
    return rows


def machine(fake):
    """What the figures were measured on; nothing that names the host."""
    found = {"device": "simulated GPU" if fake else "unknown GPU", "driver": "simulated" if fake else "unknown"}
    found.update(cpus=os.cpu_count(), kernel=f"{platform.system()} {platform.release().split('-')[0]}", python=platform.python_version())
    if not fake and shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        try:
            out = subprocess.run(query, capture_output=True, text=True, timeout=30).stdout.strip()
        except subprocess.TimeoutExpired:
            out = ""
        fields = [field.strip() for field in out.splitlines()[0].split(",")] if out else []
        if len(fields) == 3:
            found.update(device=fields[0], driver=fields[1], memory=fields[2])
    return found


def main():
    given = arguments()
    if given.plan:
        print(report.plan(given.plan_rows), end="")
        return 0
    out = pathlib.Path(os.environ.get("OUT") or "gpu-proof-out")
    if given.draw:
        return draw(given.draw, out)
    # Told to end, it ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    proof = Harness(given.binaries, out, given.fake, given.budget, given.env)
    version = proof.run([proof.tool("sluice"), "--version"], timeout=10).out.strip()
    result = {
        "date": datetime.date.today().isoformat(),
        "sluice": version,
        "machine": machine(given.fake),
        "gates": proof.gates(),
        "programs": "judge" if given.judge else "tune",
        "env": given.env,
        "steps": {},
    }
    for name, values, about, step in given.plan_rows:
        proof.step, proof.settings = name, values
        begun = time.monotonic()
        print(f"{proof.elapsed():5.0f} s  {name}, about {about:.0f} s ...", flush=True)
        proof.log(f"== {name} {vars(values)}")
        try:
            if proof.left() < about * 0.6:
                raise StepFailed(f"not run: {proof.left():.0f} s left, about {about:.0f} s needed")
            step(proof)
        except StepFailed as failure:
            proof.check(f"{name}: ran to the end", False, str(failure), "no failure")
        except Exception as error:  # one broken step must not hide what the others found
            proof.show(traceback.format_exc())
            proof.check(f"{name}: ran to the end", False, f"{type(error).__name__}: {error}", "no failure")
        result["steps"][name] = {"seconds": time.monotonic() - begun, "about": about, "settings": vars(values)}
        result.update(seconds=proof.elapsed(), criteria=proof.criteria, data=proof.data)
        # After each step: what was found is there even if a later step takes the machine down.
        text = written(out, result)
    proof.close()
    print("\n" + text, end="", flush=True)
    return 1 if any(one["ok"] is False for one in proof.criteria) else 0


def draw(path, out):
    """Draws what an earlier run has found."""
    try:
        found = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))["data"]["latency"]
        drawn = picture.latency(found)
    except (OSError, json.JSONDecodeError, KeyError) as why:
        print(f"gpu-proof: --draw {path}: expected a gpu-proof.json of the step latency: {type(why).__name__}: {why}", file=sys.stderr)
        return 2
    if drawn is None:
        print(f"gpu-proof: --draw {path}: the step latency has found nothing to draw", file=sys.stderr)
        return 1
    out.mkdir(parents=True, exist_ok=True)
    (out / "latency.svg").write_text(drawn, encoding="utf-8")
    print(out / "latency.svg")
    return 0


def written(out, result):
    """Writes the result for machines and for readers; the latter."""
    (out / "gpu-proof.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    text = report.text(result)
    (out / "gpu-proof.txt").write_text(text, encoding="utf-8")
    return text


if __name__ == "__main__":
    sys.exit(main())
