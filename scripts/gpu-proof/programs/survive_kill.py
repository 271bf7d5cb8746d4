"""A process of the session is killed while it holds memory; another one then takes all of it."""

import json
import signal
import subprocess
import sys
import time

import gpu

TENANT = [sys.argv[1], "mem", "--api", "alloc", "--chunk", "16MiB", "--cap", "3GiB"]
victim = subprocess.Popen([*TENANT, "--hold", "60"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
try:
    first = json.loads(victim.stdout.readline())
    gpu.tell(granted=first["granted_bytes"])
    gpu.hear()
    victim.send_signal(signal.SIGKILL)
    gpu.tell(killed=True)
    gpu.hear()
finally:
    victim.kill()
    victim.wait()
begun = time.monotonic()
second = subprocess.run(TENANT, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, timeout=30, check=True)
seconds = time.monotonic() - begun
gpu.tell(granted=json.loads(second.stdout)["granted_bytes"], seconds=seconds)
