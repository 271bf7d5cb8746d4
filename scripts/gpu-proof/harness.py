"""Runs programs with time limits and keeps what was found."""

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading
import time

NEEDED = ["sluice", "hypervisor", "tenant", "libcuda_limiter.so"]
NEEDED_FAKE = ["libfake_cuda.so", "libfake_nvml.so", "fake-nvidia-smi"]


# The variable by which everything is known that a program has started, whatever groups and sessions it made.
MARK = "GPU_PROOF_PROGRAM"


class StepFailed(Exception):
    """A step cannot go on; the text says why."""


@dataclasses.dataclass
class Finished:
    """A program that has ended, or was ended when its time was over."""

    command: list
    status: int
    out: str
    err: str
    seconds: float
    timed_out: bool

    @property
    def ok(self):
        return self.status == 0 and not self.timed_out

    def why(self):
        """One line on what went wrong."""
        if self.timed_out:
            return f"not done after {self.seconds:.0f} s"
        lines = [line for line in (self.err or self.out).splitlines() if line.strip()]
        last = lines[-1] if lines else "nothing printed"
        return f"exit status {self.status}: {last[:200]}"

    def json(self):
        """The JSON object in the last line of stdout that holds one."""
        for line in reversed(self.out.splitlines()):
            if line.startswith("{"):
                try:
                    return json.loads(line)
                except json.JSONDecodeError:
                    continue
        return None


class Harness:
    """The binaries, the time that is left, and the criteria that were checked."""

    def __init__(self, binaries, out, fake, budget, given=None):
        self.binaries = binaries
        self.out = out
        self.fake = fake
        self.started = time.monotonic()
        self.deadline = self.started + budget
        self.marks = (f"{MARK}={os.getpid()}-{number}" for number in itertools.count())
        self.marking = threading.Lock()
        self.criteria = []
        self.data = {}
        self.step = "setup"
        self.settings = None
        out.mkdir(parents=True, exist_ok=True)
        self.log_file = open(out / "gpu-proof.log", "w", encoding="utf-8")
        self.environment = {**self._environment(), **(given or {})}

    def gates(self):
        """Where the library under test has its gates."""
        return self.environment.get("SLUICE_GATES", "stream")

    def _environment(self):
        environment = dict(os.environ)
        # Settings of the caller's shell must not act on what is measured.
        for name in list(environment):
            if name.startswith(("SLUICE_", "TENSOR_FUSION_", "CUDA_MEM_", "CUDA_CORE_")):
                if not name.startswith("SLUICE_FAKE_"):
                    del environment[name]
        if self.fake:
            driver = self.fake_driver = pathlib.Path(tempfile.mkdtemp(prefix="sluice-fake-driver-"))
            for name, built in [("libcuda.so.1", "libfake_cuda.so"), ("libnvidia-ml.so.1", "libfake_nvml.so")]:
                (driver / name).symlink_to((self.binaries / built).resolve())
            before = environment.get("LD_LIBRARY_PATH")
            environment["LD_LIBRARY_PATH"] = str(driver) + (f":{before}" if before else "")
            environment["SLUICE_FAKE_NODE"] = f"/dev/shm/sluice-proof-{os.getpid()}"
        return environment

    def close(self):
        if self.fake:
            pathlib.Path(self.environment["SLUICE_FAKE_NODE"]).unlink(missing_ok=True)
            shutil.rmtree(self.fake_driver, ignore_errors=True)
        self.log_file.close()

    # --- programs

    def tool(self, name):
        return str(self.binaries / name)

    def limited(self, options, command, daemon=None):
        """`command` under `sluice run` with `options`."""
        line = [self.tool("sluice"), "run", *options, "--daemon", str(daemon or "none")]
        if self.fake:
            line.append("--fake-gpu")
        return [*line, "--", *command]

    def tenant(self, *arguments):
        return [self.tool("tenant"), *(str(argument) for argument in arguments)]

    def start(self, command, env=None, stdin=subprocess.DEVNULL):
        """Starts a program in a process group of its own."""
        self.log(f"$ {' '.join(map(str, command))}")
        with self.marking:
            mark = next(self.marks)
        process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**self.environment, **(env or {}), **dict([mark.split("=")])},
            start_new_session=True,
        )
        process.mark = mark
        return process

    def run(self, command, timeout, env=None):
        """Runs a program to its end, but not past `timeout` seconds or the whole run's end."""
        timeout = min(timeout, self.left())
        if timeout < 1:
            raise StepFailed("no time left")
        begun = time.monotonic()
        process = self.start(command, env)
        try:
            out, err = process.communicate(timeout=timeout)
            timed_out = False
        except subprocess.TimeoutExpired:
            kill_group(process)
            out, err = process.communicate()
            timed_out = True
        except BaseException:
            # This run is being ended.
            kill_group(process)
            raise
        seconds = time.monotonic() - begun
        finished = Finished(command, process.returncode, out, err, seconds, timed_out)
        self.log(f"  status {finished.status} after {seconds:.2f} s" + (" TIMED OUT" if timed_out else ""))
        for name, text in [("out", out), ("err", err)]:
            if text.strip():
                self.log(f"  {name}: " + text.strip()[-3000:].replace("\n", "\n       "))
        return finished

    def result(self, command, timeout, env=None):
        """Runs a program that ends with a JSON line; that object."""
        finished = self.run(command, timeout, env)
        result = finished.json()
        if not finished.ok or result is None:
            name = pathlib.Path(command[0]).name
            raise StepFailed(f"{name}: {finished.why()}")
        return result

    # --- time

    def left(self):
        return self.deadline - time.monotonic()

    def elapsed(self):
        return time.monotonic() - self.started

    @contextlib.contextmanager
    def within(self, seconds):
        """What runs within has so long at most: then there is no time left."""
        before, self.deadline = self.deadline, min(self.deadline, time.monotonic() + seconds)
        try:
            yield
        finally:
            self.deadline = before

    # --- findings

    def check(self, what, ok, measured, wanted):
        """Takes note of a criterion; `ok` is None for what is only reported."""
        self.criteria.append(
            {"step": self.step, "what": what, "ok": ok, "measured": measured, "wanted": wanted}
        )
        self.log(f"  {verdict(ok)} {what}: {measured} (wanted: {wanted})")

    @contextlib.contextmanager
    def guard(self, what, wanted):
        """What fails within is a failed criterion of its own; what follows it still runs."""
        try:
            yield
        except StepFailed as failure:
            self.check(what, False, str(failure), wanted)

    def show(self, text):
        """What whoever runs the proof should see at once, such as why a program failed."""
        print(text, flush=True)
        self.log(text)

    def log(self, text):
        self.log_file.write(f"[{self.elapsed():7.2f}] {text}\n")
        self.log_file.flush()


def verdict(ok):
    return {True: "PASS", False: "FAIL", None: "info"}[ok]


def kill_group(process):
    """Ends a program that this run started, with everything that it started: launchers such as torchrun put what
    they start into sessions of their own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    # Again, for what was started meanwhile.
    for _ in range(3):
        found = marked(process.mark)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return


def marked(mark):
    """The living processes that have this in their environment."""
    wanted, found = mark.encode(), []
    for folder in pathlib.Path("/proc").iterdir():
        if folder.name.isdigit():
            # What has ended, or is another user's, is none of ours. Of one that has ended nothing can be read.
            with contextlib.suppress(OSError):
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found
