"""Two processes of one session ask for 600 MiB each at the same time."""

import json
import subprocess
import sys

TENANT = [sys.argv[1], "mem", "--api", "alloc", "--chunk", "600MiB", "--cap", "600MiB", "--hold", "1.5"]
both = [subprocess.Popen(TENANT, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) for _ in range(2)]
try:
    found = [json.loads(one.communicate(timeout=30)[0]) for one in both]
finally:
    for one in both:
        one.kill()
        one.wait()
print(json.dumps({"granted": [one["granted_bytes"] for one in found], "stops": [one["stop"] for one in found]}))
