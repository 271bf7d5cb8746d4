"""A program that is listened to while it runs."""

import json
import subprocess
import threading


class Listener:
    """Starts a program and hears what it prints, a JSON object a line; other lines are passed over.

    A subclass says in `heard` what becomes of an object, and in `fell_silent` of the end. They are called by another thread.
    """

    def __init__(self, proof, command, env=None, stdin=subprocess.DEVNULL):
        self.proof, self.errors = proof, []
        self.process = proof.start(command, env, stdin=stdin)
        self.readers = [
            threading.Thread(target=self._read_out, daemon=True),
            threading.Thread(target=lambda: self.errors.extend(self.process.stderr), daemon=True),
        ]
        for reader in self.readers:
            reader.start()

    def _read_out(self):
        for line in self.process.stdout:
            try:
                said = json.loads(line)
            except json.JSONDecodeError:
                continue
            self.heard(said)
        self.fell_silent()

    def heard(self, said):
        raise NotImplementedError

    def fell_silent(self):
        pass
