"""PyTorch: a few steps whose result is always the same, to be run with a tool attached.

    attached.py [--profile]

With `--profile` the steps run under PyTorch's own profiler, and the kernels that it saw are counted.
"""

import json
import sys

import torch
from torch import nn

STEPS = 12

torch.manual_seed(7)
torch.backends.cuda.matmul.allow_tf32 = False
model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 64)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, target = torch.randn(128, 256, device="cuda"), torch.randn(128, 64, device="cuda")
losses = []


def steps():
    for _ in range(STEPS):
        loss = nn.functional.mse_loss(model(x), target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())


found = {}
if "--profile" in sys.argv:
    from torch.profiler import ProfilerActivity, profile

    # What the profiler prepares at its first use is not of the program.
    with profile(activities=[ProfilerActivity.CUDA]):
        torch.ones(1, device="cuda").add_(1)
        torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        steps()
        torch.cuda.synchronize()
    kernels = [event for event in seen.events() if event.device_type.name == "CUDA" and not event.name.startswith(("Memcpy", "Memset"))]
    found = {"kernels": len(kernels), "ordered": all(event.time_range.start <= event.time_range.end for event in kernels)}
else:
    steps()
    torch.cuda.synchronize()
print(json.dumps({"program": "attached", "result": losses, "unit": "losses", **found}))
