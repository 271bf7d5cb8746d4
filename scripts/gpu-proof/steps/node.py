"""What the node's daemon says beside what the vendor's tool says: memory of the device and of each process, and the
share that each session gets beside other dense programs.

Two dense programs run in mount and process namespaces and in cgroups of their own, as containers have them, and a real
one holds memory beside them. That needs root, and cgroups that can be made: without it the programs run as they can, and
the result says so. Limits are changed from outside. Then a program that no session knows comes, and one whose kernel
writes where it may not.
"""

import hashlib
import json
import os
import pathlib
import shutil
import socket as sockets
import time

from harness import StepFailed
from steps import daemon, dense, real, steered, watched

KERNEL_US = 250
# Shares in percent of two dense programs, and the first one's after a change.
SHARES, CHANGED = [50, 30], 20
WINDOW, SETTLE = 10.0, 2.0
MIB = 1 << 20
POINTS = 2.0
ISOLATED = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
# How long the daemon may take to see a program that no session knows.
SEEN_WITHIN = 2.0
# What the driver calls a kernel's fault: the program's own, and no device is unhealthy by it.
ILLEGAL_ADDRESS, XID = 700, 31


def seconds(_):
    """About how long it takes."""
    return 8 + real.START + 2 * SETTLE + WINDOW + 20


def run(proof):
    found = proof.data["node"] = {}
    checked(proof, "sluice doctor", proof.run([proof.tool("sluice"), "doctor", *(["--fake-gpu"] if proof.fake else [])], timeout=60))
    iterations = dense.native(proof, KERNEL_US, 1.0)
    found["native"] = iterations["rate"]
    tenant = proof.tenant(*dense.again(KERNEL_US, steered.LONGEST, iterations["iterations"], f"--progress={steered.TELL_EVERY}", "--commands"))
    isolated = ISOLATED if os.geteuid() == 0 and shutil.which("unshare") else []
    found["isolated"] = bool(isolated)
    containers = {share: Container(share) for share in SHARES}
    found["cgroups"] = [str(folder) for one in containers.values() for folder in one.folders]
    try:
        beside(proof, found, tenant, isolated, containers)
    finally:
        for container in containers.values():
            container.remove()


