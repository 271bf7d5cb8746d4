"""The programs that use several devices together. Random weights; nothing is downloaded.

Of ranks: `ddp`, data-parallel training whose devices wait for their CPUs; `large`, the same, whose CPUs wait for their
devices; `sharded`, training of which each rank holds a part of the parameters (FSDP). `tensor`, words through a model of which each rank has a part, with two sums
over all ranks in each layer. `pipeline`: each rank has some layers, and sends what it found to the next. `collectives`:
all_to_all, reduce_scatter, all_gather, a sum in a group of some ranks, a ring of sends and receives.
In one process: `dp`, data-parallel training. `jax`: the same by JAX, whose compiler adds the sums. `peer`: two halves of
a model on two devices, with copies from one to the other. `threads`: a thread for each rank, which calls NCCL itself.
"""

import ctypes
import dataclasses
import datetime
import typing

import torch
import torch.distributed as dist
from models import language_training
from torch.nn import functional


@dataclasses.dataclass
class Part:
    """A rank's part: one step, and whether its result is right."""

    step: typing.Callable
    correct: typing.Callable
    close: typing.Callable = lambda: None
    # What tells when steps ended; without it PyTorch's events do.
    clock: typing.Callable = None


def devices():
    return torch.cuda.device_count()


def rank(kind, rank, world, device):
    """A rank's part, once it has joined the others."""
    torch.cuda.set_device(device)
    torch.manual_seed(7)
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=120), device_id=torch.device("cuda", device))
    step, correct = {"ddp": ddp, "large": large, "sharded": sharded, "tensor": tensor, "pipeline": pipeline, "collectives": collectives}[kind](rank, world)
    return Part(step, correct, dist.destroy_process_group)


def in_one_process(kind, world):
    """The whole; for `threads` what makes each one's part."""
    return {"dp": dp, "jax": jax, "peer": peer, "threads": threads}[kind](world)


def is_finite(value):
    return torch.isfinite(value.float()).all().item()


def same_everywhere(value):
    """Whether all ranks have the same number."""
    highest, lowest = value.detach().double().clone(), value.detach().double().clone()
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    dist.all_reduce(lowest, op=dist.ReduceOp.MIN)
    return torch.isfinite(highest).item() and highest.item() == lowest.item()


# --- ranks


def ddp(rank, world):
    return data_parallel(rank, layers=8, width=1024, batch=16, length=256)


def large(rank, world):
    return data_parallel(rank, layers=6, width=2048, batch=32, length=512)


def data_parallel(rank, **sizes):
    held = []

    def wrap(model):
        held.append(torch.nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()]))
        return held[0]

    torch.manual_seed(7 + rank)
    step = language_training(**sizes, wrap=wrap)
    return step, lambda: same_everywhere(sum(one.double().sum() for one in held[0].parameters()))


def sharded(rank, world):
    from torch.distributed.fsdp import fully_shard

    def wrap(model):
        for layer in [one for one in model.modules() if isinstance(one, torch.nn.ModuleList)]:
            for block in layer:
                fully_shard(block)
        return fully_shard(model)

    torch.manual_seed(7)
    held = []
    step = language_training(layers=6, width=2048, batch=32, length=512, wrap=wrap)

    def kept():
        held[:] = [step()]
        return held[0]

    return kept, lambda: is_finite(held[0].detach())


def tensor(rank, world):
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


def layers_of(count, width, where="cuda"):
    return [torch.randn(width, width, device=where, dtype=torch.bfloat16) / width**0.5 for _ in range(count)]


def pipeline(rank, world):
    width, batch = 4096, 512
    weights, first = layers_of(20, width), torch.randn(batch, width, device="cuda", dtype=torch.bfloat16)
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

    return step, lambda: is_finite(last["y"])


def collectives(rank, world):
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


def dp(world):
    """Each step copies the weights to all devices, and sums the slopes up on the first."""
    held = []

    def wrap(model):
        held.append(torch.nn.DataParallel(model, device_ids=list(range(world))))
        return held[0]

    step = language_training(layers=8, width=1024, batch=16 * world, length=256, wrap=wrap)
    return Part(step, lambda: is_finite(sum(one.double().sum() for one in held[0].parameters())))


def jax(world):
    """The step of the program that Sluice is judged by, with its batch spread over the devices."""
    import judged

    work = judged.jax(world)
    return Part(work.step, lambda: bool(work.step().sum().item() < float("inf")), clock=work.clock)


def peer(world):
    second = "cuda:1" if world > 1 else "cuda:0"
    weights = {where: layers_of(20, 4096, where) for where in {"cuda:0", second}}
    start = torch.randn(512, 4096, device="cuda:0", dtype=torch.bfloat16)
    last = {}

    @torch.inference_mode()
    def step():
        x = start
        for where in ("cuda:0", second):
            x = x.to(where, non_blocking=True)
            for weight in weights[where]:
                x = x @ weight
        last["x"] = x.to("cuda:0", non_blocking=True)

    return Part(step, lambda: is_finite(last["x"]))


class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


FLOAT, SUM = 7, 0


def threads(world):
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

    def make(rank):
        torch.cuda.set_device(rank)
        communicator = ctypes.c_void_p()
        call("ncclCommInitRank", ctypes.byref(communicator), world, ident, rank)
        weight, x = layers_of(1, 4096)[0], torch.randn(1024, 4096, device="cuda", dtype=torch.bfloat16)
        ones, summed = torch.ones(1 << 20, device="cuda"), torch.empty(1 << 20, device="cuda")

        def step():
            y = x
            for _ in range(4):
                y = y @ weight
            stream = torch.cuda.current_stream().cuda_stream
            call("ncclAllReduce", ones.data_ptr(), summed.data_ptr(), ones.numel(), FLOAT, SUM, communicator, stream)

        return Part(step, lambda: (summed == world).all().item())

    return make
