"""Memory that a process of the session opens is charged to its exporter only."""

import time

from steps import watched
from steps.watched import MIB, mib

WAYS = [("IPC handle", "ipc"), ("shareable handle", "fd")]
# What a process takes apart from its context and its data.
SLACK = 64 * MIB


def run(proof):
    rows = proof.data["shared_memory"] = []
    for name, way in WAYS:
        with proof.guard(name, "charged once"):
            share(proof, rows, name, way)


def share(proof, rows, name, way):
    command = proof.limited(["--mem", "4GiB"], watched.program("share_memory.py", "--by", way))
    with watched.Watched(proof, command) as program:
        said = program.hear(40)
        # The reconciler has looked.
        time.sleep(1.5)
        device, nvml = program.device(), watched.nvml_now(proof)
        program.go_on()
        ended = program.hear(25)["ended"]
    exporter, importer = (watched.of_process(device, said[who])["by_kind"] for who in ("exporter", "importer"))
    by_nvml = [nvml.get(said[who]) for who in ("exporter", "importer")]
    rows.append({"way": way, "exporter": exporter, "importer": importer, "nvml": by_nvml, "used": device["memory"]["used"], **said})
    size = said["bytes"]
    proof.check(f"{name}: both see the same memory", said["right"] and ended == 0, f"{said['right']}, exit status {ended}", "True, 0")
    beyond = sum(bytes_ for kind, bytes_ in importer.items() if kind != "context")
    proof.check(f"{name}: the importer is charged nothing", beyond <= SLACK, kinds(importer), f"its context and at most {mib(SLACK)}")
    charged = exporter["data"] + importer["data"]
    driver = exporter["driver"] + importer["driver"]
    once = size <= charged < size + SLACK and driver <= SLACK
    text = f"exporter {kinds(exporter)}; in all {mib(device['memory']['used'])}"
    proof.check(f"{name}: the memory is charged once", once, text, f"{mib(size)} of data, at most {mib(SLACK)} by the driver")
    shown = [mib(value) if value is not None else "not listed" for value in by_nvml]
    proof.check(f"{name}: NVML's figures", None, f"exporter {shown[0]}, importer {shown[1]}", f"reported; {mib(size)} are shared")


def kinds(by_kind):
    return ", ".join(f"{kind} {mib(size)}" for kind, size in by_kind.items() if size) or "nothing"
