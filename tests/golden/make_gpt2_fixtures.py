#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes tests/fixtures/tiny_gpt2: small GPT-2 models and what transformers computes with them.

usage: make_gpt2_fixtures.py [--generation] [DIRECTORY]

  --generation        only generation.h5, from the models that are there

  model/              4 layers, 3 heads, 36 channels, 24 positions, 101 tokens, F32, one file
  model_f16_sharded/  2 layers, 2 heads, 12 channels, 10 positions, 31 tokens, F16, two shards
  model_bf16/         the same shape, BF16, with the names of the original gpt2 files (no
                      "transformer." in front, the causal masks h.N.attn.bias stored along)
  golden.h5           the reference values, computed in float64 from the stored weights:

  input_ids [B, T], targets [B, T]   targets are the next tokens; -1 is ignored
  logits [B, T, V], loss []          loss: mean over the targets that are not ignored
  gradients/NAME                     of that loss, by Hugging Face name; the tied wte once
  training/...                       AdamW from the stored weights, a new batch each step;
                                     attributes: its constants, and which parameters decay
      input_ids, targets [S, B, T], learning_rates, losses, gradient_norms [S]
      final/NAME                     some parameters after the last step
      names, sums_of_squares [P]     of every parameter after the last step: a JSON list of the
                                     names; sums in float64, without the key's third of
                                     c_attn.bias: softmax does not feel it, its gradient is
                                     rounding noise that AdamW blows up
  frozen/NAME/                       the same run with the parameters of attribute `frozen` (a JSON
                                     list) frozen: losses, gradient_norms [S], names,
                                     sums_of_squares [P]
  f16_sharded/, bf16/                input_ids [B, T], logits [B, T, V]

  generation.h5       model's greedy texts, by generate() with its key-value cache in float64, up to
                      all 24 positions: prompt_N/tokens [24], prompt and answer of a prompt of N
                      tokens, and prompt_N/logits [24 - N, V], from which the answer was chosen

