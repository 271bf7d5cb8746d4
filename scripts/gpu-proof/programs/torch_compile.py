"""PyTorch: a compiled model, replayed as CUDA graphs (mode="reduce-overhead")."""

import json
import time

import torch
from torch import nn

STEPS, WARM_UP = 600, 20

torch.manual_seed(13)
torch.set_float32_matmul_precision("high")
model = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(2048, 2048), nn.GELU(), nn.LayerNorm(2048))]).cuda().eval()
compiled = torch.compile(model, mode="reduce-overhead")
x = torch.randn(256, 2048, device="cuda")
with torch.inference_mode():
    plain = model(x)
    for _ in range(WARM_UP):
        torch.compiler.cudagraph_mark_step_begin()
        y = compiled(x)
    difference = ((y - plain).abs().max() / plain.abs().max()).item()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(STEPS):
        torch.compiler.cudagraph_mark_step_begin()
        y = compiled(x)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begun
    result = [y.abs().mean().item(), (y * y).mean().item()]

skipped = torch._dynamo.utils.counters["inductor"].get("cudagraph_skips", 0)
print(
    json.dumps(
        {
            "program": "torch_compile",
            "rate": STEPS / seconds,
            "unit": "graphs/s",
            "result": result,
            "correct": difference < 0.02 and skipped == 0,
            "difference_to_eager": difference,
            "graphs_skipped": skipped,
            "torch": torch.__version__,
        }
    )
)
