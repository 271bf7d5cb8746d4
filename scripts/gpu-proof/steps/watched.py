"""Programs that are watched while they run: what they say, what the session's page says, what NVML says."""

import json
import pathlib
import queue
import signal
import subprocess
import sys
import threading
import time

from harness import StepFailed, kill_group
from steps import listener

PROGRAMS = pathlib.Path(__file__).parent.parent / "programs"
MIB = 1 << 20


def program(name, *arguments):
    """One of the programs beside this, as a command."""
    return [sys.executable, str(PROGRAMS / name), *(str(argument) for argument in arguments)]


def libraries(proof):
    """The same program by the driver's own calls and by PyTorch, where there is one."""
    return ["driver"] if proof.fake else ["driver", "torch"]


def mib(value):
    return f"{value / MIB:.0f} MiB"


class Watched(listener.Listener):
    """A program that tells how far it is, a JSON object a line, and waits for a line to go on."""

    def __init__(self, proof, command, env=None):
        self.lines = queue.Queue()
        super().__init__(proof, command, env, stdin=subprocess.PIPE)

    def heard(self, said):
        self.lines.put(said)

    def fell_silent(self):
        self.lines.put(None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            try:
                self.process.stdin.close()
                self.process.wait(5)
            except (subprocess.TimeoutExpired, BrokenPipeError):
                pass
        # What it has started ends with it, in whatever way it ended.
        kill_group(self.process)
        self.process.wait()
        for reader in self.readers:
            reader.join(5)
        self.proof.log(f"  status {self.process.returncode}; err: {''.join(self.errors).strip()[-2000:]}")

    def hear(self, timeout):
        """What it says next."""
        try:
            said = self.lines.get(timeout=max(min(timeout, self.proof.left()), 0.1))
        except queue.Empty:
            raise StepFailed(f"the program said nothing for {timeout:.0f} s") from None
        if said is None:
            self.readers[1].join(5)
            lines = [line for line in self.errors if line.strip()]
            raise StepFailed(f"the program ended: {lines[-1].strip()[:200] if lines else 'nothing printed'}")
        self.proof.log(f"  said {json.dumps(said)}")
        return said

    def go_on(self):
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise StepFailed("the program has ended") from None

    def device(self):
        """Its session's first device, as `sluice status` tells."""
        finished = self.proof.run([self.proof.tool("sluice"), "status", "--json"], timeout=10)
        for session in (finished.json() or {}).get("sessions", []):
            if session["session"].startswith(f"{self.process.pid}-") and session["devices"]:
                return session["devices"][0]
        raise StepFailed(f"sluice status does not list the session: {finished.why()}")

    def resize(self, limit):
        """Changes the session's memory limit."""
        command = [self.proof.tool("sluice"), "limit", str(self.process.pid), "--mem", limit]
        finished = self.proof.run(command, timeout=10)
        if not finished.ok:
            raise StepFailed(f"sluice limit: {finished.why()}")
        return finished.out.strip()


def of_process(device, pid):
    """A process's part of what `sluice status` tells of a device."""
    for process in device["processes"]:
        if pid in (process["pid"], process["host_pid"]):
            return process
    raise StepFailed(f"sluice status does not list process {pid}")


def nvml_now(proof):
    """What NVML says now, in bytes by process id."""
    found = proof.result(program("nvml_sampler.py", "--once"), timeout=15)["by_pid"]
    return {int(pid): used for pid, used in found.items()}


class Sampler:
    """Asks NVML every 10 ms, from outside, for as long as the block runs; then `found` says what it saw."""

    def __init__(self, proof):
        self.proof = proof
        self.found = None

    def __enter__(self):
        self.process = self.proof.start(program("nvml_sampler.py"))
        ready = self.process.stdout.readline()
        if not ready:
            raise StepFailed(f"NVML cannot be sampled: {self.process.communicate(timeout=5)[1].strip()[-200:]}")
        return self

    def __exit__(self, kind, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            out, err = self.process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            kill_group(self.process)
            out, err = self.process.communicate()
        self.proof.log(f"  sampled: {out.strip()[-500:]} {err.strip()[-500:]}")
        if kind is None:
            try:
                self.found = json.loads(out)
            except json.JSONDecodeError:
                raise StepFailed(f"NVML could not be sampled: {err.strip()[-200:]}") from None

    def highest(self, pid):
        """The highest figure of a process."""
        found = self.found["by_pid"].get(str(pid))
        if found is None:
            raise StepFailed(f"NVML does not list process {pid}, only {list(self.found['by_pid'])}")
        return found


def side_by_side(proof, commands, timeout):
    """Runs programs at once, each to its end; how each ended, in the same order."""
    found = [None] * len(commands)

    def one(number, command, env):
        try:
            found[number] = proof.run(command, timeout, env)
        except StepFailed as failure:
            proof.log(f"  not run: {failure}")

    threads = [threading.Thread(target=one, args=(number, *what)) for number, what in enumerate(commands)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def said_by(finished):
    """The object that a program ended with."""
    if finished is None:
        raise StepFailed("no time left")
    if not finished.ok or finished.json() is None:
        raise StepFailed(finished.why())
    return finished.json()


def eventually(seconds, look):
    """Asks until it is so; seconds that it took, `None` if it never was."""
    begun = time.monotonic()
    while True:
        if look():
            return time.monotonic() - begun
        if time.monotonic() - begun > seconds:
            return None
        time.sleep(0.02)
