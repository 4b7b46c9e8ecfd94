#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Seconds of training steps of a GPT-2 in PyTorch on random tokens, as JSON: the other side of
training_benchmark. Part of scripts/benchmark.py, which sets the environment.

A plain GPT-2 as one writes it for speed: scaled_dot_product_attention, fused AdamW, tied
embeddings, no dropout, gradients clipped to norm 1, denormals flushed; in bf16 with autocast, whose
parameters stay fp32. Exit status 77: no PyTorch,
or one older than 2.4, whose fused AdamW is for GPUs only.
"""

import argparse
import json
import resource
import sys
import time

try:
    import torch
    from torch import nn
    from torch.nn import functional
except ImportError as error:
    print(f"skipped: {error}", file=sys.stderr)
    sys.exit(77)
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 4):
    print(f"skipped: PyTorch {torch.__version__} is older than 2.4", file=sys.stderr)
    sys.exit(77)


class Block(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.qkv, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)

    def attention(self, x):
        samples, tokens, channels = x.shape
        q, k, v = (part.view(samples, tokens, self.heads, -1).transpose(1, 2)
                   for part in self.qkv(x).split(channels, dim=2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(samples, tokens, channels))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, layers, heads, channels, vocabulary, positions):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, channels)
        self.positions = nn.Embedding(positions, channels)
        self.blocks = nn.ModuleList(Block(channels, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(channels)
        self.apply(self.initialise)

    @staticmethod
    def initialise(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def peak_bytes():
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


def processor_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def train(model, optimizer, arguments):
    rounds = arguments.precision == "bf16"
    *_, vocabulary, _, samples, tokens = arguments.shape
    ids, targets = torch.randint(vocabulary, (2, arguments.micro_batches, samples, tokens),
                                 device=arguments.device)
    total = 0.0
    for micro_batch in range(arguments.micro_batches):
        with torch.autocast(arguments.device, torch.bfloat16, enabled=rounds):
            loss = model(ids[micro_batch], targets[micro_batch]) / arguments.micro_batches
        loss.backward()
        total += loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", type=int, nargs=7, help="as of training_benchmark")
    parser.add_argument("steps", type=int)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="fp32")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--compile", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high" if arguments.precision == "tf32" else "highest")
    model = Gpt2(*arguments.shape[:5]).to(arguments.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    step = torch.compile(model) if arguments.compile else model
    wall, processor = [], []
    for _ in range(arguments.steps):
        started = time.perf_counter(), processor_seconds()
        loss = train(step, optimizer, arguments)
        wall.append(time.perf_counter() - started[0])
        processor.append(processor_seconds() - started[1])
    peak = peak_bytes() if arguments.device == "cpu" else torch.cuda.max_memory_allocated()
    print(json.dumps({"wall_seconds": wall, "processor_seconds": processor, "last_loss": loss,
                      "peak_bytes": peak, "version": torch.__version__}))


if __name__ == "__main__":
    main()
