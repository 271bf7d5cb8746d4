"""PyTorch: streams that wait for something that is not work of their own device.

    torch_waits.py pipeline|word|idle|plain SECONDS

`pipeline`: a model in two halves on two devices, one batch at a time: each device waits for the other half of the time.
`word`: work behind a word in memory that the host writes, after a pause as long as the work.
`idle`: dense work, with a word to wait for before each part that has long been written.
`plain`: the same without the waits.
"""

import ctypes
import json
import sys
import threading
import time

import torch

# Products of some 30 us each: long beside a launch, and little to hand over.
WIDTH, BATCH, LAYERS = 4096, 512, 40
AT_LEAST = 0  # CU_STREAM_WAIT_VALUE_GEQ
driver = ctypes.CDLL("libcuda.so.1")


def half(device):
    weights = [torch.randn(WIDTH, WIDTH, device=device, dtype=torch.float16) / WIDTH**0.5 for _ in range(LAYERS)]

    def step(x):
        for weight in weights:
            x = x @ weight
        return x

    return step


def batch():
    return torch.randn(BATCH, WIDTH, device="cuda:0", dtype=torch.float16)


def until(ended, stream, steps_ahead=2):
    """A step each time until then, a few of them ahead of the device."""
    events = []
    while not ended():
        yield
        event = torch.cuda.Event()
        event.record(stream)
        events.append(event)
        if len(events) > steps_ahead:
            events.pop(0).synchronize()


def pipeline():
    first, second = half("cuda:0"), half("cuda:1")
    x = batch()

    def step():
        nonlocal x
        y = second(first(x).to("cuda:1", non_blocking=True))
        x = y.to("cuda:0", non_blocking=True)

    return step


class Word:
    """Four bytes of the host's that streams wait for."""

    def __init__(self):
        self.memory = torch.zeros(1, dtype=torch.int32).pin_memory()
        self.address = self.memory.data_ptr()
        self.written = ctypes.c_uint32.from_address(self.address)

    def await_in(self, stream, value):
        status = driver.cuStreamWaitValue32_v2(ctypes.c_void_p(stream), ctypes.c_uint64(self.address), ctypes.c_uint32(value), AT_LEAST)
        if status != 0:
            sys.exit(f"cuStreamWaitValue32 failed: {status}")


def word():
    """The host pauses as long as the work takes once what was before is done, and then writes."""
    work, x = half("cuda:0"), batch()
    work(x)
    torch.cuda.synchronize()
    begun = time.monotonic()
    for _ in range(20):
        work(x)
    torch.cuda.synchronize()
    pause = (time.monotonic() - begun) / 20
    found, handle, number, finished = Word(), torch.cuda.current_stream().cuda_stream, 0, []
    changed = threading.Condition()

    def write():
        while True:
            with changed:
                changed.wait_for(lambda: finished)
                value, event = finished.pop(0)
            if event is not None:
                event.synchronize()
            time.sleep(pause)
            found.written.value = value

    threading.Thread(target=write, daemon=True).start()
    last = None

    def step():
        nonlocal number, last
        number += 1
        with changed:
            finished.append((number, last))
            changed.notify()
        found.await_in(handle, number)
        work(x)
        last = torch.cuda.Event()
        last.record()

    return step


def plain():
    work, x = half("cuda:0"), batch()
    return lambda: work(x)


def idle():
    work, x = half("cuda:0"), batch()
    found, handle = Word(), torch.cuda.current_stream().cuda_stream

    def step():
        found.await_in(handle, 0)
        work(x)

    return step


kind, seconds = sys.argv[1], float(sys.argv[2])
if kind == "pipeline" and torch.cuda.device_count() < 2:
    print(json.dumps({"skipped": "one device is visible"}))
    sys.exit()
step = {"pipeline": pipeline, "word": word, "idle": idle, "plain": plain}[kind]()
for _ in range(10):
    step()
torch.cuda.synchronize()
# What is saved up before is used up in the first part.
rates = []
for part in (0.5, seconds):
    begun, steps = time.monotonic(), 0
    for _ in until(lambda: time.monotonic() - begun >= part, torch.cuda.current_stream()):
        step()
        steps += 1
    torch.cuda.synchronize()
    rates.append(steps / (time.monotonic() - begun))
print(json.dumps({"program": kind, "rate": rates[-1], "unit": "steps/s"}))
