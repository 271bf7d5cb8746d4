"""Runs a program for people in a terminal of its own, and prints what is on the screen after some seconds.

    python3 scripts/terminal.py SECONDS PROGRAM [ARGUMENT...]

Needs pyte, which understands what such programs write. The program is ended afterwards.
"""
import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time

import pyte

COLUMNS, LINES = 140, 40


def screen(seconds, command):
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm"
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    shown = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(shown)
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        ready, _, _ = select.select([terminal], [], [], left)
        if not ready:
            break
        try:
            written = os.read(terminal, 65536)
        except OSError:  # it has ended
            break
        stream.feed(written)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "\n".join(line.rstrip() for line in shown.display).rstrip()


if __name__ == "__main__":
    print(screen(float(sys.argv[1]), sys.argv[2:]))
