"""PyTorch: takes memory until it is refused, and tells how."""

import json

import torch

held, error, message = [], "none", ""
try:
    for _ in range(256):
        held.append(torch.empty(32 << 20, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError as refused:
    error, message = "OutOfMemoryError", str(refused)
except RuntimeError as refused:
    error, message = type(refused).__name__, str(refused)
granted = sum(tensor.numel() for tensor in held)
# The program goes on after a refusal: what it gives back can be used again.
held.clear()
torch.cuda.empty_cache()
works = torch.ones(1 << 20, device="cuda").sum().item() == 1 << 20
print(json.dumps({"error": error, "message": message.splitlines()[0] if message else "", "granted_bytes": granted, "works_afterwards": works}))
