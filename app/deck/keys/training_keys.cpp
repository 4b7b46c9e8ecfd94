// SPDX-License-Identifier: BSD-3-Clause
// Keys of [training] and [training.optimizer].
#include "app/deck/keys/section_keys.hpp"

namespace deltapipe::deck {

namespace {

void add_optimizer(std::vector<Key>& keys, OptimizerSettings& t) {
  SectionKeys add(keys, "training.optimizer");
  add("name", choice(t.name, kOptimizerNames),
      "adamw, or sgd: stochastic gradient descent with momentum.");
  add("learning_rate", Real{&t.learning_rate, 0, 1e3}, "Largest learning rate.");
  add("schedule",
      choice(t.schedule, {{"constant", LearningRateSchedule::constant},
                          {"linear", LearningRateSchedule::linear},
                          {"cosine", LearningRateSchedule::cosine}}),
      "Decay of the learning rate after warm-up.");
  add("warmup_steps", Integer{&t.warmup_steps, 0, kAnyCount},
      "Steps in which the learning rate grows linearly from 0.");
  add("decay_steps", Integer{&t.decay_steps, 0, kAnyCount},
      "Step at which linear and cosine schedules end. It may be after the last step; after it the "
      "rate stays. 0 means the last step.");
  add("final_learning_rate_fraction", Real{&t.final_learning_rate_fraction, 0, 1},
      "Learning rate at the end of linear and cosine schedules, as a fraction of learning_rate.");
  add("momentum", Real{&t.momentum, 0, 1, false, true}, "For sgd: decay of the velocity.");
  add("beta1", Real{&t.beta1, 0, 1, false, true}, "Decay of the gradients' running mean.");
  add("beta2", Real{&t.beta2, 0, 1, false, true}, "Decay of the squared gradients' running mean.");
  add("epsilon", Real{&t.epsilon, 0, 1, true}, "Added to the root of the squared mean.");
  add("weight_decay", Real{&t.weight_decay, 0, 1e3},
      "Decay of the blocks' matrices and of the embeddings: decoupled for adamw, added to the "
      "gradient for sgd. Biases and norms do not decay, nor do GPT-2's positions.");
  add("decay_all", Flag{&t.decay_all}, "All parameters decay, as in PyTorch's optimizers.");
  add("clip_norm", Real{&t.clip_norm, 0, kInfinite, false, true},
      "Largest global norm of the gradients; larger ones are scaled down to it. 0 never clips.");
  add("frozen", TextList{&t.frozen},
      "Parameters that are not trained, by their names in model.safetensors, with or without "
      "\"transformer.\". Examples: \"wte.weight\", the module \"h.0\", the patterns \"h.[0-5]\" "
      "and "
      "\"*.bias\". Query, key and value of an attention are one parameter, such as "
      "\"h.0.attn.c_attn\" or \"encoder.layer.0.attention.self.qkv\".");
  add("relative_embeddings", Flag{&t.relative_embeddings},
      "Trains DeBERTa's relative embeddings and sums their gradients over all stages, except where "
      "frozen names them. By default they are frozen, as in AQ-SGD's experiments.");
}

}  // namespace

void add_training(std::vector<Key>& keys, TrainingSettings& t) {
  SectionKeys add(keys, "training");
  add("epochs", Real{&t.epochs, 0, 1e9}, "Passes over the training samples, if steps is 0.");
  add("steps", Integer{&t.steps, 0, kAnyCount}, "Optimizer steps. 0 means that epochs counts.");
  add("micro_batch_size", Integer{&t.micro_batch_size, 1, 65536},
      "Samples that cross a boundary together.");
  add("micro_batches", Integer{&t.micro_batches, 1, 65536},
      "Micro-batches per step and replica. A step has micro_batch_size x micro_batches x "
      "pipeline.replicas samples.");
  add("seed", Integer{&t.seed, 0, kAnyCount},
      "Seed of new weights, the order of samples, dropout and stochastic rounding.");
  add("precision",
      choice(t.precision, {{"fp32", ProductPrecision::fp32},
                           {"tf32", ProductPrecision::tf32},
                           {"bf16", ProductPrecision::bf16}}),
      "Precision of matrix products; sums and parameters stay fp32. tf32 requires an NVIDIA GPU of "
      "compute capability 8.0 or higher.");
  add("recompute", Flag{&t.recompute},
      "Keeps only the inputs of blocks and computes other activations again in the backward pass.");
  add("recompute_stages", IntegerList{&t.recompute_stages, 0, 65535},
      "Stages that recompute, counted from 0. If the list is empty, recompute applies to all.");
  add("evaluate_every", Integer{&t.evaluate_every, 0, kAnyCount},
      "Steps between validations. 0 validates at the end of every epoch.");
  add("evaluate_at_start", Flag{&t.evaluate_at_start},
      "Evaluates before the first step as well, so that run.h5 shows what training changed.");
  add("keep_best", Flag{&t.keep_best},
      "Writes the model with the lowest validation loss so far to best/ in the output directory. "
      "With evaluation.boundary = \"codec\" the loss through the codec counts.");
  add("patience", Integer{&t.patience, 0, kAnyCount},
      "Evaluations in succession without a lower validation loss after which training ends early. "
      "0 never ends it early.");
  add_optimizer(keys, t.optimizer);
}

}  // namespace deltapipe::deck
