"""What the node's daemon says beside what the vendor's tool says: memory of the device and of each process, and the
share that each session gets beside other dense programs.

Two dense programs run in mount and process namespaces of their own, as containers have them, and a real one holds
memory beside them. The namespaces need root: without it the programs run without them, and the result says so. Limits
are changed from outside.
"""

import json
import os
import shutil
import socket as sockets
import time

from harness import StepFailed
from steps import daemon, dense, real, steered

KERNEL_US = 250
# Shares in percent of two dense programs, and the first one's after a change.
SHARES, CHANGED = [50, 30], 20
WINDOW, SETTLE = 10.0, 2.0
MIB = 1 << 20
POINTS = 2.0
ISOLATED = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]


def seconds(_):
    """About how long it takes."""
    return 8 + real.START + 2 * SETTLE + WINDOW + 6


def run(proof):
    found = proof.data["node"] = {}
    checked(proof, "sluice doctor", proof.run([proof.tool("sluice"), "doctor", *(["--fake-gpu"] if proof.fake else [])], timeout=60))
    iterations = dense.native(proof, KERNEL_US, 1.0)
    found["native"] = iterations["rate"]
    tenant = proof.tenant(*dense.again(KERNEL_US, steered.LONGEST, iterations["iterations"], f"--progress={steered.TELL_EVERY}", "--commands"))
    isolated = ISOLATED if os.geteuid() == 0 and shutil.which("unshare") else []
    found["isolated"] = bool(isolated)
    with daemon.socket() as socket, daemon.Daemon(proof, socket):
        policy = ["--policy", "fixed"]
        commands = {
            f"{share} %": ([*isolated, *proof.limited(["--compute", f"{share}%", "--name", f"dense-{share}", *policy], tenant, daemon=socket)], None)
            for share in SHARES
        }
        holder = proof.limited(["--mem", "12GiB", "--name", "holder"], real.command(proof, "decode"), daemon=socket)
        with steered.started(proof, {**commands, "holder": (holder, None)}) as programs:
            if len(programs) < len(commands) + 1:
                raise StepFailed("not all of its programs run")
            both = [programs[name] for name in commands]
            for program in both:
                program.say("go")
            time.sleep(SETTLE + WINDOW)
            end = time.monotonic()
            told = status(proof, socket)
            with proof.guard("shares", "what was delivered"):
                shares(proof, found, told, [one.rate(end - WINDOW, end) for one in both])
            with proof.guard("memory", "the vendor's figures"):
                memory(proof, found, told, socket)
            with proof.guard("a limit from outside", "the new share"):
                change(proof, found, told, socket, both[0])


def checked(proof, name, finished):
    text = finished.why() if not finished.ok else "status 0"
    if not finished.ok:
        proof.show(f"== {name}\n{finished.out[-2500:]}\n{finished.err[-1500:]}")
    proof.check(name, finished.ok, text, "status 0")


def status(proof, socket):
    finished = proof.run([proof.tool("sluice"), "status", "--json", "--daemon", str(socket)], timeout=10)
    if not finished.ok:
        raise StepFailed(f"sluice status: {finished.why()}")
    told = json.loads(finished.out)
    return {session["name"]: session for session in told["sessions"]}


def device_of(session):
    """The session's device that has processes."""
    return next((one for one in session["devices"] if one["processes"]), session["devices"][0])


def shares(proof, found, told, rates):
    for share, rate in zip(SHARES, rates):
        compute = device_of(told[f"dense-{share}"])["compute"]
        delivered, measured = compute["recent_ppm"] / 1e4, 100 * rate / found["native"]
        found[f"share {share}"] = {"delivered": delivered, "measured": measured}
        text = f"daemon says {delivered:.2f} %, the program's own rate {measured:.2f} % of alone" + ("" if found["isolated"] else "; SKIPPED: no namespaces of their own")
        judged = None if proof.fake else abs(delivered - share) <= POINTS and abs(measured - share) <= POINTS
        proof.check(f"a session with {share} % beside dense programs", judged, text, f"within {POINTS:g} points")


