"""PyTorch: trains a small transformer in single precision; the loss on the way is the result."""

import json
import time

import torch
from torch import nn

STEPS, WARM_UP, WIDTH, LENGTH, BATCH, WORDS = 300, 20, 256, 128, 32, 512

torch.manual_seed(7)
torch.backends.cuda.matmul.allow_tf32 = False
# The faster forms of attention add up their gradients in changing order.
torch.backends.cuda.enable_flash_sdp(False)
torch.backends.cuda.enable_mem_efficient_sdp(False)
torch.backends.cuda.enable_cudnn_sdp(False)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, text):
        return self.out(self.layers(self.words(text)))


model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
# Each word follows from the one before, so that there is something to learn.
text = (torch.arange(LENGTH + 1, device="cuda")[None, :] * 5 + torch.arange(BATCH, device="cuda")[:, None] * 17) % WORDS
losses = []
for step in range(STEPS):
    if step == WARM_UP:
        torch.cuda.synchronize()
        begun = time.perf_counter()
    loss = nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step % 50 == 49:
        losses.append(loss.item())
torch.cuda.synchronize()
seconds = time.perf_counter() - begun
print(
    json.dumps(
        {
            "program": "torch_train",
            "rate": (STEPS - WARM_UP) / seconds,
            "unit": "steps/s",
            "result": losses,
            "correct": losses[-1] < losses[0],
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name(),
            "memory_total": torch.cuda.mem_get_info()[1],
        }
    )
)
