#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes tests/fixtures/safetensors with the safetensors package and PyTorch.

types.safetensors: "x_<dtype>" in each dtype and "fp32/x_<dtype>", the same values as PyTorch
converts them to float32; "rounding" in float32 with "rounding_f16" and "rounding_bf16", the same as
PyTorch rounds them. sharded/: a model in two shards with its index.
"""

import json
import pathlib

import torch
from safetensors.torch import save_file

DIRECTORY = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "safetensors"


def bit_patterns(dtype):
    """All 16-bit patterns but NaN, whose payload no one promises."""
    bits = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16)
    values = bits.view(dtype)
    return values[~torch.isnan(values)][::7].contiguous()


def rounding_inputs():
    """fp32 values at, just below and just above the ties of both narrow types, and extremes."""
    bits = []
    for base in (0x00000000, 0x00010000, 0x33000000, 0x33800000, 0x387FC000, 0x38800000,
                 0x3F800000, 0x3F801000, 0x3F808000, 0x477FE000, 0x477FF000, 0x47800000,
                 0x7F7F0000, 0x7F7FFFFF):
        for tie in (0x0, 0x1000, 0x2000, 0x3000, 0x8000, 0x18000):
            for step in (-1, 0, 1):
                pattern = base + tie + step
                if 0 <= pattern <= 0x7F800000:
                    bits += [pattern, pattern - 0x80000000]
    generator = torch.Generator().manual_seed(1)
    random = torch.randint(-2**31, 2**31 - 1, (4096,), generator=generator, dtype=torch.int64)
    values = torch.cat([torch.tensor(bits, dtype=torch.int64), random])
    values = values.to(torch.int32).view(torch.float32)
    return values[~torch.isnan(values)].contiguous()


def main():
    (DIRECTORY / "sharded").mkdir(parents=True, exist_ok=True)
    inputs = rounding_inputs()
    tensors = {
        "x_f64": torch.tensor([0.1, -1e300, 1e-300, 5e-45, 3.0000001], dtype=torch.float64),
        "x_f32": torch.tensor([[0.1, -0.0, 3.4e38], [1e-45, float("inf"), -7.0]]),
        "x_f16": bit_patterns(torch.float16),
        "x_bf16": bit_patterns(torch.bfloat16),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
        "ids": torch.arange(6, dtype=torch.int64).reshape(2, 3),
        "mask": torch.tensor([True, False, True]),
        "rounding": inputs,
        "rounding_f16": inputs.to(torch.float16),
        "rounding_bf16": inputs.to(torch.bfloat16),
        "naïve/名": torch.ones(2),
    }
    for name in ("x_f64", "x_f32", "x_f16", "x_bf16"):
        tensors["fp32/" + name] = tensors[name].to(torch.float32).clone()
    save_file(tensors, DIRECTORY / "types.safetensors", metadata={"format": "pt"})

    first = {"a.weight": torch.arange(12, dtype=torch.float32).reshape(4, 3)}
    second = {"b.weight": torch.arange(12, 24).to(torch.float16).reshape(4, 3),
              "b.bias": torch.tensor([0.5, -0.5])}
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    save_file(first, DIRECTORY / "sharded" / names[0], metadata={"format": "pt"})
    save_file(second, DIRECTORY / "sharded" / names[1], metadata={"format": "pt"})
    weight_map = {name: names[0] for name in first} | {name: names[1] for name in second}
    index = {"metadata": {"total_size": 12 * 4 + 12 * 2 + 2 * 4}, "weight_map": weight_map}
    (DIRECTORY / "sharded" / "model.safetensors.index.json").write_text(
        json.dumps(index, indent=2) + "\n")


if __name__ == "__main__":
    main()
