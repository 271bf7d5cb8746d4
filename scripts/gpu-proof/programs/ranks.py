"""Programs on several devices at once, in a loop: it tells its progress, obeys `pause`, `go` and `end`, and ends with stdin.

    ranks.py KIND [--world N] [--launcher torchrun|processes] [--seconds S] [--commands] [--allow-one] [--kill-after S]

`ddp`: data-parallel training. `tensor`: words through a model of which each rank has a part, with two sums over all
ranks in each layer. `pipeline`: each rank has some layers, and sends what it found to the next. `collectives`:
all_to_all, reduce_scatter, all_gather, a sum in a group of some ranks, a ring of sends and receives.
In one process: `threads`: a thread for each rank, which calls NCCL itself. `peer`: two halves of a model on two
devices, with copies from one to the other.

With `--kill-after` the last rank dies by SIGKILL so many seconds after it has begun. With `--allow-one` one device
is enough: then there is one rank, to see that the program works.
"""

import argparse
import collections
import ctypes
import datetime
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback

from toggled import AHEAD, Commands, Teller, TorchClock

LOOK_EVERY = 8
IN_ONE_PROCESS = {"threads", "peer"}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["ddp", "tensor", "pipeline", "collectives", "threads", "peer"])
    parser.add_argument("--world", type=int, default=0, help="0: all devices")
    parser.add_argument("--launcher", choices=["torchrun", "processes"], default="torchrun")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--commands", action="store_true")
    parser.add_argument("--allow-one", action="store_true")
    parser.add_argument("--kill-after", type=float)
    return parser.parse_args()


# --- starting


def start(given):
    """Becomes the launcher of the ranks, or runs what needs only one process."""
    import torch

    devices = torch.cuda.device_count()
    if devices < 2 and not given.allow_one or devices < given.world:
        print(json.dumps({"program": given.kind, "skipped": f"{devices} devices are visible"}))
        return
    world = given.world or devices
    if world < 2 and given.kind == "pipeline":
        print(json.dumps({"program": given.kind, "skipped": "one rank has nobody to send to"}))
        return
    if given.kind in IN_ONE_PROCESS:
        {"threads": threads, "peer": peer}[given.kind](given, world)
        return
    command = [os.path.abspath(__file__), *sys.argv[1:]]
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
    """A launcher that was killed leaves no ranks behind."""
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(0.3)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


# --- ranks


