#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes tests/fixtures/codec/golden.h5: what PyTorch makes of TopK and of memories of both ends.

usage: make_codec_fixtures.py [DIRECTORY]

  topk/NAME/x [T, C]
  topk/NAME/N/        attributes part, k; of tied values torch.topk takes any, deltapipe the first
      largest [<= k]  magnitudes that torch.topk finds, descending, without zeros
      positions       of the values sent, ascending (int32), their ties by a stable sort
      values          those values; an infinity is the largest number. NaN counts as zero, and
                      zeros are never sent
      halves          of some: the values through torch.float16, scaled by 2^exponent (attribute) so
                      that the largest of them lies in float16's top binade
  visits/x [V, B, T, C]         activations of the same samples at V visits
  visits/NAME/        attributes codec, feedback, part or bits
      seen [V, B, T, C]         what the receiver sees
      kept [B, T, C]            of each sample after the last visit: e of ef and mixed, g of ef21,
                                m of AQ-SGD

All in float32, whose sums and products here are one rounding each: results are exact.
"""

import pathlib
import sys

import h5py
import torch

LARGEST = torch.finfo(torch.float32).max
VISITS, SAMPLES, TOKENS, CHANNELS = 5, 2, 3, 19
PART, BITS = 0.15, 3
PARTS = (1.0, 0.5, 0.1, 0.005)


def magnitudes(x):
    return x.abs().nan_to_num(nan=0.0, posinf=LARGEST)


def count_of(part, x):
    return max(1, min(x.numel(), int(part * x.numel() + 0.5)))


def largest_positions(x, k):
    """Ascending positions of the k largest |x|, without zeros; checked against torch.topk."""
    size = magnitudes(x.flatten())
    top = torch.topk(size, k)
    order = torch.sort(size, descending=True, stable=True).indices[:k]
    assert torch.equal(size[order], top.values)
    above = top.indices[top.values > top.values[-1]]
    assert set(above.tolist()) <= set(order.tolist())
    if (size == top.values[-1]).sum() == (top.values == top.values[-1]).sum():
        assert set(order.tolist()) == set(top.indices.tolist())
    return order[size[order] > 0].sort().values, top.values[top.values > 0]


def topk(x, k):
    """x where it is one of the k largest, else 0."""
    positions, _ = largest_positions(x, k)
    sparse = torch.zeros_like(x.flatten())
    sparse[positions] = x.flatten()[positions].clamp(-LARGEST, LARGEST)
    return sparse.view_as(x)


def quantize(y, bits):
    """Symmetric levels, nearest, a scale per token: max|y| / L, rounded up to 8 fraction bits."""
    levels = 2 ** (bits - 1) - 1
    scale = (y.abs().amax(-1, keepdim=True) / levels).view(torch.int32)
    scale = ((scale + 0x7FFF) & ~0x7FFF).view(torch.float32)
    ratio = y.double() / scale.double()
    assert ((ratio - ratio.floor() - 0.5).abs() > 1e-5).all()  # no matter how it is divided
    return ratio.round().clamp(-levels, levels).float() * scale


def halves(values):
    """Through float16 at the largest power of two at which nothing overflows."""
    exponent = 40
    while not (values.double() * 2.0**exponent).half().isfinite().all():
        exponent -= 1
    return ((values.double() * 2.0**exponent).half().double() * 2.0**-exponent).float(), exponent


def contents(generator):
    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    def levels(*shape):
        return torch.randint(-2, 3, shape, generator=generator).float()

    special = normal(21, 13)
    special.view(-1)[torch.tensor([5, 77, 200])] = torch.nan
    special.view(-1)[torch.tensor([0, 130])] = torch.inf
    special.view(-1)[torch.tensor([129, 272])] = -torch.inf
    special.view(-1)[torch.tensor([6, 7])] = torch.tensor([LARGEST, -LARGEST])
    mostly_zeros = torch.zeros(17, 23)
    mostly_zeros.view(-1)[torch.tensor([3, 100, 101, 390])] = torch.tensor([1.0, -2, 2, 1e-42])
    clustered = normal(9, 31)
    clustered[4] *= 100
    sizes = torch.ldexp(normal(13, 37), torch.randint(-120, 120, (13, 37), generator=generator))
    return {
        "one": normal(1, 1), "seven": normal(1, 7), "odd": normal(11, 61),
        "five_levels": levels(19, 37), "signs": levels(5, 11).sign(),
        "all_equal": torch.full((7, 11), -0.25), "zeros": torch.tensor([[0.0, -0.0, 0.0]]),
        "mostly_zeros": mostly_zeros, "nan_and_infinities": special, "clustered": clustered,
        "all_sizes": sizes,
    }


def write(group, name, values):
    values = values.to(torch.int32) if values.dtype == torch.int64 else values.float()
    options = {}
    if values.numel() > 200:
        options = {"compression": "gzip", "compression_opts": 9, "shuffle": True,
                   "chunks": tuple(values.shape)}
    group.create_dataset(name, data=values.numpy(), track_times=False, **options)


def write_topk(file, generator):
    for name, x in contents(generator).items():
        content = file.create_group(f"topk/{name}")
        write(content, "x", x)
        for number, part in enumerate(PARTS):
            group = content.create_group(str(number))
            k = count_of(part, x)
            group.attrs["part"], group.attrs["k"] = part, k
            positions, largest = largest_positions(x, k)
            values = x.flatten()[positions].clamp(-LARGEST, LARGEST)
            write(group, "largest", largest)
            write(group, "positions", positions)
            write(group, "values", values)
            if name in ("odd", "clustered", "five_levels") and part in (0.1, 1.0):
                through, group.attrs["exponent"] = halves(values)
                write(group, "halves", through)


def ef(codec):
    def visit(x, e):
        y = x + (0 if e is None else e)
        c = codec(y)
        return c, y - c
    return visit


def ef21(codec):
    def visit(x, g):
        g = torch.zeros_like(x) if g is None else g
        g = g + codec(x - g)
        return g, g
    return visit


def aqsgd(codec):
    def visit(x, m):
        m = x if m is None else m + codec(x - m)
        return m, m
    return visit


def mixed(k):
    def visit(x, e):
        if e is None:
            chosen, _ = largest_positions(x, k)
            e = torch.zeros_like(x)
        else:
            of_x, _ = largest_positions(x, k - k // 2)
            elsewhere = e.flatten().clone()
            elsewhere[of_x] = 0
            of_e, _ = largest_positions(elsewhere, k // 2)
            assert len(of_e) == k // 2
            chosen = torch.cat([of_x, of_e])
        c = torch.zeros_like(x).flatten()
        c[chosen] = (x + e).flatten()[chosen]
        assert (c[chosen] != 0).all()
        return c.view_as(x), x + e - c.view_as(x)
    return visit


def write_visits(file, generator):
    start = torch.randn(SAMPLES, TOKENS, CHANNELS, generator=generator)
    steps = 0.4 * torch.randn(VISITS, SAMPLES, TOKENS, CHANNELS, generator=generator)
    x_VBTC = start + steps.cumsum(0)
    visits = file.create_group("visits")
    write(visits, "x", x_VBTC)
    k = count_of(PART, x_VBTC[0, 0])

    def sparse(y):
        return topk(y, k)

    def coded(y):
        return quantize(y, BITS)

    methods = {("topk", "ef"): ef(sparse), ("topk", "ef21"): ef21(sparse),
               ("topk", "mixed"): mixed(k), ("topk_delta", "none"): aqsgd(sparse),
               ("quantize", "ef"): ef(coded), ("quantize", "ef21"): ef21(coded),
               ("delta", "none"): aqsgd(coded)}
    for (codec, feedback), visit in methods.items():
        kept, seen = [None] * SAMPLES, torch.empty_like(x_VBTC)
        for v in range(VISITS):
            for b in range(SAMPLES):
                seen[v, b], kept[b] = visit(x_VBTC[v, b], kept[b])
        group = visits.create_group(f"{codec}_{feedback}")
        group.attrs.update(codec=codec, feedback=feedback, part=PART, bits=BITS)
        write(group, "seen", seen)
        write(group, "kept", torch.stack(kept))


def main():
    torch.use_deterministic_algorithms(True)
    default = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "codec"
    directory = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    directory.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(23)
    with h5py.File(directory / "golden.h5", "w", libver=("v110", "v110")) as file:
        write_topk(file, generator)
        write_visits(file, generator)


if __name__ == "__main__":
    main()
