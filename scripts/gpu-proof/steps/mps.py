"""The vendor's multi-process service, for as long as a block runs. No setting of the card is changed."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

from harness import StepFailed

CONTROL = "nvidia-cuda-mps-control"
# The server starts with the first client, and slowly.
START_SECONDS = 20
QUIT_SECONDS = 10


class Unavailable(Exception):
    """It cannot be had on this machine; the text says why."""


class Mps:
    """The control daemon in folders of its own, and its server, which a first client has brought up."""

    def __init__(self, proof):
        self.proof = proof
        # A short path: it holds sockets.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="mps-"))
        self.env = {"CUDA_MPS_PIPE_DIRECTORY": str(self.folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(self.folder / "log")}
        (self.folder / "pipe").mkdir()
        (self.folder / "log").mkdir()

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self):
        if shutil.which(CONTROL) is None:
            raise Unavailable(f"{CONTROL} is missing")
        give_up = time.monotonic() + min(START_SECONDS, self.proof.left())
        # Its output goes to a file: a daemon that keeps a pipe open would be waited for.
        with open(self.folder / "control.out", "w") as out:
            try:
                status = subprocess.run([CONTROL, "-d"], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self._environment(), timeout=10, check=False).returncode
            except subprocess.TimeoutExpired:
                raise Unavailable(f"{CONTROL} -d did not return; {self.last_lines()}") from None
        if status != 0:
            raise Unavailable(f"{CONTROL} -d: exit status {status}; {self.last_lines()}")
        client = self.proof.tenant("dense", "--kernel-us", 130, "--seconds", 0.3)
        ran = None
        while time.monotonic() < give_up:
            # While the server is not ready a client may be refused, or have to wait.
            finished = self.proof.run(client, timeout=max(give_up - time.monotonic(), 1), env=self.env)
            ran = (finished.json() or {}).get("kernels") if finished.ok else None
            servers = self.say("get_server_list").split()
            if ran and servers:
                self.proof.log(f"  MPS server {servers}, a client ran {ran} kernels")
                return
            time.sleep(0.5)
        what = "no server answers" if ran else "no client ran"
        raise Unavailable(f"{what} within {START_SECONDS} s; {self.last_lines()}")

    def clients(self):
        """How many processes use the server now."""
        servers = self.say("get_server_list").split()
        return sum(len(self.say(f"get_client_list {server}").split()) for server in servers)

    def say(self, line):
        """The control daemon's answer; nothing where it gives none."""
        try:
            answer = subprocess.run([CONTROL], input=f"{line}\n", text=True, capture_output=True, env=self._environment(), timeout=QUIT_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return ""
        self.proof.log(f"  MPS {line}: {answer.stdout.strip()} {answer.stderr.strip()}")
        return answer.stdout if answer.returncode == 0 else ""

    def last_lines(self):
        """The end of what it has logged, on one line."""
        texts = []
        for path in [self.folder / "control.out", self.folder / "log" / "control.log", self.folder / "log" / "server.log"]:
            with contextlib.suppress(OSError):
                lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
                texts += [f"{path.name}: {line}" for line in lines[-3:]]
        return " | ".join(texts) or "nothing logged"

    def _environment(self):
        """The control daemon's and its server's, which have to know all devices: a server numbers those that it
        knows anew, and refuses clients whose CUDA_VISIBLE_DEVICES names another number."""
        environment = {**self.proof.environment, **self.env}
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        return environment

    def __exit__(self, *_):
        if shutil.which(CONTROL) is not None:
            pid = self._pid()
            self.say("quit")
            if pid is not None:
                self._end(pid)
        self.proof.log(f"  MPS: {self.last_lines()}")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _pid(self):
        """The control daemon's own word on its process, while it runs."""
        with contextlib.suppress(OSError, ValueError):
            return int((self.folder / "pipe" / f"{CONTROL}.pid").read_text())
        return None

    def _end(self, pid):
        """Waits for the daemon to quit; ends it where it does not."""
        for sign in (None, signal.SIGTERM, signal.SIGKILL):
            if sign is not None and self._is_control(pid):
                self.proof.log(f"  MPS control daemon {pid} still runs: {sign.name}")
                os.kill(pid, sign)
            give_up = time.monotonic() + QUIT_SECONDS / 2
            while self._is_control(pid) and time.monotonic() < give_up:
                time.sleep(0.05)
            if not self._is_control(pid):
                return

    @staticmethod
    def _is_control(pid):
        """Whether it is still that program, and no other one with its number."""
        with contextlib.suppress(OSError):
            return CONTROL.encode() in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
        return False


@contextlib.contextmanager
def wanted(proof, is_wanted):
    """The service, or `None` where it is not wanted or cannot be had: then that is told, and is no failure."""
    with contextlib.ExitStack() as stack:
        service = None
        if is_wanted:
            try:
                if proof.fake:
                    raise Unavailable("no real GPU")
                service = stack.enter_context(Mps(proof))
            except (Unavailable, StepFailed, OSError) as why:
                proof.check("MPS", None, f"not measured: {why}", "the vendor's, in the same run")
        yield service
