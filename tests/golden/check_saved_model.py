#!/usr/bin/env python3
"""Loads a model directory with transformers and compares its logits with those in an HDF5 file.

usage: check_saved_model.py DIRECTORY FILE.h5 [--group PATH] [--tolerance T]

FILE.h5 holds input_ids [B, T] and logits [B, T, V]. Exit status: 0 when
max |difference| / max |logit| is at most T, 1 when it is not or anything fails, 77 when
transformers, PyTorch or h5py is missing.
"""

import argparse
import sys

try:
    import h5py
    import numpy as np
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory")
    parser.add_argument("file")
    parser.add_argument("--group", default="/", help="where in the file the two data sets are")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    with h5py.File(arguments.file, "r") as file:
        input_ids = torch.from_numpy(file[arguments.group]["input_ids"][()].astype(np.int64))
        expected = file[arguments.group]["logits"][()].astype(np.float64)
    model, info = transformers.GPT2LMHeadModel.from_pretrained(
        arguments.directory, torch_dtype=torch.float32, local_files_only=True,
        attn_implementation="eager", output_loading_info=True)
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[problem]:
            print(f"{problem}: {info[problem]}")
            return 1
    with torch.no_grad():
        logits = model.double().eval()(input_ids).logits.numpy()
    if logits.shape != expected.shape:
        print(f"logits are {logits.shape}, expected {expected.shape}")
        return 1
    difference = np.abs(logits - expected).max() / np.abs(expected).max()
    print(f"max relative difference {difference:.3e}, tolerance {arguments.tolerance:.1e}")
    return 0 if difference <= arguments.tolerance else 1  # NaN fails


if __name__ == "__main__":
    sys.exit(main())
