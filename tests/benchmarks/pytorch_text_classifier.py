#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Trains a BERT or a DeBERTa of transformers on random tokens and prints the seconds of a step and
the peak memory as JSON: the other side of `deltapipe train` on texts that fill their samples. Exit
status 77: no PyTorch or no transformers.

usage: pytorch_text_classifier.py [options]
"""

import argparse
import json
import sys
import time

from pytorch_training import peak_bytes, torch

try:
    import transformers
except ImportError:
    print("transformers is not installed", file=sys.stderr)
    sys.exit(77)


def make_model(arguments):
    shape = {"hidden_size": arguments.channels, "num_hidden_layers": arguments.layers,
             "num_attention_heads": arguments.heads, "intermediate_size": 4 * arguments.channels,
             "max_position_embeddings": arguments.positions, "vocab_size": arguments.vocabulary,
             "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": 4}
    if arguments.type == "bert":
        config = transformers.BertConfig(**shape)
        config._attn_implementation = arguments.attention
        return transformers.BertForSequenceClassification(config)
    config = transformers.DebertaV2Config(
        relative_attention=True, position_biased_input=False, share_att_key=True,
        norm_rel_ebd="layer_norm", pos_att_type=["p2c", "c2p"],
        position_buckets=arguments.positions // 2, pooler_hidden_size=arguments.channels, **shape)
    model = transformers.DebertaV2ForSequenceClassification(config)
    for name, parameter in model.named_parameters():
        if "rel_embeddings" in name or "encoder.LayerNorm" in name:
            parameter.requires_grad_(False)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--type", choices=("bert", "deberta-v2"), default="deberta-v2")
    parser.add_argument("--attention", choices=("sdpa", "eager"), default="sdpa", help="of BERT")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--channels", type=int, default=384)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--positions", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    model = make_model(arguments).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
    seconds = []
    for _ in range(arguments.steps):
        ids = torch.randint(5, arguments.vocabulary, (arguments.batch, arguments.tokens))
        labels = torch.randint(4, (arguments.batch,))
        started = time.perf_counter()
        loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - started)
    print(json.dumps({"step_seconds": sorted(seconds)[len(seconds) // 2],
                      "versions": [torch.__version__, transformers.__version__],
                      "peak_bytes": peak_bytes()}))


if __name__ == "__main__":
    main()
