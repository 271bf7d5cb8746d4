"""PyTorch: one word at a time through a half-precision transformer with a key-value cache.

The words are given, not chosen by the model, so that one rounding does not change all that follows.
"""

import json
import time

import torch

LAYERS, WIDTH, HEADS, WORDS, BATCH, LENGTH, ROUNDS = 16, 1024, 16, 4096, 4, 128, 4

torch.manual_seed(11)


def decode(kind):
    def weight(*shape):
        return (torch.randn(*shape, device="cuda") / shape[-1] ** 0.5).to(kind)

    words, out = weight(WORDS, WIDTH), weight(WORDS, WIDTH)
    layers = [[weight(3 * WIDTH, WIDTH), weight(WIDTH, WIDTH), weight(4 * WIDTH, WIDTH), weight(WIDTH, 4 * WIDTH)] for _ in range(LAYERS)]
    cache = torch.zeros(LAYERS, 2, BATCH, HEADS, LENGTH, WIDTH // HEADS, device="cuda", dtype=kind)
    text = torch.randint(0, WORDS, (BATCH, LENGTH), device="cuda")
    total = torch.zeros((), device="cuda", dtype=torch.float64)
    norm = torch.nn.functional.layer_norm
    for at in range(LENGTH):
        x = words[text[:, at]]
        for layer, (qkv, project, up, down) in enumerate(layers):
            q, k, v = (norm(x, (WIDTH,)) @ qkv.T).view(BATCH, 3, HEADS, 1, -1).unbind(1)
            cache[layer, 0, :, :, at : at + 1] = k
            cache[layer, 1, :, :, at : at + 1] = v
            seen = cache[layer, :, :, :, : at + 1]
            scores = (q @ seen[0].transpose(-1, -2)) / (WIDTH // HEADS) ** 0.5
            x = x + (scores.softmax(-1) @ seen[1]).reshape(BATCH, WIDTH) @ project.T
            x = x + torch.nn.functional.gelu(norm(x, (WIDTH,)) @ up.T) @ down.T
        total += (x @ out.T).double().abs().mean()
    return (total / LENGTH).item()


with torch.inference_mode():
    results = [decode(torch.bfloat16)]
    begun = time.perf_counter()
    for kind in [torch.float16, torch.bfloat16] * (ROUNDS // 2):
        results.append(decode(kind))
    seconds = time.perf_counter() - begun
print(
    json.dumps(
        {
            "program": "torch_decode",
            "rate": ROUNDS * LENGTH / seconds,
            "unit": "words/s",
            "result": results,
            "torch": torch.__version__,
        }
    )
)
