"""The programs that Sluice is judged by: nobody looks at their figures while tuning. Random weights and data."""

import math
import time

from work import Work

# PyTorch, JAX and CuPy are imported by the works that need them: each process runs one.


def training(model, make_loss, optimizer=None):
    """A step in mixed precision, without a wait."""
    import torch

    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = make_loss()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss

    return step


def moe():
    """A mixture of experts: each word goes to two of eight, found by index; the host waits for the counts."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Experts(nn.Module):
        def __init__(self, width, count):
            super().__init__()
            self.norm, self.gate = nn.LayerNorm(width), nn.Linear(width, count, bias=False)
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(count))

        def forward(self, x):
            normed = self.norm(x)
            chances, chosen = self.gate(normed).float().softmax(-1).topk(2, dim=-1)
            out = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                rows, place = (chosen == number).nonzero(as_tuple=True)
                weighted = expert(normed[rows]).float() * chances[rows, place].unsqueeze(-1)
                out = out.index_add(0, rows, weighted.to(out.dtype))
            return x + out

    model = nn.Sequential(*(Experts(1024, 8) for _ in range(4))).cuda()
    x, target = torch.randn(8192, 1024, device="cuda"), torch.randn(8192, 1024, device="cuda")
    return Work(training(model, lambda: functional.mse_loss(model(x).float(), target)))


def unet():
    """A network down and up again with skips, as diffusion models train it: noise in, noise out."""
    import torch
    from torch import nn
    from torch.nn import functional

    def block(inside, width):
        return nn.Sequential(
            nn.Conv2d(inside, width, 3, padding=1), nn.GroupNorm(8, width), nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(8, width), nn.SiLU(),
        )  # fmt: skip

    class Network(nn.Module):
        def __init__(self, widths=(128, 256, 512)):
            super().__init__()
            self.down = nn.ModuleList(block(inside, width) for inside, width in zip((4, *widths), widths))
            self.middle = block(widths[-1], widths[-1])
            self.up = nn.ModuleList(block(2 * width, after) for width, after in zip(reversed(widths), (*reversed(widths[:-1]), widths[0])))
            self.attention = nn.MultiheadAttention(widths[-1], 8, batch_first=True)
            self.out = nn.Conv2d(widths[0], 4, 1)

        def forward(self, x):
            skips = []
            for part in self.down:
                x = part(x)
                skips.append(x)
                x = functional.avg_pool2d(x, 2)
            x = self.middle(x)
            flat = x.flatten(2).transpose(1, 2)
            x = x + self.attention(flat, flat, flat, need_weights=False)[0].transpose(1, 2).reshape(x.shape)
            for part in self.up:
                x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
                x = part(torch.cat([x, skips.pop()], 1))
            return self.out(x)

    model = Network().cuda()
    clean = torch.randn(32, 4, 64, 64, device="cuda")

    def make_loss():
        noise = torch.randn_like(clean)
        part = torch.rand(32, 1, 1, 1, device="cuda")
        return functional.mse_loss(model(part.sqrt() * clean + (1 - part).sqrt() * noise).float(), noise)

    return Work(training(model, make_loss))


def lstm():
    """A recurrent network by the vendor's library."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.body, self.out = nn.Embedding(4096, 1024), nn.LSTM(1024, 1024, 2, batch_first=True), nn.Linear(1024, 4096)

        def forward(self, text):
            return self.out(self.body(self.words(text))[0])

    model = Network().cuda()
    text = torch.randint(0, 4096, (64, 129), device="cuda")
    return Work(training(model, lambda: functional.cross_entropy(model(text[:, :-1]).flatten(0, 1).float(), text[:, 1:].flatten())))


def beam():
    """A recurrent network that looks for the best of eight continuations, eager; a step is one word."""
    import torch
    from torch import nn

    width, words, beams, length = 1024, 8192, 8, 64
    embed = nn.Embedding(words, width, device="cuda", dtype=torch.float16)
    cells = [nn.GRUCell(width, width, device="cuda", dtype=torch.float16) for _ in range(3)]
    out = nn.Linear(width, words, device="cuda", dtype=torch.float16)
    state = {}

    def begin():
        state.update(
            at=0,
            hidden=[torch.zeros(beams, width, device="cuda", dtype=torch.float16) for _ in cells],
            word=torch.zeros(beams, dtype=torch.long, device="cuda"),
            scores=torch.zeros(beams, device="cuda"),
            ended=torch.zeros(beams, dtype=torch.bool, device="cuda"),
        )

    @torch.inference_mode()
    def step():
        if not state or state["at"] == length:
            begin()
        x, hidden = embed(state["word"]), []
        for cell, before in zip(cells, state["hidden"]):
            x = cell(x, before)
            hidden.append(x)
        chances = out(x).float().log_softmax(-1).masked_fill(state["ended"].unsqueeze(-1), -1e4)
        scores, best = (state["scores"].unsqueeze(-1) + chances).flatten().topk(beams)
        came_from, word = best // words, best % words
        ended = state["ended"][came_from] | (word == 1)
        state.update(at=state["at"] + 1, hidden=[one[came_from] for one in hidden], word=word, scores=scores, ended=ended)
        # The program looks whether all have ended.
        if bool(ended.all().item()):
            state["at"] = length

    return Work(step, waits=True, unit="words")