The same run in float32 sets the scale of an honest difference: attribute float32_difference of
logits, loss and gradients is max |float32 - float64| / max |float64| (for the gradients that of the
worst parameter); training has losses_float32 and gradient_norms_float32.
"""

import fnmatch
import json
import pathlib
import shutil
import sys

import h5py
import numpy as np
import torch
import transformers
from safetensors.torch import save_file

BATCH, LENGTH, STEPS = 3, 17, 10
PROMPT_LENGTHS = (1, 2, 7, 16, 23)
LEARNING_RATE, WARMUP, CLIP_NORM = 1e-2, 2, 1.0
BETA1, BETA2, EPSILON, WEIGHT_DECAY = 0.9, 0.999, 1e-8, 0.1
DECAYED = ("wte.weight", "attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight",
           "mlp.c_proj.weight")
FROZEN = {"prefix": ("wte.*", "wpe.*", "h.0.*", "h.1.*"),
          "scattered": ("wte.*", "h.2.*", "*.c_fc.*", "*.ln_1.bias")}


def random_model(seed, **shape):
    """A GPT-2 whose biases, norms and positions are as random as its matrices."""
    config = transformers.GPT2Config(
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
        attn_implementation="eager", **shape)
    torch.manual_seed(seed)
    model = transformers.GPT2LMHeadModel(config)
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter)
        if ".ln_" in name:
            parameter.data = (1.0 if name.endswith("weight") else 0.0) + 0.3 * noise
        elif name.endswith("bias"):
            parameter.data = 0.2 * noise
        elif "wte" in name or "wpe" in name:
            parameter.data = 0.3 * noise
        else:
            parameter.data = noise / parameter.shape[0] ** 0.5
    return model


def load(directory, dtype):
    model = transformers.GPT2LMHeadModel.from_pretrained(
        directory, torch_dtype=torch.float32, attn_implementation="eager", local_files_only=True)
    return model.to(dtype).train()


def random_batch(generator, batch, length, vocabulary):
    """Tokens that are partly predictable; the end of the last sample is padding."""
    tokens = torch.empty(batch, length + 1, dtype=torch.int64)
    tokens[:, 0] = torch.randint(vocabulary, (batch,), generator=generator)
    for t in range(length):
        guess = (3 * tokens[:, t] + 7) % vocabulary
        noise = torch.randint(vocabulary, (batch,), generator=generator)
        tokens[:, t + 1] = torch.where(torch.rand(batch, generator=generator) < 0.7, guess, noise)
    targets = tokens[:, 1:].clone()
    targets[-1, -4:] = -1
    return tokens[:, :-1].contiguous(), targets


def loss_of(logits, targets):
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


def forward_backward(directory, dtype, input_ids, targets):
    model = load(directory, dtype)
    logits = model(input_ids).logits
    loss = loss_of(logits, targets)
    loss.backward()
    gradients = {name: p.grad.numpy() for name, p in model.named_parameters()}
    return logits.detach().numpy(), loss.item(), gradients


def train(directory, dtype, batches, frozen=()):
    model = load(directory, dtype)
    for name, parameter in model.named_parameters():
        short = name.removeprefix("transformer.")
        parameter.requires_grad = not any(fnmatch.fnmatchcase(short, f) for f in frozen)
    decayed = [p for n, p in model.named_parameters() if n.endswith(DECAYED)]
    others = [p for n, p in model.named_parameters() if not n.endswith(DECAYED)]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0}],
        lr=LEARNING_RATE, betas=(BETA1, BETA2), eps=EPSILON)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, WARMUP, STEPS)
    rates, losses, norms = [], [], []
    for input_ids, targets in batches:
        optimizer.zero_grad()
        loss = loss_of(model(input_ids).logits, targets)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM).item())
        losses.append(loss.item())
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    parameters = {name: p.detach().numpy() for name, p in model.named_parameters()}
    return rates, losses, norms, parameters


def save_f32(model, directory):
    model.save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)


def save_f16_sharded(model, directory):
    size = 2 * sum(p.numel() for p in model.parameters())
    model.half().save_pretrained(directory, max_shard_size=size * 6 // 10)
    (directory / "generation_config.json").unlink(missing_ok=True)
    assert len(list(directory.glob("*.safetensors"))) == 2


def save_bf16_original_names(model, directory):
    directory.mkdir()
    model.config.torch_dtype = "bfloat16"
    model.config.architectures = ["GPT2LMHeadModel"]
    model.config.save_pretrained(directory)
    positions = model.config.n_positions
    tensors = {n: p.detach().bfloat16() for n, p in model.transformer.named_parameters()}
    for layer in range(model.config.n_layer):
        mask = torch.ones(positions, positions).tril().view(1, 1, positions, positions)
        tensors[f"h.{layer}.attn.bias"] = mask.bfloat16()
    save_file(tensors, str(directory / "model.safetensors"), metadata={"format": "pt"})


def rounded(values):
    """Float32 with 20 significant bits, a relative error of at most 2^-20, which compresses."""
    mantissa, exponent = np.frexp(np.asarray(values, np.float64))
    return np.ldexp(np.round(mantissa * 2**20) / 2**20, exponent).astype(np.float32)


def relative_difference(value, truth):
    return np.abs(value - truth).max() / np.abs(truth).max()


def sum_of_squares(name, value):
    if name.endswith("c_attn.bias"):
        query, _, val = np.split(value, 3)
        value = np.concatenate([query, val])
    return (value ** 2).sum()


def write_frozen(group, directory, batches, patterns):
    _, losses, norms, final = train(directory, torch.float64, batches, patterns)
    start = load(directory, torch.float64).state_dict()
    frozen = [n for n, v in final.items() if np.array_equal(v, start[n].numpy())]
    group.attrs["frozen"] = json.dumps([n.removeprefix("transformer.") for n in frozen])
    group["losses"], group["gradient_norms"] = losses, norms
    group["names"] = json.dumps(list(final))
    group["sums_of_squares"] = [sum_of_squares(n, v) for n, v in final.items()]


def write(group, name, values):
    """Values as int32 or float32; large ones rounded and compressed."""
    values = np.asarray(values)
    stored = values.astype(np.int32 if values.dtype.kind == "i" else np.float32)
    options = {}
    if values.size > 1000:
        options = {"compression": "gzip", "compression_opts": 9, "shuffle": True,
                   "chunks": values.shape}
        stored = stored if values.dtype.kind == "i" else rounded(values)
    group.create_dataset(name, data=stored, track_times=False, **options)


def write_golden(directory, path):
    generator = torch.Generator().manual_seed(17)
    with h5py.File(path, "w", libver=("v110", "v110")) as file:
        source = directory / "model"
        input_ids, targets = random_batch(generator, BATCH, LENGTH, 101)
        logits, loss, gradients = forward_backward(source, torch.float64, input_ids, targets)
        logits32, loss32, gradients32 = forward_backward(source, torch.float32, input_ids, targets)
        write(file, "input_ids", input_ids.numpy())
        write(file, "targets", targets.numpy())
        write(file, "logits", logits)
        file["loss"] = loss
        file["logits"].attrs["float32_difference"] = relative_difference(logits32, logits)
        file["loss"].attrs["float32_difference"] = relative_difference(loss32, loss)
        for name, value in gradients.items():
            write(file.require_group("gradients"), name, value)
        file["gradients"].attrs["float32_difference"] = max(
            relative_difference(gradients32[name], value) for name, value in gradients.items())

        batches = [random_batch(generator, BATCH, LENGTH, 101) for _ in range(STEPS)]
        rates, losses, norms, final = train(source, torch.float64, batches)
        _, losses32, norms32, _ = train(source, torch.float32, batches)
        training = file.create_group("training")
        training.attrs.update(
            beta1=BETA1, beta2=BETA2, epsilon=EPSILON, weight_decay=WEIGHT_DECAY,
            clip_norm=CLIP_NORM, learning_rate=LEARNING_RATE, warmup_steps=WARMUP,
            decayed=json.dumps([n for n in gradients if n.endswith(DECAYED)]))
        write(training, "input_ids", torch.stack([b[0] for b in batches]).numpy())
        write(training, "targets", torch.stack([b[1] for b in batches]).numpy())
        training["learning_rates"] = rates
        training["losses"], training["losses_float32"] = losses, losses32
        training["gradient_norms"], training["gradient_norms_float32"] = norms, norms32
        training["names"] = json.dumps(list(final))
        training["sums_of_squares"] = [sum_of_squares(n, v) for n, v in final.items()]
        for name in ("wte.weight", "h.3.ln_2.weight", "h.3.attn.c_attn.bias", "ln_f.bias"):
            write(training.require_group("final"), "transformer." + name,
                  final["transformer." + name])

        for name, patterns in FROZEN.items():
            write_frozen(file.create_group(f"frozen/{name}"), source, batches, patterns)

        for variant in ("f16_sharded", "bf16"):
            model = load(directory / f"model_{variant}", torch.float64)
            ids, _ = random_batch(generator, 2, 9, model.config.vocab_size)
            group = file.create_group(variant)
            write(group, "input_ids", ids.numpy())
            with torch.no_grad():
                write(group, "logits", model(ids).logits.numpy())


def write_generation(directory, path):
    """The two likeliest tokens are far enough apart for float32 to choose the same one."""
    model = load(directory / "model", torch.float64).eval()
    generator = torch.Generator().manual_seed(23)
    positions = model.config.n_positions
    with h5py.File(path, "w", libver=("v110", "v110")) as file:
        for length in PROMPT_LENGTHS:
            prompt, _ = random_batch(generator, 1, length, model.config.vocab_size)
            made = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False,
                                  max_new_tokens=positions - length, use_cache=True,
                                  eos_token_id=None, pad_token_id=0, output_logits=True,
                                  return_dict_in_generate=True)
            logits = torch.cat(made.logits)
            first, second = logits.topk(2).values.T
            assert ((first - second) / logits.abs().max() > 1e-4).all()
            group = file.create_group(f"prompt_{length}")
            write(group, "tokens", made.sequences[0].numpy())
            write(group, "logits", logits.numpy())


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    default = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "tiny_gpt2"
    arguments = [argument for argument in sys.argv[1:] if argument != "--generation"]
    directory = pathlib.Path(arguments[0]) if arguments else default
    if "--generation" in sys.argv[1:]:
        return write_generation(directory, directory / "generation.h5")
    for name in ("model", "model_f16_sharded", "model_bf16"):
        shutil.rmtree(directory / name, ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)
    save_f32(random_model(1, n_layer=4, n_head=3, n_embd=36, n_positions=24, vocab_size=101),
             directory / "model")
    small = {"n_layer": 2, "n_head": 2, "n_embd": 12, "n_positions": 10, "vocab_size": 31}
    save_f16_sharded(random_model(2, **small), directory / "model_f16_sharded")
    save_bf16_original_names(random_model(3, **small), directory / "model_bf16")
    write_golden(directory, directory / "golden.h5")
    write_generation(directory, directory / "generation.h5")


if __name__ == "__main__":
    main()
