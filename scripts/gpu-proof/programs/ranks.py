"""A program on several devices at once, in a loop: it tells its progress, obeys `pause`, `go` and `end`, and ends with stdin.

    ranks.py KIND [--world N] [--launcher torchrun|processes] [--seconds S] [--commands] [--allow-one] [--kill-after S] [--simulated]

What the kinds are is told in `together.py`. With `--kill-after` the last rank dies by SIGKILL so many seconds after it
has begun. With `--allow-one` one device is enough: then there is one rank, to see that the program works. With
`--simulated` kernels of the simulated GPU stand for the program.
"""

import argparse
import collections
import ctypes
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback

from toggled import AHEAD, Commands, Teller, TorchClock

KINDS = ["ddp", "large", "sharded", "tensor", "pipeline", "collectives", "dp", "jax", "peer", "threads"]
IN_ONE_PROCESS = {"dp", "jax", "peer", "threads"}
# Says where the first rank tells the others to go on.
LINK = "GPU_PROOF_LINK"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--world", type=int, default=0, help="0: all devices")
    parser.add_argument("--launcher", choices=["torchrun", "processes"], default="torchrun")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--commands", action="store_true")
    parser.add_argument("--allow-one", action="store_true")
    parser.add_argument("--kill-after", type=float)
    parser.add_argument("--simulated", action="store_true")
    return parser.parse_args()


def programs(given):
    """Where the kinds are made."""
    if given.simulated:
        import simulated

        return simulated
    import together

    return together


# --- starting


def start(given):
    """Becomes the launcher of the ranks, or runs what needs only one process."""
    devices = programs(given).devices()
    if devices < 2 and not given.allow_one or devices < given.world:
        print(json.dumps({"program": given.kind, "skipped": f"{devices} devices are visible"}))
        return
    world = given.world or devices
    if world < 2 and given.kind == "pipeline":
        print(json.dumps({"program": given.kind, "skipped": "one rank has nobody to send to"}))
        return
    if given.kind in IN_ONE_PROCESS:
        in_one_process(given, world)
        return
    command = [os.path.abspath(__file__), *sys.argv[1:]]
    os.environ[LINK] = f"gpu-proof-ranks-{os.getpid()}-{time.monotonic_ns()}"
    if given.launcher == "torchrun":
        line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world), *command]
        os.execv(sys.executable, line)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(world):
        environment = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        ranks.append(subprocess.Popen([sys.executable, *command], env=environment))
    while all(one.poll() is None for one in ranks):
        time.sleep(0.05)
    if any(one.poll() for one in ranks):
        # As torchrun does: one that failed ends the others.
        for one in ranks:
            one.kill()
    sys.exit(max(abs(one.wait()) for one in ranks))


def end_with_parent():
    """A launcher that was killed leaves no ranks behind, not even one whose threads all wait for a device."""
    pr_set_pdeathsig = 1
    parent = os.getppid()
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the launcher is gone")


# --- who goes on


class Link:
    """Every rank does what the first one says, step by step; it never waits for them."""

    def __init__(self, rank, world):
        # A name without a file.
        address = "\0" + os.environ[LINK]
        self.first, self.others, self.peer = rank == 0, [], None
        if self.first:
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(address)
                listening.listen(world)
                listening.settimeout(90)
                self.others = [listening.accept()[0] for _ in range(world - 1)]
            return
        give_up = time.monotonic() + 90
        while self.peer is None:
            try:
                self.peer = socket.socket(socket.AF_UNIX)
                self.peer.connect(address)
            except ConnectionRefusedError:
                self.peer = None
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.02)

    def is_over(self, over):
        if self.first:
            for other in self.others:
                other.sendall(b"1" if over else b"0")
            return over
        said = self.peer.recv(1)
        if not said:
            raise SystemExit("the first rank is gone")
        return said == b"1"


class ThreadLink:
    """The same among threads."""

    def __init__(self, rank, world, queues):
        self.own, self.others = queues[rank], queues[1:] if rank == 0 else None

    def is_over(self, over):
        if self.others is not None:
            for other in self.others:
                other.put(over)
            return over
        return self.own.get()


class NoLink:
    """One thread that does it all."""

    def is_over(self, over):
        return over


# --- running


def rank_main(given):
    end_with_parent()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    made = programs(given).rank(given.kind, rank, world, int(os.environ["LOCAL_RANK"]))
    if given.kill_after and rank == world - 1:
        threading.Timer(given.kill_after, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    steps, seconds = loop(given, made, rank == 0, Link(rank, world))
    right = bool(made.correct())
    if rank == 0:
        tell_result(given, world, steps, seconds, right)
    made.close()
    if not right:
        raise SystemExit(f"rank {rank}: wrong result")


def in_one_process(given, world):
    made = programs(given).in_one_process(given.kind, world)
    if callable(made):
        threads(given, world, made)
        return
    steps, seconds = loop(given, made, True, NoLink())
    tell_result(given, world, steps, seconds, bool(made.correct()))


def threads(given, world, make):
    """A thread for each rank."""
    failures, results, queues = [], {}, [queue.SimpleQueue() for _ in range(world)]

    def guarded(rank):
        try:
            made = make(rank)
            found = loop(given, made, rank == 0, ThreadLink(rank, world, queues))
            results[rank] = (*found, bool(made.correct()))
        except BaseException:
            failures.append(traceback.format_exc())

    everyone = [threading.Thread(target=guarded, args=(rank,), daemon=True) for rank in range(world)]
    for each in everyone:
        each.start()
    for each in everyone:
        # A rank whose peer failed may wait for ever.
        while each.is_alive() and not failures:
            each.join(0.2)
    if failures:
        print("\n".join(failures), file=sys.stderr, flush=True)
        os._exit(1)
    steps, seconds, _ = results[0]
    tell_result(given, world, steps, seconds, all(right for *_, right in results.values()))


def tell_result(given, world, steps, seconds, right):
    print(json.dumps({"program": given.kind, "world": world, "rate": steps / seconds, "unit": "steps/s", "steps": steps, "correct": right}), flush=True)


def loop(given, made, is_first, link):
    """Steps until the first rank says that it is over; how many, and in which time."""
    for _ in range(5):
        made.step()
    clock = made.clock() if made.clock else TorchClock()
    commands, teller, marks = Commands(given.commands and is_first), Teller(), collections.deque()
    if is_first:
        print(json.dumps({"program": given.kind, "acknowledges": True}), flush=True)
    begun, steps = time.monotonic(), 0
    while True:
        over = False
        if is_first:
            commands.listen()
            while commands.said == "pause":
                clock.synchronize()
                marks.clear()
                commands.paused()
                commands.listen(60)
            over = commands.said == "end" or time.monotonic() - begun > given.seconds
        if link.is_over(over):
            break
        result = made.step()
        steps += 1
        marks.append((steps, clock.mark(result)))
        ended = None
        while marks and clock.is_done(marks[0][1]):
            ended = marks.popleft()
        if ended and is_first:
            teller.tell(ended[0], clock.at(ended[1]), time.monotonic())
        if len(marks) > AHEAD:
            clock.wait(marks[0][1])
    clock.synchronize()
    return steps, time.monotonic() - begun


if __name__ == "__main__":
    options = arguments()
    if "RANK" in os.environ and options.kind not in IN_ONE_PROCESS:
        rank_main(options)
    else:
        start(options)