def beside(proof, found, tenant, isolated, containers):
    with daemon.socket() as socket, daemon.Daemon(proof, socket):
        policy = ["--policy", "fixed"]
        commands = {
            f"{share} %": ([*containers[share].prefix(), *isolated, *proof.limited(["--compute", f"{share}%", "--name", f"dense-{share}", *policy], tenant, daemon=socket)], None)
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
            with proof.guard("containers", "two of them"):
                named = by_their_cgroups(proof, told, containers)
            with proof.guard("a limit from outside", "the new share"):
                change(proof, found, containers[SHARES[0]].name if named else told[f"dense-{SHARES[0]}"]["session"], socket, both[0])
            with proof.guard("an unknown process", "seen"):
                unknown(proof, found, socket)
            with proof.guard("a kernel that writes where it may not", "counted"):
                fault(proof, found, socket, both)


class Container:
    """A cgroup in each hierarchy that lets this program make one, by a name as Docker gives it."""

    def __init__(self, share):
        self.name = hashlib.sha256(f"sluice-proof-{os.getpid()}-{share}".encode()).hexdigest()
        self.folders = []
        for line in pathlib.Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            number, controllers, path = line.split(":", 2)
            base = pathlib.Path("/sys/fs/cgroup", *([] if number == "0" else [controllers.removeprefix("name=")]))
            # In a cgroup namespace the path may be above what is mounted.
            own = base / path.lstrip("/")
            folder = (own if own.is_dir() else base) / "docker" / self.name
            if not (base / "cgroup.procs").exists():
                continue
            try:
                folder.mkdir(parents=True)
            except OSError:
                continue
            self.folders.append(folder)

    def prefix(self):
        """Puts a program there."""
        if not self.folders:
            return []
        return ["sh", "-c", 'while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs" || exit 125; shift; done; shift; exec "$@"', "sh", *map(str, self.folders), "--"]

    def remove(self):
        for folder in self.folders:
            for one in (folder, folder.parent):
                try:
                    one.rmdir()
                except OSError:
                    # Somebody else's is in it, or what ended has not gone yet.
                    break


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


def by_their_cgroups(proof, told, containers):
    """Whether the daemon has the containers' names from the kernel."""
    if not all(container.folders for container in containers.values()):
        proof.check("containers by their cgroups", None, "SKIPPED: no cgroups can be made here", "named by the daemon")
        return False
    names = {share: (told[f"dense-{share}"].get("container") or {}).get("id") for share in SHARES}
    right = all(names[share] == containers[share].name for share in SHARES)
    text = "; ".join(f"{share} %: {name[:12] if name else 'none'}, made {containers[share].name[:12]}" for share, name in names.items())
    proof.check("containers by their cgroups", right, text, "named by the daemon")
    return right


def change(proof, found, session, socket, program):
    refused = proof.run([proof.tool("sluice"), "limit", session, "--compute", f"{CHANGED}%", "--policy", "fixed", "--daemon", str(socket)], timeout=10)
    if not refused.ok:
        raise StepFailed(f"sluice limit: {refused.why()}")
    time.sleep(SETTLE)
    begin = time.monotonic()
    time.sleep(3)
    measured = 100 * program.rate(begin, time.monotonic()) / found["native"]
    found["changed"] = measured
    judged = None if proof.fake else abs(measured - CHANGED) <= POINTS
    proof.check(f"its limit changed from outside, {SHARES[0]} to {CHANGED} %, named {session[:12]}", judged, f"{measured:.2f} % of alone", f"within {POINTS:g} points")


def total(figures, name, label=""):
    return sum(value for full, value in figures.items() if full.partition("{")[0] == name and label in full)


def unknown(proof, found, socket):
    """A program without a session: from its first kernel until the daemon tells of it, and of its end."""
    before = total(metrics(socket), "sluice_device_unknown_processes")
    told = lambda: total(metrics(socket), "sluice_device_unknown_processes") - before  # noqa: E731
    program = proof.tenant(*dense.again(KERNEL_US, steered.LONGEST, 1000, f"--progress={steered.TELL_EVERY}", "--commands"))
    with steered.started(proof, {"unknown": (program, None)}):
        begun, took = time.monotonic(), None
        while took is None and time.monotonic() - begun < 2 * SEEN_WITHIN:
            took = time.monotonic() - begun if told() >= 1 else None
            time.sleep(0.05)
    begun = time.monotonic()
    while told() > 0 and time.monotonic() - begun < 2 * SEEN_WITHIN:
        time.sleep(0.05)
    gone = told() == 0
    found["unknown"] = took
    text = "not seen" if took is None else f"seen {took:.2f} s after it ran, {'forgotten' if gone else 'NOT forgotten'} {time.monotonic() - begun:.2f} s after its end"
    proof.check("a process that no session knows", took is not None and took <= SEEN_WITHIN and gone, text, f"within {SEEN_WITHIN:g} s")


def fault(proof, found, socket, others):
    """A session whose kernel writes where it may not: its error, the driver's event, and the others."""
    if proof.fake:
        proof.check("a kernel that writes where it may not", None, "not run: no real GPU", "its own error")
        return
    before = total(metrics(socket), "sluice_device_xid_errors_total", f'xid="{XID}"')
    begin = time.monotonic()
    result = proof.result(proof.limited(["--compute", "10%", "--name", "fault"], watched.program("fault.py"), daemon=socket), timeout=30)
    time.sleep(2.5)
    end = time.monotonic()
    figures = metrics(socket)
    xids = total(figures, "sluice_device_xid_errors_total", f'xid="{XID}"') - before
    healthy = all(value == 1 for name, value in figures.items() if name.startswith("sluice_device_healthy"))
    rates = [100 * one.rate(end - 2, end) / found["native"] for one in others]
    found["fault"] = {"result": result, "xids": xids, "healthy": healthy, "rates": rates, "seconds": end - begin}
    going_on = all(rate > share / 2 for rate, share in zip(rates, [CHANGED, SHARES[1]]))
    text = f"the program got error {result['result']}, XID {XID} {xids:g} times, device {'healthy' if healthy else 'UNHEALTHY'}, the others at {' and '.join(f'{rate:.1f} %' for rate in rates)}"
    proof.check("a kernel that writes where it may not", result["result"] == ILLEGAL_ADDRESS and healthy and going_on, text, f"error {ILLEGAL_ADDRESS}, device healthy, others go on")
    # A machine may keep the driver's events from its containers.
    proof.check(f"XID {XID} in metrics", xids >= 1 or None, f"{xids:g}" if xids else "SKIPPED: the driver told of none", "at least 1")
