#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compares training steps of deltapipe with PyTorch's, both on one thread and from random weights.

usage: pytorch_benchmark.py TRAINING_BENCHMARK [--preset gpt2-124m|small] [--rounds N] [--steps N]

TRAINING_BENCHMARK is the executable of training_benchmark.cpp. The two sides run in turn, each in a
process of its own, for some rounds. Medians over all steps but each process's first two; processor
seconds hold also on a busy machine. PyTorch runs transformers' GPT2LMHeadModel with eager attention
and AdamW's faster variant, denormals flushed, AVX-512 kernels where the processor has them, and
jemalloc with huge pages where it is installed. Exit status 77: torch or transformers is missing.
"""

import argparse
import ctypes.util
import glob
import json
import os
import resource
import statistics
import subprocess
import sys
import time

# layers, heads, channels, vocabulary, positions, samples, tokens
PRESETS = {
    "gpt2-124m": (12, 12, 768, 50257, 1024, 4, 64),
    "small": (6, 6, 384, 256, 256, 4, 256),
}
WARM_UP = 2


def peak_kilobytes():
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))


def processor_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def pytorch_side(shape, steps, foreach):
    import torch
    import transformers
    layers, heads, channels, vocabulary, positions, samples, tokens = shape
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=layers, n_head=heads, n_embd=channels, vocab_size=vocabulary,
        n_positions=positions, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=0, use_cache=False, attn_implementation="eager")).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=foreach)
    wall, processor = [], []
    for _ in range(steps):
        ids = torch.randint(vocabulary, (samples, tokens))
        targets = torch.randint(vocabulary, (samples, tokens))
        started = time.perf_counter(), processor_seconds()
        optimizer.zero_grad(set_to_none=True)
        logits = model(ids).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        wall.append(time.perf_counter() - started[0])
        processor.append(processor_seconds() - started[1])
    print(json.dumps({"wall_seconds": wall, "processor_seconds": processor,
                      "last_loss": loss.item(), "peak_kilobytes": peak_kilobytes()}))


def find_jemalloc():
    found = glob.glob("/usr/lib/*/libjemalloc.so*") + glob.glob("/usr/lib*/libjemalloc.so*")
    return found[0] if found else ctypes.util.find_library("jemalloc")


def environment(pytorch):
    values = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    if not pytorch:
        return values
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as info:
        if "avx512f" in info.read():
            values["ATEN_CPU_CAPABILITY"] = "avx512"
    jemalloc = find_jemalloc()
    if jemalloc:
        values["LD_PRELOAD"] = jemalloc
        values["MALLOC_CONF"] = ("thp:always,dirty_decay_ms:-1,muzzy_decay_ms:-1,"
                                 "oversize_threshold:0")
    return values


def run(command, pytorch):
    done = subprocess.run(command, env=environment(pytorch), stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def pytorch_command(arguments, steps, foreach):
    return [sys.executable, os.path.abspath(__file__), "-", "--preset", arguments.preset,
            "--steps", str(steps), "--pytorch-side", "foreach" if foreach else "single"]


def summary(runs, tokens):
    later = {key: [value for r in runs for value in r[key][WARM_UP:]]
             for key in ("wall_seconds", "processor_seconds")}
    wall = statistics.median(later["wall_seconds"])
    processor = statistics.median(later["processor_seconds"])
    return {"wall_seconds_a_step": wall, "processor_seconds_a_step": processor,
            "tokens_per_second": tokens / wall, "tokens_per_processor_second": tokens / processor,
            "peak_megabytes": max(r["peak_kilobytes"] for r in runs) / 1024}


def missing_packages():
    missing = []
    for package in ("torch", "transformers"):
        try:
            __import__(package)
        except ImportError:
            missing.append(package)
    return missing


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("benchmark")
    parser.add_argument("--preset", choices=PRESETS, default="gpt2-124m")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--pytorch-side", choices=("foreach", "single"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.steps <= WARM_UP:
        parser.error(f"--steps must be more than {WARM_UP}, which warm up")
    shape = PRESETS[arguments.preset]
    if arguments.pytorch_side:
        pytorch_side(shape, arguments.steps, arguments.pytorch_side == "foreach")
        return 0
    missing = missing_packages()
    if missing:
        print("not installed: " + ", ".join(missing) + "; scripts/setup_python.sh installs them",
              file=sys.stderr)
        return 77

    def cost(foreach):
        made = run(pytorch_command(arguments, WARM_UP + 2, foreach), True)
        return min(made["processor_seconds"][WARM_UP:])
    foreach = cost(True) < cost(False)

    ours, theirs = [], []
    command = [arguments.benchmark] + [str(n) for n in shape] + [str(arguments.steps)]
    for _ in range(arguments.rounds):
        ours.append(run(command, False))
        theirs.append(run(pytorch_command(arguments, arguments.steps, foreach), True))
    tokens = shape[5] * shape[6]
    result = {"preset": arguments.preset, "foreach": foreach,
              "jemalloc": bool(find_jemalloc()),
              "deltapipe": summary(ours, tokens), "pytorch": summary(theirs, tokens)}
    mine, peer = result["deltapipe"], result["pytorch"]
    result["speed_by_wall"] = mine["tokens_per_second"] / peer["tokens_per_second"]
    result["speed_by_processor"] = (mine["tokens_per_processor_second"] /
                                    peer["tokens_per_processor_second"])
    result["memory"] = mine["peak_megabytes"] / peer["peak_megabytes"]
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
