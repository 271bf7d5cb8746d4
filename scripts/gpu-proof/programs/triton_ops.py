"""Triton: a kernel of its own that multiplies matrices, compiled when first called."""

import json
import time

import torch
import triton
import triton.language as tl

STEPS, WARM_UP, WIDTH, BLOCK = 600, 10, 2048, 64


@triton.jit
def product(a, b, c, width, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for at in range(0, width, BLOCK):
        inner = at + tl.arange(0, BLOCK)
        left = tl.load(a + rows[:, None] * width + inner[None, :])
        right = tl.load(b + inner[:, None] * width + columns[None, :])
        sums += tl.dot(left, right)
    tl.store(c + rows[:, None] * width + columns[None, :], sums)


torch.manual_seed(17)
a = torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.float16) / WIDTH**0.5
b = torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.float16)
c = torch.empty(WIDTH, WIDTH, device="cuda", dtype=torch.float32)
grid = (WIDTH // BLOCK, WIDTH // BLOCK)
for _ in range(WARM_UP):
    product[grid](a, b, c, WIDTH, BLOCK=BLOCK)
wanted = a.float() @ b.float()
difference = ((c - wanted).abs().max() / wanted.abs().max()).item()
torch.cuda.synchronize()
begun = time.perf_counter()
for _ in range(STEPS):
    product[grid](a, b, c, WIDTH, BLOCK=BLOCK)
torch.cuda.synchronize()
seconds = time.perf_counter() - begun
print(
    json.dumps(
        {
            "program": "triton_ops",
            "rate": STEPS / seconds,
            "unit": "products/s",
            "result": [c.abs().mean().item(), (c * c).mean().item()],
            "correct": difference < 0.01,
            "triton": triton.__version__,
        }
    )
)
