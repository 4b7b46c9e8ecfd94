#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes tests/fixtures/tiny_bert: small BERTs and what transformers computes with them.

usage: make_bert_fixtures.py [DIRECTORY]

  model/      BertForSequenceClassification: 3 layers, 3 heads, 24 channels, 40 hidden, 21 positions,
              61 tokens, 2 segments, 5 classes, GELU by erf
  relu/       the same with 2 layers, ReLU, 3 segments, another epsilon, and 2 classes
  golden.h5   the reference values, computed in float64 from the stored weights, a group for each:

  input_ids, token_type_ids [S, B, T], lengths, labels [S, B]   S batches; tokens after a sample's
                                     length are padding
  logits [B, C], loss []             of the first batch; loss: mean over the samples
  gradients/NAME                     of that loss, by Hugging Face name
  training/...                       S AdamW steps from the stored weights, a batch each;
                                     attributes: its constants
      losses, gradient_norms [S], names, sums_of_squares [P]   as in make_gpt2_fixtures.py, without
                                     the keys' biases, which softmax does not feel
"""

import json
import pathlib
import shutil
import sys

import h5py
import numpy as np
import torch
import transformers

from make_gpt2_fixtures import write

BATCH, LENGTH, STEPS = 4, 17, 10
LENGTHS = ((17, 5, 1, 12), (3, 17, 9, 16))
LEARNING_RATE, CLIP_NORM = 1e-2, 1.0
BETA1, BETA2, EPSILON, WEIGHT_DECAY = 0.9, 0.999, 1e-8, 0.1


def randomized(model):
    """Gives biases, norms and embeddings values as random as those of matrices."""
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter)
        if "LayerNorm" in name:
            parameter.data = (1.0 if name.endswith("weight") else 0.0) + 0.3 * noise
        elif name.endswith("bias"):
            parameter.data = 0.2 * noise
        elif "embeddings" in name:
            parameter.data = 0.5 * noise
        else:
            parameter.data = noise / parameter[0].numel() ** 0.5
    return model


def random_model(seed, **shape):
    """A BERT whose biases, norms and positions are as random as its matrices."""
    config = transformers.BertConfig(
        hidden_size=24, intermediate_size=40, num_attention_heads=3, max_position_embeddings=21,
        vocab_size=61, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        attn_implementation="eager", **shape)
    torch.manual_seed(seed)
    model = transformers.BertForSequenceClassification(config)
    return randomized(model)


def load(directory):
    model = transformers.BertForSequenceClassification.from_pretrained(
        directory, attn_implementation="eager", local_files_only=True)
    return model.double().train()


def random_batches(generator, config):
    """Labels depend on the tokens; every second sample has a second text."""
    batches = []
    for step in range(STEPS):
        lengths = torch.tensor(LENGTHS[step % len(LENGTHS)])
        ids = torch.randint(1, config.vocab_size, (BATCH, LENGTH), generator=generator)
        segments = torch.zeros_like(ids)
        for b in range(0, BATCH, 2):
            segments[b, int(lengths[b]) // 2:int(lengths[b])] = config.type_vocab_size - 1
        for b in range(BATCH):
            ids[b, int(lengths[b]):] = 0
        batches.append((ids, segments, lengths, ids.sum(1) % config.num_labels))
    return batches


def run(model, batch):
    ids, segments, lengths, labels = batch
    mask = torch.arange(LENGTH)[None, :] < lengths[:, None]
    logits = model(input_ids=ids, token_type_ids=segments, attention_mask=mask.long()).logits
    return logits, torch.nn.functional.cross_entropy(logits, labels)


def write_gradients(group, model, batch, run):
    """Logits and loss of a batch, and the gradients of the loss."""
    logits, loss = run(model, batch)
    loss.backward()
    group["logits"], group["loss"] = logits.detach().numpy(), loss.item()
    for parameter, value in model.named_parameters():
        if value.requires_grad:
            write(group.require_group("gradients"), parameter, value.grad.numpy())


def write_training(group, name, model, batches, run, optimizer, unfelt=(".key.bias",), **constants):
    """A step of the optimizer for each batch; `constants` become attributes. The final values are
    those of parameters and running statistics, without those whose names end with one of `unfelt`."""
    losses, norms = [], []
    for batch in batches:
        optimizer.zero_grad()
        _, loss = run(model, batch)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM).item())
        losses.append(loss.item())
        optimizer.step()
    training = group.create_group(name)
    training.attrs.update(clip_norm=CLIP_NORM, weight_decay=WEIGHT_DECAY, **constants)
    training["losses"], training["gradient_norms"] = losses, norms
    final = {n: p.detach().numpy() for n, p in model.state_dict().items()
             if p.is_floating_point() and not n.endswith(tuple(unfelt))}
    training["names"] = json.dumps(list(final))
    training["sums_of_squares"] = [(value ** 2).sum() for value in final.values()]


def decays_except(*parts):
    """Decays what is neither a bias nor has one of these parts in its name."""
    return lambda name: not any(part in name.lower() for part in ("bias", *parts))


def write_adamw(group, model, batches, run, decays=decays_except("norm"), **options):
    optimizer = torch.optim.AdamW(
        [{"params": [p for n, p in model.named_parameters() if decays(n)],
          "weight_decay": WEIGHT_DECAY},
         {"params": [p for n, p in model.named_parameters() if not decays(n)], "weight_decay": 0}],
        lr=LEARNING_RATE, betas=(BETA1, BETA2), eps=EPSILON)
    write_training(group, "training", model, batches, run, optimizer, beta1=BETA1, beta2=BETA2,
                   epsilon=EPSILON, learning_rate=LEARNING_RATE, **options)


def write_model(file, directory, name, generator):
    model = load(directory / name)
    batches = random_batches(generator, model.config)
    group = file.create_group(name)
    for field, tensors in zip(("input_ids", "token_type_ids", "lengths", "labels"), zip(*batches)):
        write(group, field, torch.stack(tensors).numpy())
    write_gradients(group, model, batches[0], run)
    write_adamw(group, load(directory / name), batches, run)


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    default = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "tiny_bert"
    directory = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    names = {i: name for i, name in enumerate(("red", "green", "blue", "grey", "black"))}
    models = {
        "model": random_model(1, num_hidden_layers=3, id2label=names,
                              label2id={name: i for i, name in names.items()}),
        "relu": random_model(2, num_hidden_layers=2, hidden_act="relu", type_vocab_size=3,
                             layer_norm_eps=1e-6),
    }
    generator = torch.Generator().manual_seed(17)
    with h5py.File(directory / "golden.h5", "w", libver=("v110", "v110")) as file:
        for name, model in models.items():
            model.save_pretrained(directory / name)
            write_model(file, directory, name, generator)


if __name__ == "__main__":
    main()
