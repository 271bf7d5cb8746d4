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
        # Whether it says when it has come to a pause, and how often it has.
        self.acknowledges, self.pauses = False, 0
        super().__init__(proof, command, env, stdin=subprocess.PIPE)

    def heard(self, said):
        if "at" in said:
            self.lines.append((said["at"], said["kernels"]))
            # When steps ended and how many milliseconds they took, where the program tells it.
            self.took += said.get("took", [])
        elif "paused" in said:
            self.pauses += 1
        else:
            self.acknowledges |= said.pop("acknowledges", False)
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
            self.proof.show(f"  a program did not end when it was told: {self.name()}")
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

    def name(self):
        """Its command without folders."""
        return " ".join(pathlib.Path(str(part)).name for part in self.process.args)


@contextlib.contextmanager
def running(proof, commands, wait=90):
    """Starts programs, each a command and its environment, and waits until all of them run; then they are paused.

    They end with the block, whatever happens in it.
    """
    programs = []
    try:
        for command, env in commands:
            programs.append(Steered(proof, command, env))
        failed = pause_when_ready(programs, min(wait, proof.left()))
        if failed:
            raise NotStarted("; ".join(failed.values()))
        yield programs
    finally:
        end_all(programs)


@contextlib.contextmanager
def started(proof, named, wait=90):
    """As `running`, all at once, by name. What does not run in time is ended and left out, and why is told."""
    programs = {}
    try:
        for name, (command, env) in named.items():
            programs[name] = Steered(proof, command, env)
        failed = pause_when_ready(list(programs.values()), min(wait, proof.left()))
        out = {name: program for name, program in programs.items() if program in failed}
        for name, program in out.items():
            proof.check(f"{name}: it starts", False, failed[program], "it runs")
        end_all(out.values(), 1)
        yield {name: program for name, program in programs.items() if name not in out}
    finally:
        end_all(programs.values())


def end_all(programs, seconds=15):
    """All are told before the first is waited for. Those that have been ended are passed over."""
    programs = [program for program in programs if program.process.returncode is None]
    for program in programs:
        with contextlib.suppress(StepFailed):
            program.say("end")
    give_up = time.monotonic() + seconds
    for program in programs:
        program.end(give_up - time.monotonic())


def pause_when_ready(programs, seconds):
    """Waits until all run, and pauses each as soon as it does: the others start faster then. Why some do not run, by
    program."""
    begun = time.monotonic()
    starting, failed = list(programs), {}
    while starting and time.monotonic() - begun <= seconds:
        for program in list(starting):
            try:
                if program.is_ready():
                    program.say("pause")
                    starting.remove(program)
            except StepFailed as failure:
                failed[program] = str(failure)
                starting.remove(program)
        time.sleep(0.02)
    failed.update({program: f"{program.name()} did not run within {seconds:.0f} s" for program in starting})
    return failed


# So long a program that is told to pause may go on with what it has launched.
PAUSE_SECONDS = 8


def pause(programs):
    """Tells them to pause, and waits until those that say so have: what one still has launched would slow the next."""
    before = {program: program.pauses for program in programs}
    for program in programs:
        program.say("pause")
    give_up = time.monotonic() + PAUSE_SECONDS
    for program in programs:
        while program.acknowledges and program.pauses == before[program]:
            if program.process.poll() is not None or time.monotonic() > give_up:
                raise StepFailed(f"told to pause, it did not within {PAUSE_SECONDS} s: {program.name()}")
            time.sleep(0.005)


def run_for(proof, programs, settle, seconds):
    """Lets these run at once, the others being paused; the moments between which they had settled."""
    if proof.left() < settle + seconds:
        raise StepFailed("no time left")
    for program in reversed(programs):
        program.say("go")
    begin = time.monotonic() + settle
    time.sleep(settle + seconds)
    end = time.monotonic()
    # Who does not pause disturbs what comes next; what was measured is right.
    with proof.guard("programs that are told to pause", f"a pause within {PAUSE_SECONDS} s"):
        pause(programs)
    return begin, end


def rates(proof, programs, settle, seconds):
    """Steps a second of each of these, which run at once."""
    begin, end = run_for(proof, programs, settle, seconds)
    return [program.rate(begin, end) for program in programs]


def slow_rates(proof, programs, settle, seconds):
    """As `rates`, for programs that may not get on at all."""
    begin, end = run_for(proof, programs, settle, seconds)
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