class ResultClock:
    """When results were there, as far as looking tells; `is_ready` and `block` are the library's."""

    def __init__(self, is_ready, block):
        self.ready, self.block, self.last = is_ready, block, None

    def mark(self, result):
        self.last = [result, None]
        return self.last

    def is_done(self, mark):
        if mark[1] is None and self.ready(mark[0]):
            mark[1] = time.monotonic()
        return mark[1] is not None

    def wait(self, mark):
        if mark[1] is None:
            self.block(mark[0])
            mark[1] = time.monotonic()

    def at(self, mark):
        self.wait(mark)
        return mark[1]

    def synchronize(self):
        if self.last:
            self.wait(self.last)


def jax(devices=1):
    """JAX: a compiled training step with an attention layer and momentum; the batch is spread over the devices."""
    import os

    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax as library
    import jax.numpy as jnp

    width, batch, length, layers = 1024, 16, 256, 4
    keys = iter(library.random.split(library.random.PRNGKey(7), 4 * layers + 2))

    def weight(*shape):
        return library.random.normal(next(keys), shape, jnp.float32) / math.sqrt(shape[0])

    weights = [(weight(width, 3 * width), weight(width, width), weight(width, 4 * width), weight(4 * width, width)) for _ in range(layers)]
    x, target = (library.random.normal(next(keys), (batch * devices, length, width)) for _ in range(2))
    if devices > 1:
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        mesh = Mesh(library.devices()[:devices], ("batch",))
        x, target = library.device_put((x, target), NamedSharding(mesh, PartitionSpec("batch")))
        weights = library.device_put(weights, NamedSharding(mesh, PartitionSpec()))

    def norm(x):
        return (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1e-5)

    def loss(weights, x, target):
        x = x.astype(jnp.bfloat16)
        for qkv, project, up, down in weights:
            q, k, v = jnp.split(norm(x) @ qkv.astype(jnp.bfloat16), 3, -1)
            scores = library.nn.softmax((jnp.einsum("bqd,bkd->bqk", q, k) / math.sqrt(width)).astype(jnp.float32), -1).astype(jnp.bfloat16)
            x = x + jnp.einsum("bqk,bkd->bqd", scores, v) @ project.astype(jnp.bfloat16)
            x = x + library.nn.gelu(norm(x) @ up.astype(jnp.bfloat16)) @ down.astype(jnp.bfloat16)
        return jnp.mean((x.astype(jnp.float32) - target) ** 2)

    @library.jit
    def train(weights, speed, x, target):
        slopes = library.grad(loss)(weights, x, target)
        speed = library.tree_util.tree_map(lambda old, slope: 0.9 * old + slope, speed, slopes)
        return library.tree_util.tree_map(lambda one, fast: one - 1e-3 * fast, weights, speed), speed

    held = [weights, library.tree_util.tree_map(jnp.zeros_like, weights)]

    def step():
        held[0], held[1] = train(held[0], held[1], x, target)
        # The last one is of the same program: it is there when all are.
        return held[0][-1][-1]

    clock = ResultClock(lambda one: one.is_ready(), lambda one: one.block_until_ready())
    return Work(step, made_with=f"jax {library.__version__}", clock=lambda: clock)


class CupyClock:
    """The events of CuPy."""

    def __init__(self):
        import cupy

        self.cuda = cupy.cuda
        self.cuda.Device().synchronize()
        self.first = self.cuda.Event()
        self.first.record()
        self.first.synchronize()
        self.first_at = time.monotonic()

    def mark(self, _):
        event = self.cuda.Event()
        event.record()
        return event

    def is_done(self, event):
        return event.done

    def wait(self, event):
        event.synchronize()

    def at(self, event):
        return self.first_at + self.cuda.get_elapsed_time(self.first, event) / 1000

    def synchronize(self):
        self.cuda.Device().synchronize()