def rank_main(given):
    import torch
    import torch.distributed as dist

    end_with_parent()
    # All ranks are on this machine.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(7)
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=120), device_id=torch.device("cuda", torch.cuda.current_device()))
    told = dist.new_group(backend="gloo")
    step, correct = {"ddp": ddp, "tensor": tensor, "pipeline": pipeline, "collectives": collectives}[given.kind](rank, world)
    if given.kill_after and rank == world - 1:
        threading.Timer(given.kill_after, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    looked = torch.zeros(1, dtype=torch.int32)

    def is_over(over):
        """Every rank hears what the first one says; while that one pauses they wait for it."""
        looked[0] = int(over)
        dist.broadcast(looked, 0, group=told)
        return bool(looked.item())

    steps, seconds = loop(given, step, rank == 0, is_over)
    right = bool(correct())
    if rank == 0:
        tell_result(given, world, steps, seconds, right)
    dist.destroy_process_group()
    if not right:
        raise SystemExit(f"rank {rank}: wrong result")


def tell_result(given, world, steps, seconds, right):
    print(json.dumps({"program": given.kind, "world": world, "rate": steps / seconds, "unit": "steps/s", "steps": steps, "correct": right}), flush=True)


def loop(given, step, is_first, is_over):
    """Steps until the first rank says that it is over; how many, and in which time."""
    for _ in range(5):
        step()
    clock, commands, teller, marks = TorchClock(), Commands(given.commands and is_first), Teller(), collections.deque()
    begun, steps = time.monotonic(), 0
    while True:
        if steps % LOOK_EVERY == 0:
            over = False
            if is_first:
                commands.listen()
                while commands.said == "pause":
                    clock.synchronize()
                    marks.clear()
                    commands.listen(60)
                over = commands.said == "end" or time.monotonic() - begun > given.seconds
            if is_over(over):
                break
        step()
        steps += 1
        marks.append((steps, clock.mark(None)))
        ended = None
        while marks and clock.is_done(marks[0][1]):
            ended = marks.popleft()
        if ended and is_first:
            teller.tell(ended[0], clock.at(ended[1]), time.monotonic())
        if len(marks) > AHEAD:
            clock.wait(marks[0][1])
    clock.synchronize()
    return steps, time.monotonic() - begun


def same_everywhere(value):
    """Whether all ranks have the same number."""
    import torch
    import torch.distributed as dist

    highest, lowest = value.detach().double().clone(), value.detach().double().clone()
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    dist.all_reduce(lowest, op=dist.ReduceOp.MIN)
    return torch.isfinite(highest).item() and highest.item() == lowest.item()


def ddp(rank, world):
    import torch
    from models import language_training
    from torch.nn.parallel import DistributedDataParallel

    held = []

    def wrap(model):
        held.append(DistributedDataParallel(model, device_ids=[torch.cuda.current_device()]))
        return held[0]

    torch.manual_seed(7 + rank)
    step = language_training(layers=8, width=1024, batch=16, length=256, wrap=wrap)
    return step, lambda: same_everywhere(sum(one.double().sum() for one in held[0].parameters()))


def tensor(rank, world):
    import torch
    import torch.distributed as dist
    from torch.nn import functional

    width, layers, batch = 4096, 16, 8
    part = width // world

    def weight(*shape):
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) / shape[-1] ** 0.5

    blocks = [(weight(part, width), weight(width, part), weight(4 * part, width), weight(width, 4 * part)) for _ in range(layers)]
    start = torch.ones(batch, width, device="cuda", dtype=torch.bfloat16)
    last = {}

    @torch.inference_mode()
    def step():
        x = start
        for mix, project, up, down in blocks:
            y = functional.silu(functional.layer_norm(x, (width,)) @ mix.T) @ project.T
            dist.all_reduce(y)
            x = x + y
            y = functional.gelu(functional.layer_norm(x, (width,)) @ up.T) @ down.T
            dist.all_reduce(y)
            x = x + y
        # The program looks at each word.
        last["word"] = x.float().sum()
        last["word"].item()

    return step, lambda: same_everywhere(last["word"])


def pipeline(rank, world):
    import torch
    import torch.distributed as dist

    width, batch, layers = 4096, 512, 20
    weights = [torch.randn(width, width, device="cuda", dtype=torch.bfloat16) / width**0.5 for _ in range(layers)]
    first = torch.randn(batch, width, device="cuda", dtype=torch.bfloat16)
    x = torch.empty_like(first)
    last = {}

    @torch.inference_mode()
    def step():
        if rank > 0:
            dist.recv(x, rank - 1)
        y = first if rank == 0 else x
        for weight in weights:
            y = y @ weight
        if rank < world - 1:
            dist.send(y.contiguous(), rank + 1)
        last["y"] = y

    return step, lambda: torch.isfinite(last["y"].float()).all().item()


