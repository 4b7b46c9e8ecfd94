#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes tests/fixtures/tiny_deberta: small DeBERTas and what transformers computes with them.

usage: make_deberta_fixtures.py [DIRECTORY]

  v3/         DebertaV2ForSequenceClassification as DeBERTa-v3 has it: 3 layers, 2 heads,
              24 channels, 4 buckets for up to 16 tokens, projections shared, relative embeddings
              normalised, 5 classes
  v2/         the same with the convolution of DeBERTa-v2-xlarge after the first layer, 2 classes
  separate/   separate projections of relative positions, a table of absolute positions and one of
              2 segments, a convolution of 5 tokens, a position for every distance, no norm
  c2p/, p2c/  one kind of scores only, with separate and with shared projections
              (heads are as wide as makes the scale of scores, which transformers rounds to
              float32, a whole number)
  golden.h5   as of make_bert_fixtures.py; the relative embeddings and their norm are frozen, and
              trained in the groups trained_NAME. Final values are without the biases that softmax
              does not feel
  buckets     row_BUCKETS_LONGEST: the rows of distances -699 ... 699 by transformers
"""

import pathlib
import shutil
import sys

import h5py
import torch
import transformers
from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position

from make_bert_fixtures import random_batches, randomized, run, write_adamw, write_gradients
from make_gpt2_fixtures import write

RELATIVE = ("rel_embeddings", "encoder.LayerNorm")
BUCKETS = ((256, 512), (4, 16), (6, 20), (7, 33), (2, 9), (128, 512), (256, 256), (-1, 24))
DISTANCES = 700


def random_model(seed, **shape):
    """A DeBERTa whose biases, norms and positions are as random as its matrices."""
    config = transformers.DebertaV2Config(
        hidden_size=24, intermediate_size=40, max_position_embeddings=21, vocab_size=61,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        relative_attention=True, layer_norm_eps=1e-7, pooler_hidden_size=24, **shape)
    torch.manual_seed(seed)
    model = transformers.DebertaV2ForSequenceClassification(config)
    return randomized(model)


def load(directory, trains_relative):
    model = transformers.DebertaV2ForSequenceClassification.from_pretrained(
        directory, local_files_only=True).double().train()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trains_relative or not any(part in name for part in RELATIVE))
    return model


def unfelt(config):
    """Biases that add the same to all scores of a query."""
    if getattr(config, "share_att_key", False):
        return () if "p2c" in config.pos_att_type else (".key_proj.bias",)
    return (".pos_key_proj.bias",) + (() if "p2c" in config.pos_att_type else (".key_proj.bias",))


def batches_of(generator, config):
    if config.type_vocab_size > 0:
        return random_batches(generator, config)
    config.type_vocab_size = 1  # all segments are 0
    batches = random_batches(generator, config)
    config.type_vocab_size = 0
    return batches


def write_model(file, directory, name, generator, trains_relative):
    model = load(directory / name, trains_relative)
    batches = batches_of(generator, model.config)
    group = file.create_group(f"trained_{name}" if trains_relative else name)
    for field, tensors in zip(("input_ids", "token_type_ids", "lengths", "labels"), zip(*batches)):
        write(group, field, torch.stack(tensors).numpy())
    write_gradients(group, model, batches[0], run)
    write_adamw(group, load(directory / name, trains_relative), batches, run,
                unfelt=unfelt(model.config))


def write_buckets(file):
    group = file.create_group("buckets")
    tokens = torch.zeros(1, DISTANCES, 1)
    for buckets, longest in BUCKETS:
        try:
            relative = build_relative_position(tokens, tokens, buckets, longest)
        except (TypeError, AttributeError):  # transformers before 4.47
            relative = build_relative_position(DISTANCES, DISTANCES, buckets, longest)
        span = buckets if buckets > 0 else longest
        rows = torch.clamp(torch.as_tensor(relative).reshape(DISTANCES, DISTANCES) + span, 0, 2 * span - 1)
        of_distance = torch.cat([rows[0, 1:].flip(0), rows[:, 0]])
        write(group, f"row_{buckets}_{longest}", of_distance.int().numpy())


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    default = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "tiny_deberta"
    directory = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    names = {i: name for i, name in enumerate(("red", "green", "blue", "grey", "black"))}
    v3 = {"position_biased_input": False, "share_att_key": True, "norm_rel_ebd": "layer_norm",
          "pos_att_type": ["p2c", "c2p"], "position_buckets": 4, "max_relative_positions": 16}
    both = {**v3, "num_attention_heads": 2}
    models = {
        "v3": random_model(1, num_hidden_layers=3, id2label=names,
                           label2id={name: i for i, name in names.items()}, **both),
        "v2": random_model(2, num_hidden_layers=2, conv_kernel_size=3, conv_act="gelu", **both),
        "separate": random_model(3, num_hidden_layers=2, num_attention_heads=2, conv_kernel_size=5, conv_act="relu",
                                 hidden_act="gelu_new", type_vocab_size=2,
                                 pos_att_type=["c2p", "p2c"], cls_dropout=0.0),
        "c2p": random_model(4, num_hidden_layers=1, num_attention_heads=3, position_biased_input=False,
                            pos_att_type=["c2p"], position_buckets=6, max_relative_positions=20),
        "p2c": random_model(5, num_hidden_layers=1, num_attention_heads=3,
                            **{**v3, "pos_att_type": ["p2c"]}),
    }
    generator = torch.Generator().manual_seed(19)
    with h5py.File(directory / "golden.h5", "w", libver=("v110", "v110")) as file:
        for name, model in models.items():
            model.save_pretrained(directory / name)
            write_model(file, directory, name, generator, False)
        for name in models:
            write_model(file, directory, name, generator, True)
        write_buckets(file)


if __name__ == "__main__":
    main()
