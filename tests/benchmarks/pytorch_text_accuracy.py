#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Trains the classifier of inputs/quickstart_text.toml in PyTorch, from random weights and with the
same data, tokens and schedule, and prints the accuracy of each seed as JSON: the other side of
`deltapipe train`. MODEL is the directory of a model that deltapipe saved, for its configuration and
tokenizer; its weights are not used. Exit status 77: no PyTorch or no transformers.

usage: pytorch_text_accuracy.py MODEL [--data DIRECTORY] [--seeds N]
"""

import argparse
import csv
import json
import pathlib
import sys
import time

from pytorch_training import torch

try:
    import transformers
except ImportError:
    print("transformers is not installed", file=sys.stderr)
    sys.exit(77)

# The settings of the deck.
SAMPLES, EPOCHS, BATCH, TOKENS = 8000, 4, 32, 32
RATE, WARM_UP, DECAY, CLIP = 1e-3, 50, 0.01, 1.0


def read(path, tokenizer, label_ids):
    """Token ids [N, T] with the token that ends texts around them, lengths and labels."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    end = tokenizer.eos_token_id
    ids = torch.zeros(len(rows), TOKENS, dtype=torch.long)
    lengths = torch.zeros(len(rows), dtype=torch.long)
    for n, row in enumerate(rows):
        tokens = [end, *tokenizer(row["text"])["input_ids"][:TOKENS - 2], end]
        ids[n, :len(tokens)] = torch.tensor(tokens)
        lengths[n] = len(tokens)
    return ids, lengths, torch.tensor([label_ids[row["section"]] for row in rows])


def logits_of(model, ids, lengths):
    longest = int(lengths.max())
    mask = (torch.arange(longest)[None, :] < lengths[:, None]).long()
    return model(input_ids=ids[:, :longest], attention_mask=mask).logits


def rate_at(step, steps):
    """The factor of the learning rate: linear warm-up, then linear to 0."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return (steps - step) / (steps - WARM_UP)


def train(config, train_data, validation, seed):
    torch.manual_seed(seed)
    model = transformers.AutoModelForSequenceClassification.from_config(config).train()
    decays = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW([{"params": decays, "weight_decay": DECAY},
                                   {"params": others, "weight_decay": 0}], lr=RATE)
    ids, lengths, labels = train_data
    steps = EPOCHS * (len(ids) // BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_at(step, steps))
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(ids)).split(BATCH):
            loss = torch.nn.functional.cross_entropy(
                logits_of(model, ids[batch], lengths[batch]), labels[batch])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
    model.eval()
    ids, lengths, labels = validation
    with torch.no_grad():
        right = sum(int((logits_of(model, i, n).argmax(-1) == y).sum())
                    for i, n, y in zip(ids.split(100), lengths.split(100), labels.split(100)))
    return right / len(ids)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("data/quickstart-text"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    tokenizer = transformers.GPT2TokenizerFast.from_pretrained(arguments.model)
    config = transformers.AutoConfig.from_pretrained(arguments.model)
    parts = [read(arguments.data / f"{name}.tsv", tokenizer, config.label2id)
             for name in ("train", "validation")]
    parts[0] = [values[:SAMPLES] for values in parts[0]]
    began = time.perf_counter()
    accuracies = [train(config, *parts, seed) for seed in range(arguments.seeds)]
    print(json.dumps({"accuracies": accuracies, "seconds": time.perf_counter() - began,
                      "versions": [torch.__version__, transformers.__version__]}))


if __name__ == "__main__":
    main()
