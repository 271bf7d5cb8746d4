"""A real program in a loop, which tells when each of its steps ended, by the device's clock.

    toggled.py WORK SECONDS [--commands] [--took] [--rate N --seed S]

WORK is one of `models.py` or of `judged.py`, or spin-US-COUNT[-waits]: that many kernels of so many microseconds,
for the simulated GPU. With `--commands` it obeys lines on stdin, `pause`, `go` and `end`.
With `--took` it waits for each step and tells how long each took. With `--rate` steps are requests that arrive at
random, so many a second; each is done in its turn, and took from its arrival until its result was there.
"""

import argparse
import collections
import importlib
import json
import os
import random
import select
import sys
import time
import traceback

TELL_EVERY = 0.05
# A mark behind each step, or behind as many as take so long.
MARK_EVERY = 0.015
# So many marks may be outstanding. The device's own queue is full before where steps are large.
AHEAD = 16


class TorchClock:
    """When the device was done with what was launched before a mark, on the machine's clock."""

    def __init__(self):
        import torch

        self.torch = torch
        torch.cuda.synchronize()
        self.first = torch.cuda.Event(enable_timing=True)
        self.first.record()
        self.first.synchronize()
        self.first_at = time.monotonic()

    def mark(self, _):
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def is_done(self, event):
        return event.query()

    def wait(self, event):
        event.synchronize()

    def at(self, event):
        return self.first_at + self.first.elapsed_time(event) / 1000

    def synchronize(self):
        self.torch.cuda.synchronize()


class Commands:
    """What was said last on stdin."""

    def __init__(self, heeded):
        self.said, self.heeded, self.rest = "go", heeded, b""

    def listen(self, seconds=0.0):
        """Takes note of what has been said, and waits so long if there is nothing."""
        while self.heeded and select.select([0], [], [], max(seconds, 0.0))[0]:
            seconds, data = 0.0, os.read(0, 4096)
            *lines, self.rest = (self.rest + data).split(b"\n")
            self.said = "end" if not data else lines[-1].decode().strip() if lines else self.said
            self.heeded = bool(data)

    @staticmethod
    def paused():
        """Tells that everything launched has ended."""
        print(json.dumps({"paused": time.monotonic()}), flush=True)


class Teller:
    """Tells progress a few times a second: the latest step that has ended, and when."""

    def __init__(self):
        self.told, self.took = 0.0, []

    def tell(self, steps, at, now):
        if now - self.told < TELL_EVERY:
            return
        line = {"at": at, "kernels": steps}
        if self.took:
            line["took"], self.took = self.took, []
        self.told = now
        print(json.dumps(line), flush=True)


def free_running(work, clock, commands, until, every):
    """Steps without a wait of ours; how many."""
    teller, marks, steps = Teller(), collections.deque(), 0
    while time.monotonic() < until:
        commands.listen()
        if commands.said == "end":
            break
        if commands.said == "pause":
            clock.synchronize()
            marks.clear()
            commands.paused()
            commands.listen(until - time.monotonic())
            continue
        result = work.step()
        steps += 1
        if steps % every:
            continue
        marks.append((steps, clock.mark(result)))
        ended = None
        while marks and clock.is_done(marks[0][1]):
            ended = marks.popleft()
        if ended:
            teller.tell(ended[0], clock.at(ended[1]), time.monotonic())
        if len(marks) > AHEAD:
            clock.wait(marks[0][1])
    clock.synchronize()
    return steps


def timed(work, clock, commands, until, begin):
    """One step after the other, each waited for; `begin` makes what gives the pause to the next request, or is none.
    After a pause the same requests come again."""
    teller, steps, due, pause = Teller(), 0, None, None
    while time.monotonic() < until:
        commands.listen()
        if commands.said == "end":
            break
        if commands.said == "pause":
            due = None
            commands.paused()
            commands.listen(until - time.monotonic())
            continue
        now = time.monotonic()
        if begin is not None:
            if due is None:
                pause = begin()
                due = now + pause()
            if due > now:
                # A command may come meanwhile.
                commands.listen(due - now) if commands.heeded else time.sleep(due - now)
                continue
            now, due = due, due + pause()
        served = time.monotonic()
        clock.wait(clock.mark(work.step()))
        done = time.monotonic()
        steps += 1
        # When it ended, and the milliseconds since it came and since it was begun.
        teller.took.append([round(done, 6), round(1e3 * (done - now), 4), round(1e3 * (done - served), 4)])
        teller.tell(steps, done, done)
    return steps


def arrivals(rate, seed):
    """What gives the pause to the next of requests that come at random, so many a second."""
    chance = random.Random(seed)
    return lambda: chance.expovariate(rate)


def make(name):
    """The work and its clock."""
    if name.startswith("spin-"):
        import simulated

        return simulated.make(name)
    # The second imports PyTorch, which not all of the first may have beside them.
    for module in ("judged", "models"):
        works = importlib.import_module(module)
        if name in works.WORKS:
            work = works.WORKS[name]()
            return work, work.clock() if work.clock else TorchClock()
    raise SystemExit(f"{name}: expected one of models.py or of judged.py")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work")
    parser.add_argument("seconds", type=float)
    parser.add_argument("--commands", action="store_true")
    parser.add_argument("--took", action="store_true")
    parser.add_argument("--rate", type=float)
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    work, clock = make(given.work)
    each = warm_up(work, clock)
    commands = Commands(given.commands)
    begun = time.monotonic()
    until = begun + given.seconds
    # The first line says what is run.
    print(json.dumps({"work": given.work, "made_with": work.made_with, "step_ms": 1e3 * each, "acknowledges": True}), flush=True)
    if given.took or given.rate:
        steps = timed(work, clock, commands, until, (lambda: arrivals(given.rate, given.seed)) if given.rate else None)
    else:
        steps = free_running(work, clock, commands, until, 1 if work.waits and each > MARK_EVERY else max(1, round(MARK_EVERY / each)))
    seconds = time.monotonic() - begun
    print(json.dumps({"program": given.work, "made_with": work.made_with, "step_ms": 1e3 * each, "rate": steps / seconds, "unit": f"{work.unit}/s", "steps": steps}), flush=True)


def warm_up(work, clock):
    """Seconds that a step takes, once it is warm."""
    begun, steps = time.monotonic(), 0
    while steps < 5 or (time.monotonic() - begun < 1.0 and steps < 200):
        result = work.step()
        steps += 1
        if steps % 4 == 0:
            clock.wait(clock.mark(result))
    clock.synchronize()
    begun, count = time.monotonic(), 8
    for _ in range(count):
        result = work.step()
    clock.wait(clock.mark(result))
    clock.synchronize()
    return (time.monotonic() - begun) / count


if __name__ == "__main__":
    try:
        main()
    except Exception:
        traceback.print_exc()
        sys.exit(1)