def memory(proof, found, told, socket):
    if proof.fake:
        proof.check("memory beside the vendor's tool", None, "not run: no real GPU", "equal to the MiB")
        return
    seen = proof.run(["nvidia-smi", "--query-gpu=uuid,memory.used", "--format=csv,noheader,nounits"], timeout=10)
    apps = proof.run(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"], timeout=10)
    if not seen.ok or not apps.ok:
        raise StepFailed(f"nvidia-smi: {seen.why()}; {apps.why()}")
    # The daemon looks at its devices every second or two.
    time.sleep(2.5)
    figures = metrics(socket)
    for line in seen.out.strip().splitlines():
        uuid, used = (part.strip() for part in line.split(","))
        daemons = next((value for name, value in figures.items() if name.startswith("sluice_device_memory_used_bytes") and uuid in name), None)
        text = f"daemon {daemons / MIB:.1f} MiB, nvidia-smi {used} MiB" if daemons is not None else "the daemon tells nothing"
        found["device memory"] = text
        proof.check("a device's memory in metrics", daemons is not None and abs(daemons / MIB - float(used)) <= 1, text, "equal to the MiB")
    vendors = [tuple(int(part) for part in line.split(",")) for line in apps.out.strip().splitlines() if line.strip()]
    processes = {process["host_pid"]: process for session in told.values() for process in device_of(session)["processes"]}
    # Headroom is kept free: it is reserved, and nobody has it.
    limited = [taken(process) for name, session in told.items() if name == "holder" for process in device_of(session)["processes"]]
    all_of_them = {pid: taken(process) for pid, process in processes.items()}
    found["processes"] = {"daemon": all_of_them, "vendor": vendors}
    # Where the driver cannot name processes of this namespace, they are known by their order.
    by_pid = dict(vendors)
    pairs = [(own, by_pid[pid]) for pid, own in all_of_them.items() if pid in by_pid] or list(zip(sorted(all_of_them.values()), sorted(used for _, used in vendors)))
    text = "; ".join(f"{own:.1f} and {theirs}" for own, theirs in pairs) or "no processes"
    holder = [pair for pair in pairs if any(abs(pair[0] - own) < 0.01 for own in limited)]
    proof.check("memory of processes: sluice and nvidia-smi, MiB", None, text, "reported")
    ok = bool(holder) and all(abs(own - theirs) <= 1 for own, theirs in holder)
    proof.check("a process with a memory limit in status", ok, "; ".join(f"{own:.1f} and {theirs} MiB" for own, theirs in holder) or "not found", "equal to the MiB")


def taken(process):
    """MiB that a process has."""
    return (process["bytes"] - process["by_kind"]["headroom"]) / MIB


def metrics(socket):
    """Name with labels, and value."""
    with sockets.socket(sockets.AF_UNIX) as connection:
        connection.connect(str(socket))
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: sluice\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    lines = [line for line in answer.decode().splitlines() if line.startswith("sluice_")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def change(proof, found, told, socket, program):
    session = told[f"dense-{SHARES[0]}"]["session"]
    refused = proof.run([proof.tool("sluice"), "limit", session, "--compute", f"{CHANGED}%", "--policy", "fixed"], timeout=10)
    if not refused.ok:
        raise StepFailed(f"sluice limit: {refused.why()}")
    time.sleep(SETTLE)
    begin = time.monotonic()
    time.sleep(3)
    measured = 100 * program.rate(begin, time.monotonic()) / found["native"]
    found["changed"] = measured
    judged = None if proof.fake else abs(measured - CHANGED) <= POINTS
    proof.check(f"its limit changed from outside, {SHARES[0]} to {CHANGED} %", judged, f"{measured:.2f} % of alone", f"within {POINTS:g} points")
