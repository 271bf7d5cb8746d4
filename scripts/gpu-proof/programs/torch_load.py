"""PyTorch: a load that runs for a while and tells its progress, four times a second.

    torch_load.py train|decode|graph SECONDS [--profile] [--commands]

`train` and `decode` launch small kernels and wait for the host much of the time; `graph` decodes by
replaying a CUDA graph. With `--profile` some steps are run under the vendor's profiler, and the time for
which kernels kept the device busy is told for one step. With `--commands` it obeys lines on stdin, `pause`,
`go` and `end`, ends with stdin, and tells its progress ten times a second.
"""

import json
import os
import select
import sys
import time

import torch
from torch import nn

WIDTH, HEADS, LAYERS, WORDS = 256, 4, 4, 512


def training():
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
    body = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), body, nn.Linear(WIDTH, WORDS)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = torch.randint(0, WORDS, (32, 129), device="cuda")

    def step():
        loss = nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def decoding():
    wide, layers = 1024, 16

    def weight(*shape):
        return torch.randn(*shape, device="cuda", dtype=torch.float16) / shape[-1] ** 0.5

    blocks = [[weight(3 * wide, wide), weight(wide, wide), weight(4 * wide, wide), weight(wide, 4 * wide)] for _ in range(layers)]
    cache = torch.zeros(layers, 2, 4, 16, 128, wide // 16, device="cuda", dtype=torch.float16)
    x0 = weight(4, wide)
    norm = torch.nn.functional.layer_norm

    @torch.inference_mode()
    def step():
        x = x0
        for layer, (qkv, project, up, down) in enumerate(blocks):
            q, k, v = (norm(x, (wide,)) @ qkv.T).view(4, 3, 16, 1, -1).unbind(1)
            cache[layer, 0, :, :, :1] = k
            cache[layer, 1, :, :, :1] = v
            scores = (q @ cache[layer, 0].transpose(-1, -2)) / 8
            x = x + (scores.softmax(-1) @ cache[layer, 1]).reshape(4, wide) @ project.T
            x = x + torch.nn.functional.gelu(norm(x, (wide,)) @ up.T) @ down.T
        return x

    return step


def graph():
    step = decoding()
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        step()
    return captured.replay


class Commands:
    """What was said last on stdin."""

    def __init__(self, heeded):
        self.said, self.heeded, self.rest = "go", heeded, b""

    def listen(self, seconds=0.0):
        """Takes note of what has been said, and waits so long if there is nothing."""
        while self.heeded and select.select([0], [], [], seconds)[0]:
            seconds, data = 0.0, os.read(0, 4096)
            *lines, self.rest = (self.rest + data).split(b"\n")
            self.said = "end" if not data else lines[-1].decode().strip() if lines else self.said
            self.heeded = bool(data)


def busy_seconds(step, count=20):
    """Device time of one step: the union of its kernels', copies' and fills' intervals."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(count):
            step()
        torch.cuda.synchronize()
    spans = sorted((event.time_range.start, event.time_range.end) for event in found.events() if event.device_type.name == "CUDA")
    busy, until = 0.0, 0.0
    for start, end in spans:
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    return busy / 1e6 / count


kind, seconds = sys.argv[1], float(sys.argv[2])
commands = Commands("--commands" in sys.argv)
tell_every = 0.1 if commands.heeded else 0.25
torch.manual_seed(7)
step = {"train": training, "decode": decoding, "graph": graph}[kind]()
# Small batches wait for each result, as a service does.
every = 1 if kind != "train" else 4
for _ in range(30):
    step()
torch.cuda.synchronize()
# The clock that all programs of the machine share.
begun = told = time.monotonic()
steps = 0
while time.monotonic() - begun < seconds:
    commands.listen()
    if commands.said == "end":
        break
    if commands.said == "pause":
        torch.cuda.synchronize()
        commands.listen(max(begun + seconds - time.monotonic(), 0.0))
        continue
    step()
    steps += 1
    if steps % every == 0:
        torch.cuda.synchronize()
        now = time.monotonic()
        if now - told >= tell_every:
            told = now
            print(json.dumps({"elapsed": now - begun, "kernels": steps, "at": now}), flush=True)
torch.cuda.synchronize()
result = {"program": kind, "rate": steps / (time.monotonic() - begun), "unit": "steps/s", "steps": steps}
if "--profile" in sys.argv:
    result["busy_s_per_step"] = busy_seconds(step)
print(json.dumps(result))
