"""A `hypervisor daemon` of the proof's own."""

import contextlib
import pathlib
import shutil
import subprocess
import tempfile
import threading
import time

from harness import StepFailed, kill_group


@contextlib.contextmanager
def socket():
    """Where daemons may listen, one after the other. Not under $OUT: the path of a socket has to be short."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-proof-"))
    try:
        yield folder / "hypervisor.sock"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Daemon:
    """A `hypervisor daemon` for as long as the block runs."""

    def __init__(self, proof, socket):
        self.proof = proof
        self.socket = socket

    def __enter__(self):
        self.socket.unlink(missing_ok=True)
        command = [self.proof.tool("hypervisor"), "daemon", "--socket", str(self.socket)]
        self.process = self.proof.start(command)
        for stream in (self.process.stdout, self.process.stderr):
            threading.Thread(target=self._log, args=(stream,), daemon=True).start()
        for _ in range(100):
            if self.process.poll() is not None:
                raise StepFailed(f"hypervisor daemon ended with status {self.process.returncode}")
            if self.socket.exists():
                return self
            time.sleep(0.05)
        self.__exit__()
        raise StepFailed(f"hypervisor daemon made no socket at {self.socket}")

    def _log(self, stream):
        for line in stream:
            self.proof.log(f"  daemon: {line.rstrip()}")

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            kill_group(self.process)
            self.process.wait()
