"""The programs that Sluice was tuned on, as steps that are run over and over. Random weights; nothing is downloaded.

Each function makes a `Work`: what one step is, whether each one waits for its result, and what it was made with.
"""

import math

import torch
from torch import nn
from torch.nn import functional
from work import Work

torch.manual_seed(7)


# --- training


class Transformer(nn.Module):
    """Words in, words out."""

    def __init__(self, layers, width, heads, words, length):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, words)

    def forward(self, text):
        places = torch.arange(text.shape[1], device=text.device)
        return self.out(self.layers(self.words(text) + self.places(places)))


def language_training(layers, width, batch, length, words=8192, wrap=lambda model: model):
    """Mixed precision, AdamW over all tensors at once; nothing in a step waits for the device."""
    model = Transformer(layers, width, max(width // 64, 1), words, length).cuda()
    model = wrap(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    text = torch.randint(0, words, (batch, length + 1), device="cuda")

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            found = model(text[:, :-1])
            loss = functional.cross_entropy(found.flatten(0, 1).float(), text[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss

    return step


def train_large():
    """About 70 ms a step on an H200, launched far ahead of the device."""
    return Work(language_training(layers=6, width=2048, batch=32, length=512))


def train_small():
    """About 11 ms a step: the host launches as fast as it can, and the device waits for it."""
    return Work(language_training(layers=8, width=512, batch=8, length=128, words=2048))


def convnet():
    """A residual network on pictures, mixed precision with a scaled loss, channels last."""
    try:
        import torchvision

        model, made_with = torchvision.models.resnet50(weights=None), f"torchvision {torchvision.__version__} resnet50"
    except ImportError:
        model, made_with = residual_network(), "plain torch in the shape of resnet50: torchvision is missing"
    model = model.cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=True)
    scaler = torch.amp.GradScaler("cuda")
    pictures = torch.randn(64, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (64,), device="cuda")

    def step():
        with torch.autocast("cuda", dtype=torch.float16):
            loss = functional.cross_entropy(model(pictures).float(), labels)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Work(step, made_with=made_with)


class Bottleneck(nn.Module):
    def __init__(self, inside, width, stride):
        super().__init__()
        narrow = width // 4
        self.body = nn.Sequential(
            nn.Conv2d(inside, narrow, 1, bias=False), nn.BatchNorm2d(narrow), nn.ReLU(inplace=True),
            nn.Conv2d(narrow, narrow, 3, stride, 1, bias=False), nn.BatchNorm2d(narrow), nn.ReLU(inplace=True),
            nn.Conv2d(narrow, width, 1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip
        self.beside = nn.Identity()
        if stride != 1 or inside != width:
            self.beside = nn.Sequential(nn.Conv2d(inside, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        return functional.relu(self.body(x) + self.beside(x))


def residual_network():
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inside = 64
    for width, count, stride in [(256, 3, 1), (512, 4, 2), (1024, 6, 2), (2048, 3, 2)]:
        for number in range(count):
            layers.append(Bottleneck(inside, width, stride if number == 0 else 1))
            inside = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


# --- inference


def word_step(layers, width, batch, length):
    """One word through a half-precision transformer with a key-value cache; `step(at)` fills place `at`."""
    heads = width // 64

    def weight(*shape):
        return torch.randn(*shape, device="cuda", dtype=torch.float16) / math.sqrt(shape[-1])

    blocks = [[weight(3 * width, width), weight(width, width), weight(4 * width, width), weight(width, 4 * width)] for _ in range(layers)]
    words = weight(4096, width)
    cache = torch.zeros(layers, 2, batch, heads, length, 64, device="cuda", dtype=torch.float16)
    word = torch.zeros(batch, dtype=torch.long, device="cuda")

    @torch.inference_mode()
    def step(at=0):
        x = words[word]
        for layer, (qkv, project, up, down) in enumerate(blocks):
            q, k, v = (functional.layer_norm(x, (width,)) @ qkv.T).view(batch, 3, heads, 1, 64).unbind(1)
            cache[layer, 0, :, :, at : at + 1] = k
            cache[layer, 1, :, :, at : at + 1] = v
            scores = (q @ cache[layer, 0].transpose(-1, -2)) / 8
            x = x + (scores.softmax(-1) @ cache[layer, 1]).reshape(batch, width) @ project.T
            x = x + functional.gelu(functional.layer_norm(x, (width,)) @ up.T) @ down.T
        word.copy_((x @ words.T).argmax(-1))
        return word

    return step


def decode():
    """Eager, batch 1; the program looks at each word before it asks for the next."""
    length, one, at = 256, word_step(layers=16, width=1024, batch=1, length=256), 0

    def step():
        nonlocal at
        at = (at + 1) % length
        return one(at).item()

    return Work(step, waits=True, unit="words")


def graph():
    """A decode step as a CUDA graph, about 0.8 ms a word."""
    one = word_step(layers=12, width=2048, batch=1, length=256)
    for _ in range(3):
        one()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        one()
    return Work(captured.replay, waits=True, unit="words")


def generate():
    """Sixteen words at a time by the library's own loop."""
    text = torch.randint(0, 8192, (4, 128), device="cuda")
    try:
        import transformers
    except ImportError:
        one = word_step(layers=8, width=1024, batch=4, length=256)

        def plain():
            for at in range(16):
                one(128 + at).tolist()

        return Work(plain, made_with="plain torch in the shape of Llama: transformers is missing", unit="times 16 words")
    config = transformers.LlamaConfig(
        vocab_size=8192,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=16,
        max_position_embeddings=1024,
    )
    model = transformers.LlamaForCausalLM(config).to(device="cuda", dtype=torch.float16).eval()
    mask = torch.ones_like(text)

    @torch.inference_mode()
    def step():
        return model.generate(input_ids=text, attention_mask=mask, max_new_tokens=16, min_new_tokens=16, do_sample=False, pad_token_id=0)

    return Work(step, made_with=f"transformers {transformers.__version__} LlamaForCausalLM", unit="times 16 words")


def forward():
    """What a server does for one request: about 4 ms on an H200."""
    layer = nn.TransformerEncoderLayer(2048, 32, 8192, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).to(device="cuda", dtype=torch.bfloat16).eval()
    x = torch.randn(8, 192, 2048, device="cuda", dtype=torch.bfloat16)

    @torch.inference_mode()
    def step():
        return model(x)

    return Work(step, waits=True, unit="requests")


WORKS = {
    "train-large": train_large,
    "train-small": train_small,
    "decode": decode,
    "graph": graph,
    "generate": generate,
    "convnet": convnet,
    "forward": forward,
}
