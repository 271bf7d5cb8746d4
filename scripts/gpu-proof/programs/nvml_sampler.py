"""What NVML says that processes use of device 0: once, or over and over until SIGTERM.

Runs outside of any session, so that it sees what is really there.
"""

import argparse
import ctypes
import json
import signal
import time
from ctypes import POINTER, c_char_p, c_int, c_uint, c_ulonglong, c_void_p

INSUFFICIENT_SIZE = 7
NOT_AVAILABLE = (1 << 64) - 1
# A sampler that nobody ends does so by itself.
LONGEST = 120


class ProcessInfo(ctypes.Structure):
    """`nvmlProcessInfo_v2_t`, which the `_v3` functions fill."""

    _fields_ = [("pid", c_uint), ("used", c_ulonglong), ("gpu_instance", c_uint), ("compute_instance", c_uint)]


class Nvml:
    def __init__(self):
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        signatures = {
            "nvmlInit_v2": [],
            "nvmlDeviceGetHandleByIndex_v2": [c_uint, POINTER(c_void_p)],
            "nvmlDeviceGetComputeRunningProcesses_v3": [c_void_p, POINTER(c_uint), POINTER(ProcessInfo)],
        }
        for name, arguments in signatures.items():
            function = getattr(self.library, name)
            function.argtypes, function.restype = arguments, c_int
        self.library.nvmlErrorString.argtypes, self.library.nvmlErrorString.restype = [c_int], c_char_p
        self.check("nvmlInit", self.library.nvmlInit_v2())
        self.device = c_void_p()
        self.check("nvmlDeviceGetHandleByIndex", self.library.nvmlDeviceGetHandleByIndex_v2(0, self.device))
        self.room = 256

    def check(self, call, result):
        if result != 0:
            raise SystemExit(f"{call}: {self.library.nvmlErrorString(result).decode()}")

    def processes(self):
        """Bytes by process id."""
        while True:
            count, infos = c_uint(self.room), (ProcessInfo * self.room)()
            result = self.library.nvmlDeviceGetComputeRunningProcesses_v3(self.device, count, infos)
            if result == INSUFFICIENT_SIZE and self.room < 1 << 16:
                self.room *= 4
                continue
            self.check("nvmlDeviceGetComputeRunningProcesses_v3", result)
            return {info.pid: info.used for info in infos[: count.value] if info.used != NOT_AVAILABLE}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--every", type=float, default=0.01)
    options = parser.parse_args()
    nvml = Nvml()
    before = nvml.processes()
    if options.once:
        print(json.dumps({"by_pid": before}))
        return
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    print(json.dumps({"ready": True}), flush=True)
    highest, together, samples, longest = {}, 0, 0, 0.0
    begun = last = time.monotonic()
    while not ended and time.monotonic() - begun < LONGEST:
        fresh = {pid: used for pid, used in nvml.processes().items() if pid not in before}
        now = time.monotonic()
        samples, longest, last = samples + 1, max(longest, now - last), now
        together = max(together, sum(fresh.values()))
        for pid, used in fresh.items():
            highest[pid] = max(used, highest.get(pid, 0))
        time.sleep(max(options.every - (time.monotonic() - now), 0))
    seconds = time.monotonic() - begun
    print(json.dumps({"samples": samples, "mean_ms": 1000 * seconds / max(samples, 1), "longest_ms": 1000 * longest, "highest": together, "by_pid": highest}))


if __name__ == "__main__":
    main()
