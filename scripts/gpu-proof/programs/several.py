"""Several copies of a program at once, as processes of one session; the sum of their rates.

    several.py COUNT COMMAND...

The command tells its progress, as JSON lines with the kernels done and the time on the machine's clock. Counted
is the time in which all of them ran.
"""

import json
import subprocess
import sys
import threading


def lines_of(process, found):
    for line in process.stdout:
        said = json.loads(line)
        if "at" in said:
            found.append((said["at"], said["kernels"]))


def rate(lines, begin, end):
    within = [line for line in lines if begin <= line[0] <= end]
    if len(within) < 2:
        sys.exit("the processes did not run at the same time")
    (t0, k0), (t1, k1) = within[0], within[-1]
    return (k1 - k0) / (t1 - t0)


processes = [subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE, text=True) for _ in range(int(sys.argv[1]))]
found = [[] for _ in processes]
readers = [threading.Thread(target=lines_of, args=pair) for pair in zip(processes, found)]
for reader in readers:
    reader.start()
for reader in readers:
    reader.join()
failed = [status for process in processes if (status := process.wait()) != 0]
if failed or not all(found):
    sys.exit(f"processes ended with status {failed}, or told no progress")
begin, end = max(lines[0][0] for lines in found), min(lines[-1][0] for lines in found)
rates = [rate(lines, begin, end) for lines in found]
print(json.dumps({"rates": rates, "rate": sum(rates), "seconds": end - begin}))