def collectives(rank, world):
    import torch
    import torch.distributed as dist

    size = 1 << 20
    # Groups of neighbours, which every rank has to make; the own one is used.
    groups = [dist.new_group(list(range(begin, min(begin + 2, world)))) for begin in range(0, world, 2)]
    group, members = groups[rank // 2], min(2, world - rank // 2 * 2)
    weight = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16) / 45
    x = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    mine = torch.arange(world, device="cuda", dtype=torch.float32).repeat_interleave(size) + 100 * rank
    from_all, scattered = torch.empty_like(mine), torch.empty(size, device="cuda")
    gathered, counted, around = torch.empty_like(mine), torch.empty(size, device="cuda"), torch.empty(size, device="cuda")

    def step():
        y = x
        for _ in range(4):
            y = y @ weight
        dist.all_to_all_single(from_all, mine)
        dist.reduce_scatter_tensor(scattered, mine)
        dist.all_gather_into_tensor(gathered, scattered)
        counted.fill_(1.0)
        dist.all_reduce(counted, group=group)
        if world > 1:
            ring = [dist.P2POp(dist.isend, counted, (rank + 1) % world), dist.P2POp(dist.irecv, around, (rank - 1) % world)]
            for one in dist.batch_isend_irecv(ring):
                one.wait()

    def correct():
        ranks = range(world)
        expected = torch.tensor([rank + 100 * other for other in ranks], dtype=torch.float32, device="cuda").repeat_interleave(size)
        total = float(sum(rank + 100 * other for other in ranks))
        each = torch.tensor([float(sum(place + 100 * other for other in ranks)) for place in ranks], device="cuda").repeat_interleave(size)
        before = (rank - 1) % world
        expects = min(2, world - before // 2 * 2)
        return (
            torch.equal(from_all, expected)
            and (scattered == total).all().item()
            and torch.equal(gathered, each)
            and (counted == members).all().item()
            and (world == 1 or (around == expects).all().item())
        )

    return step, correct


# --- in one process


def peer(given, world):
    """Two halves of a model, on two devices if there are as many."""
    import torch

    second = "cuda:1" if world > 1 else "cuda:0"
    width, batch, layers = 4096, 512, 20
    weights = {where: [torch.randn(width, width, device=where, dtype=torch.bfloat16) / width**0.5 for _ in range(layers)] for where in {"cuda:0", second}}
    start = torch.randn(batch, width, device="cuda:0", dtype=torch.bfloat16)
    last = {}

    @torch.inference_mode()
    def step():
        x = start
        for where in ("cuda:0", second):
            x = x.to(where, non_blocking=True)
            for weight in weights[where]:
                x = x @ weight
        last["x"] = x.to("cuda:0", non_blocking=True)

    steps, seconds = loop(given, step, True, lambda over: over)
    tell_result(given, world, steps, seconds, torch.isfinite(last["x"].float()).all().item())


class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


FLOAT, SUM = 7, 0


def threads(given, world):
    """A thread for each rank, with a communicator of its own."""
    import torch

    # The one that PyTorch has loaded.
    nccl = ctypes.CDLL("libnccl.so.2")
    nccl.ncclGetErrorString.restype = ctypes.c_char_p
    nccl.ncclCommInitRank.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, Id, ctypes.c_int]
    nccl.ncclAllReduce.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]

    def call(name, *values):
        result = getattr(nccl, name)(*values)
        if result != 0:
            raise RuntimeError(f"{name}: {nccl.ncclGetErrorString(result).decode()}")

    ident = Id()
    call("ncclGetUniqueId", ctypes.byref(ident))
    barrier, flag, failures, results = threading.Barrier(world), [False], [], {}

    def is_over(is_first, over):
        if is_first:
            flag[0] = over
        barrier.wait()
        found = flag[0]
        # Nobody changes it before all have read it.
        barrier.wait()
        return found

    def one(rank):
        torch.cuda.set_device(rank)
        communicator = ctypes.c_void_p()
        call("ncclCommInitRank", ctypes.byref(communicator), world, ident, rank)
        weight = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) / 64
        x = torch.randn(1024, 4096, device="cuda", dtype=torch.bfloat16)
        ones, summed = torch.ones(1 << 20, device="cuda"), torch.empty(1 << 20, device="cuda")

        def step():
            y = x
            for _ in range(4):
                y = y @ weight
            stream = torch.cuda.current_stream().cuda_stream
            call("ncclAllReduce", ones.data_ptr(), summed.data_ptr(), ones.numel(), FLOAT, SUM, communicator, stream)

        found = loop(given, step, rank == 0, lambda over: is_over(rank == 0, over))
        results[rank] = (*found, (summed == world).all().item())

    def guarded(rank):
        try:
            one(rank)
        except BaseException:
            failures.append(traceback.format_exc())
            barrier.abort()

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


if __name__ == "__main__":
    options = arguments()
    if "RANK" in os.environ and options.kind not in IN_ONE_PROCESS:
        rank_main(options)
    else:
        start(options)
