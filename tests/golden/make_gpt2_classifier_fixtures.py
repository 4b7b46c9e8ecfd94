#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes tests/fixtures/tiny_gpt2_classifier: a small GPT-2 that classifies, and what transformers
computes with it.

usage: make_gpt2_classifier_fixtures.py [DIRECTORY]

  model/      GPT2ForSequenceClassification: 3 layers, 3 heads, 24 channels, 40 hidden, 21 positions,
              61 tokens, 5 classes; token 0 is padding
  golden.h5   as of make_bert_fixtures.py, in the group `model`
"""

import pathlib
import shutil
import sys

import h5py
import torch
import transformers

from make_bert_fixtures import decays_except, random_batches, run, write_adamw, write_gradients
from make_gpt2_fixtures import write


def random_model(seed):
    """Biases and norms are as random as matrices."""
    names = {i: name for i, name in enumerate(("red", "green", "blue", "grey", "black"))}
    config = transformers.GPT2Config(
        n_embd=24, n_inner=40, n_head=3, n_layer=3, n_positions=21, vocab_size=61, embd_pdrop=0.0,
        attn_pdrop=0.0, resid_pdrop=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=1,
        id2label=names, label2id={name: i for i, name in names.items()})
    torch.manual_seed(seed)
    model = transformers.GPT2ForSequenceClassification(config)
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter)
        if "ln_" in name:
            parameter.data = (1.0 if name.endswith("weight") else 0.0) + 0.3 * noise
        elif name.endswith("bias"):
            parameter.data = 0.2 * noise
        elif "wte" in name or "wpe" in name:
            parameter.data = 0.5 * noise
        else:
            parameter.data = noise / max(parameter.shape) ** 0.5
    return model


def load(directory):
    model = transformers.GPT2ForSequenceClassification.from_pretrained(
        directory, attn_implementation="eager", local_files_only=True)
    return model.double().train()


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    default = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "tiny_gpt2_classifier"
    directory = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    random_model(1).save_pretrained(directory / "model")
    generator = torch.Generator().manual_seed(23)

    def run_model(model, batch):
        return run(lambda token_type_ids, **inputs: model(**inputs), batch)

    with h5py.File(directory / "golden.h5", "w", libver=("v110", "v110")) as file:
        model = load(directory / "model")
        model.config.type_vocab_size = 1
        batches = random_batches(generator, model.config)
        group = file.create_group("model")
        for field, tensors in zip(("input_ids", "token_type_ids", "lengths", "labels"),
                                  zip(*batches)):
            write(group, field, torch.stack(tensors).numpy())
        write_gradients(group, model, batches[0], run_model)
        # Softmax does not feel the keys' part of c_attn.bias.
        write_adamw(group, load(directory / "model"), batches, run_model,
                    decays=decays_except("ln_", "wpe"), unfelt=(".c_attn.bias",))


if __name__ == "__main__":
    main()
