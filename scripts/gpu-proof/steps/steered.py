"""Programs that run, pause and end as they are told, so that one process is measured alone and beside others.

A process of a launch-bound program is 5 to 15 % faster or slower than the next one of the same program; alone
and together are therefore compared within the same processes.
"""

import contextlib
import json
import pathlib
import subprocess
import sys
import time

from harness import StepFailed, kill_group
from steps import dense, listener

LOAD = str(pathlib.Path(__file__).parent.parent / "programs" / "torch_load.py")
# A program that nobody ends does so by itself.
LONGEST = 600
TELL_EVERY = 0.1
# What stands for the PyTorch programs on the simulated GPU: kernels, and the host's time between them.
STAND_INS = {
    "train": ["--kernel-us", 600, "--pause-us", 400],
    "decode": ["--kernel-us", 250, "--pause-us", 750],
    "graph": ["--kernel-us", 60, "--pause-us", 520, "--pattern", "graph"],
}


class NotStarted(StepFailed):
    """Programs that should run at once do not."""


class Steered(listener.Listener):
    """A program that obeys `pause`, `go` and `end`, and tells its progress with the time on the machine's clock."""

    def __init__(self, proof, command, env=None):
        self.lines, self.result, self.windows, self.took, self.told_to_die = [], None, None, [], False
        super().__init__(proof, command, env, stdin=subprocess.PIPE)

    def heard(self, said):
        if "at" in said:
            self.lines.append((said["at"], said["kernels"]))
            # When steps ended and how many milliseconds they took, where the program tells it.
            self.took += said.get("took", [])
        else:
            self.windows = said.pop("windows", None)
            self.result = said

    def say(self, word):
        try:
            self.process.stdin.write(f"{word}\n")
            self.process.stdin.flush()
        except (BrokenPipeError, ValueError):
            raise StepFailed(self._why()) from None

    def _why(self):
        self.readers[1].join(2)
        lines = [line.strip() for line in self.errors if line.strip()]
        return f"a program ended: {lines[-1][:200] if lines else 'nothing printed'}"

    def is_ready(self):
        """Whether it runs; it has warmed up when it first tells its progress."""
        if self.process.poll() is not None:
            raise StepFailed(self._why())
        return len(self.lines) >= 2

    def rate(self, begin, end):
        """Steps a second between two moments."""
        within = [line for line in list(self.lines) if begin <= line[0] <= end]
        if len(within) < 3:
            raise StepFailed(f"a program told its progress {len(within)} times in {end - begin:.1f} s")
        (t0, k0), (t1, k1) = within[0], within[-1]
        return (k1 - k0) / (t1 - t0)

    def progress(self, begin, end):
        """As `rate`, for a program that may not get on at all: then it is 0."""
        within = [line for line in list(self.lines) if begin <= line[0] <= end]
        if len(within) < 2:
            return 0.0
        (t0, k0), (t1, k1) = within[0], within[-1]
        return (k1 - k0) / (t1 - t0)

    def end(self, timeout=15):
        """Tells it to end; what it said at last. It is killed where it does not."""
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self.process.wait(max(timeout, 0.1))
        except subprocess.TimeoutExpired:
            self.proof.show("  a program did not end when it was told")
            self.told_to_die = True
        kill_group(self.process)
        status = self.process.wait()
        for reader in self.readers:
            reader.join(5)
        text = "".join(self.errors).strip()
        if status != 0 and not self.told_to_die:
            self.proof.show(f"  status {status}: {' '.join(map(str, self.process.args))}\n{text[-2500:]}")
        self.proof.log(f"  status {status}, {len(self.lines)} progress lines; {json.dumps(self.result)}; err: {text[-1500:]}")
        return self.result


@contextlib.contextmanager
def running(proof, commands, wait=90):
    """Starts programs, each a command and its environment, and waits until all of them run; then they are paused.

    They end with the block, whatever happens in it.
    """
    programs = []
    try:
        for command, env in commands:
            programs.append(Steered(proof, command, env))
        pause_when_ready(programs, min(wait, proof.left()))
        yield programs
    finally:
        # All are told before the first is waited for.
        for program in programs:
            with contextlib.suppress(StepFailed):
                program.say("end")
        for program in programs:
            program.end()


def pause_when_ready(programs, seconds):
    """Waits until all run, and pauses each as soon as it does: the others start faster then."""
    begun = time.monotonic()
    starting = list(programs)
    while starting:
        for program in starting:
            try:
                if program.is_ready():
                    program.say("pause")
                    starting.remove(program)
                    break
            except StepFailed as failure:
                raise NotStarted(str(failure)) from None
        else:
            if time.monotonic() - begun > seconds:
                raise NotStarted(f"{len(starting)} of {len(programs)} programs did not run within {seconds:.0f} s")
            time.sleep(0.02)


def rates(proof, programs, settle, seconds):
    """Lets these run at once, the others being paused; steps a second of each, once they have settled."""
    if proof.left() < settle + seconds:
        raise StepFailed("no time left")
    for program in programs:
        program.say("go")
    begin = time.monotonic() + settle
    time.sleep(settle + seconds)
    end = time.monotonic()
    for program in programs:
        program.say("pause")
    return [program.rate(begin, end) for program in programs]


def slow_rates(proof, programs, settle, seconds):
    """As `rates`, for programs that may not get on at all."""
    if proof.left() < settle + seconds:
        raise StepFailed("no time left")
    for program in programs:
        program.say("go")
    begin = time.monotonic() + settle
    time.sleep(settle + seconds)
    end = time.monotonic()
    for program in programs:
        program.say("pause")
    return [program.progress(begin, end) for program in programs]


class Loads:
    """The commands by name: `train`, `decode`, `graph`, and `dense N` for kernels of N microseconds, which are
    calibrated once."""

    def __init__(self, proof):
        self.proof = proof
        self.iterations = {}

    def command(self, name, *options):
        """`options`: more of them, for dense programs."""
        if not name.startswith("dense"):
            if not self.proof.fake:
                return [sys.executable, LOAD, name, str(LONGEST), "--commands"]
            return self.tenant(STAND_INS[name])
        kernel_us = float(name.removeprefix("dense"))
        if kernel_us not in self.iterations:
            self.iterations[kernel_us] = dense.native(self.proof, kernel_us, 0.3)["iterations"]
        return self.tenant(["--kernel-us", kernel_us, "--iterations", self.iterations[kernel_us], *options])

    def tenant(self, options):
        return self.proof.tenant("dense", *options, "--seconds", LONGEST, f"--progress={TELL_EVERY}", "--commands")


def limit(proof, program, *options):
    """Changes the limits of a program's session; what `sluice limit` said against it, or `None`."""
    finished = proof.run([proof.tool("sluice"), "limit", str(program.process.pid), *options], timeout=10)
    return None if finished.ok else finished.why()
