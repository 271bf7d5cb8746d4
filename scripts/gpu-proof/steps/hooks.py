"""Every driver function that Sluice names, and that this driver exports, is patched. And nvidia-smi, which gets its list of
processes from private functions, lists the session's alone."""

import pathlib
import shutil
import time

from harness import StepFailed, kill_group

WAYS = {
    "query": "--query-compute-apps=pid --format=csv,noheader",
    "table": "",
    "XML": "-q -x",
    "pmon": "pmon -c 1",
}
# Of the simulated GPU's own nvidia-smi.
WAYS_FAKE = ("query", "table")
# The tenant's id, then what each way prints. `tenant` has to be on the device first.
SCRIPT = """
tenant=$1; shift
"$tenant" dense --kernel-us 500 --seconds 60 >/dev/null & own=$!
trap 'kill $own' EXIT
sleep 4
echo "== own"; echo "$own"
for way; do echo "== $way"; nvidia-smi $way || echo "status $?"; done
"""


def run(proof):
    command = [proof.tool("sluice"), "hooks"] + (["--fake-gpu"] if proof.fake else [])
    finished = proof.run(command, timeout=60)
    lines = [line for line in finished.out.splitlines() if line.strip()]
    total = lines[-1].strip() if lines else finished.why()
    proof.data["hooks"] = {"status": finished.status, "total": total, "table": lines[:-1]}
    proof.check("every exported function that Sluice names is patched", finished.ok, total, "exit status 0")
    wanted = "the session's process and no other"
    if not proof.fake and shutil.which("nvidia-smi") is None:
        proof.check("nvidia-smi lists the session's processes", None, "SKIPPED: nvidia-smi is not found", wanted)
        return
    with proof.guard("nvidia-smi lists the session's processes", wanted):
        lists(proof, wanted)


def lists(proof, wanted):
    """One program outside and one inside, and nvidia-smi beside each."""
    ways = {name: told for name, told in WAYS.items() if not proof.fake or name in WAYS_FAKE}
    script = ["sh", "-c", SCRIPT, "sh", proof.tool("tenant"), *ways.values()]
    outside = proof.start(proof.tenant("dense", "--kernel-us", 500, "--seconds", 60))
    try:
        # It is listed before the session begins.
        time.sleep(4)
        inside = proof.run(proof.limited(["--mem", "4GiB"], script), timeout=60)
        native = proof.run(script, timeout=60, env=with_smi(proof))
        if outside.poll() is not None:
            raise StepFailed("the program outside ended too early")
    finally:
        kill_group(outside)
        outside.communicate()
    proof.data["hooks"]["lists"] = {"outside": outside.pid, "inside": inside.out, "native": native.out}
    for name, told in ways.items():
        seen = {}
        for run, finished in (("inside", inside), ("native", native)):
            parts = sections(finished.out)
            own = parts.get("own", "").strip()
            words = parts.get(told, "").replace("<pid>", " ").replace("</pid>", " ").split()
            if not own.isdigit() or not words:
                raise StepFailed(f"{run}: {finished.why()}")
            seen[run] = {"own": own in words, "other": str(outside.pid) in words}
        ok = seen["inside"] == {"own": True, "other": False}
        # Natively both are listed, or the comparison says nothing.
        if seen["native"] != {"own": True, "other": True}:
            ok = None
        proof.check(f"nvidia-smi ({name}) lists the session's processes", ok, str(seen), wanted)


def with_smi(proof):
    """The simulated GPU's nvidia-smi has another name among the binaries."""
    if not proof.fake:
        return None
    tools = pathlib.Path(proof.fake_driver) / "bin"
    tools.mkdir(exist_ok=True)
    if not (tools / "nvidia-smi").exists():
        (tools / "nvidia-smi").symlink_to(pathlib.Path(proof.tool("fake-nvidia-smi")).resolve())
    return {"PATH": f"{tools}:{proof.environment['PATH']}"}


def sections(text):
    """What stands under each line that begins with two equals signs."""
    parts, name = {}, None
    for line in text.splitlines():
        if line.startswith("== "):
            name = line[3:]
        elif line == "==":
            name = ""
        elif name is not None:
            parts[name] = parts.get(name, "") + line + "\n"
    return parts