def cupy():
    """CuPy: filters signals by Fourier transforms, projects them, sorts and sums up."""
    import cupy as library

    random = library.random.RandomState(7)
    signals = random.standard_normal((2048, 4096), dtype=library.float32)
    window = library.exp(-library.linspace(0, 8, 2049, dtype=library.float32))
    project = random.standard_normal((4096, 1024), dtype=library.float32) / 64
    squash = library.ElementwiseKernel("float32 x", "float32 y", "y = tanhf(x) + 0.1f * x", "squash")

    def step():
        filtered = library.fft.irfft(library.fft.rfft(signals, axis=1) * window, axis=1).astype(library.float32)
        found = squash(filtered @ project)
        ordered = library.sort(found, axis=1)
        return (ordered[:, -16:].mean(axis=1) - found.std(axis=1)).sum()

    return Work(step, made_with=f"cupy {library.__version__}", clock=CupyClock)


def vit():
    """A vision transformer, trained with weights in bf16."""
    import torch
    from torch import nn
    from torch.nn import functional

    try:
        import torchvision

        model, made_with = torchvision.models.vit_b_16(weights=None), f"torchvision {torchvision.__version__} vit_b_16"
    except ImportError:

        class Pictures(nn.Module):
            def __init__(self):
                super().__init__()
                self.cut, self.places = nn.Conv2d(3, 768, 16, 16), nn.Parameter(torch.zeros(1, 196, 768))
                layer = nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
                self.body, self.out = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False), nn.Linear(768, 1000)

            def forward(self, x):
                return self.out(self.body(self.cut(x).flatten(2).transpose(1, 2) + self.places).mean(1))

        model, made_with = Pictures(), "plain torch in the shape of vit_b_16: torchvision is missing"
    model = model.to(device="cuda", dtype=torch.bfloat16)
    pictures = torch.randn(64, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
    labels = torch.randint(0, 1000, (64,), device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)

    def step():
        loss = functional.cross_entropy(model(pictures).float(), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss

    return Work(step, made_with=made_with)


def classify():
    """A vision transformer's forward pass: a request of some milliseconds."""
    import torch
    from torch import nn

    layer = nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
    body = nn.TransformerEncoder(layer, 24, enable_nested_tensor=False).to(device="cuda", dtype=torch.bfloat16).eval()
    cut = nn.Conv2d(3, 1024, 16, 16).to(device="cuda", dtype=torch.bfloat16).eval()
    pictures = torch.randn(12, 3, 224, 224, device="cuda", dtype=torch.bfloat16)

    @torch.inference_mode()
    def step():
        return body(cut(pictures).flatten(2).transpose(1, 2)).mean(1)

    return Work(step, waits=True, unit="requests")


def sparse():
    """Attention to the best few blocks of words, which are gathered by index; forward and backward."""
    import torch
    from torch.nn import functional

    batch, heads, length, depth, block, best = 4, 16, 4096, 64, 64, 8
    width, blocks = heads * depth, length // block
    x = torch.randn(batch, length, width, device="cuda")
    weights = [(torch.randn(width, 3 * width, device="cuda") / math.sqrt(width)).requires_grad_(), (torch.randn(width, width, device="cuda") / math.sqrt(width)).requires_grad_()]
    optimizer = torch.optim.SGD(weights, lr=1e-3, foreach=True)

    def attend():
        # Batch and heads are one dimension: b, blocks, block, depth.
        q, k, v = (x @ weights[0]).view(batch, length, 3, heads, depth).permute(2, 0, 3, 1, 4).reshape(3, batch * heads, blocks, block, depth).unbind(0)
        with torch.no_grad():
            near = (q.mean(2) @ k.mean(2).transpose(-1, -2)).topk(best, dim=-1).indices
        rows = torch.arange(batch * heads, device="cuda")[:, None, None]
        some_k = k[rows, near].reshape(batch * heads, blocks, best * block, depth)
        some_v = v[rows, near].reshape(batch * heads, blocks, best * block, depth)
        got = functional.scaled_dot_product_attention(q, some_k, some_v)
        return got.reshape(batch, heads, length, depth).transpose(1, 2).reshape(batch, length, width) @ weights[1]

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = (attend().float() - x).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss

    return Work(step)


def compiled():
    """A transformer's training step, compiled by torch.compile."""
    import torch
    from models import language_training

    return Work(language_training(layers=8, width=768, batch=16, length=256, wrap=torch.compile))


WORKS = {"compiled": compiled, "moe": moe, "unet": unet, "lstm": lstm, "beam": beam, "jax": jax, "cupy": cupy, "vit": vit, "classify": classify, "sparse": sparse}
