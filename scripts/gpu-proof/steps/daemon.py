"""A `hypervisor daemon` of the proof's own."""

import contextlib
import http.client
import json
import pathlib
import shutil
import socket as sockets
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

    def __init__(self, proof, socket, options=()):
        self.proof = proof
        self.socket = socket
        self.options = options

    def __enter__(self):
        self.socket.unlink(missing_ok=True)
        command = [self.proof.tool("hypervisor"), "daemon", "--socket", str(self.socket), *self.options]
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


def sessions(path):
    """The daemon's own word on its sessions."""
    connection = http.client.HTTPConnection("sluice", timeout=2)
    connection.sock = sockets.socket(sockets.AF_UNIX)
    connection.sock.settimeout(2)
    try:
        connection.sock.connect(str(path))
        connection.request("GET", "/api/v1/sessions", headers={"Connection": "close"})
        return json.loads(connection.getresponse().read())["sessions"]
    except (OSError, http.client.HTTPException, json.JSONDecodeError) as error:
        raise StepFailed(f"the daemon's sessions: {type(error).__name__} {error}") from None
    finally:
        connection.close()


def charged(path, programs):
    """Microseconds that the daemon has charged each program's session, by device."""
    found = [{} for _ in programs]
    for session in sessions(path):
        for each, program in zip(found, programs):
            # `sluice run` names a session by its process.
            if session["name"].startswith(f"{program.process.pid}-"):
                for device in session["devices"]:
                    each[device["uuid"]] = each.get(device["uuid"], 0) + device["charged_us"]
    return found
