// SPDX-License-Identifier: BSD-3-Clause
// One rank, one stage: seconds of training steps of a GPT-2 on random tokens, as JSON. The other
// side of pytorch_benchmark.py.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "core/kernels/blas.hpp"
#include "core/kernels/embedding.hpp"
#include "models/gpt2/gpt2_stage.hpp"
#include "models/gpt2/gpt2_weights.hpp"
#include "models/optimizer.hpp"

using namespace deltapipe;

namespace {

constexpr double kLearningRate = 1e-4, kClipNorm = 1.0;

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double processor_seconds() {
  rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return t.tv_sec + 1e-6 * t.tv_usec; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

long peak_kilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (word == "VmHWM:") {
      long kilobytes = 0;
      status >> kilobytes;
      return kilobytes;
    }
  return 0;
}

template <class T>
Vector<T> to_device(const std::vector<T>& values) {
  const Vector<T> vector("test::tokens", values.size());
  const auto host = Kokkos::create_mirror_view(vector);
  std::copy(values.begin(), values.end(), host.data());
  Kokkos::deep_copy(vector, host);
  return vector;
}

struct Tokens {
  Vector<std::int32_t> row_N, target_N, distinct_U, first_of_U, row_of;
};

Tokens make_tokens(int rows, int vocabulary, std::uint64_t seed) {
  std::vector<std::int32_t> tokens(rows), targets(rows);
  std::vector<std::vector<std::int32_t>> rows_of(vocabulary);
  for (int n = 0; n < rows; ++n) {
    tokens[n] = static_cast<std::int32_t>(mix_bits(seed * rows + n + 1) % vocabulary);
    targets[n] = static_cast<std::int32_t>(mix_bits(~(seed * rows + n)) % vocabulary);
    rows_of[tokens[n]].push_back(n);
  }
  std::vector<std::int32_t> distinct, first_of = {0}, row_of;
  for (int token = 0; token < vocabulary; ++token) {
    if (rows_of[token].empty()) continue;
    distinct.push_back(token);
    row_of.insert(row_of.end(), rows_of[token].begin(), rows_of[token].end());
    first_of.push_back(static_cast<std::int32_t>(row_of.size()));
  }
  return {to_device(tokens), to_device(targets), to_device(distinct), to_device(first_of),
          to_device(row_of)};
}

struct Shape {
  Gpt2Config config;
  int samples, tokens, steps;
};

void print_list(const char* name, const std::vector<double>& values) {
  std::printf("\"%s\": [", name);
  for (std::size_t i = 0; i < values.size(); ++i)
    std::printf("%s%.6g", i > 0 ? ", " : "", values[i]);
  std::printf("], ");
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

void train(const Shape& shape) {
  const ExecSpace exec;
  const int rows = shape.samples * shape.tokens;
  Gpt2Stage<float> stage(shape.config, {0, shape.config.n_layer, true, true}, true);
  StageCapacity capacity;
  capacity.samples = shape.samples;
  capacity.tokens = shape.tokens;
  capacity.embedding_rows = std::min(rows, shape.config.vocabulary_size);
  stage.reserve(capacity);
  initialise_weights(shape.config, 1, stage.parameters());
  OptimizerSettings settings;
  Optimizer<float> optimizer(settings, stage.parameters());
  std::vector<std::uint64_t> sample_ids(shape.samples);
  std::iota(sample_ids.begin(), sample_ids.end(), 0);
  const Vector<std::uint64_t> ids = to_device(sample_ids);

  std::vector<double> wall, processor;
  double loss = 0;
  for (int step = 0; step < shape.steps; ++step) {
    const Tokens tokens = make_tokens(rows, shape.config.vocabulary_size, step);
    const double wall_start = wall_seconds(), processor_start = processor_seconds();
    MicroBatch batch;
    batch.step = step;
    batch.samples = shape.samples;
    batch.tokens = shape.tokens;
    batch.sample_id_B = ids;
    batch.row_N = tokens.row_N;
    batch.target_N = tokens.target_N;
    batch.loss_scale = 1.0 / rows;
    stage.forward(exec, batch, 0, true, false);
    stage.backward(exec, batch, 0, false, {});
    const auto table = stage.embedding_gradient(exec, tokens.first_of_U, tokens.row_of,
                                                static_cast<int>(tokens.distinct_U.extent(0)));
    add_rows<float>(exec, tokens.distinct_U, table,
                    stage.parameters().gradient_matrix(stage.wte()));
    const std::vector<double>& squares = optimizer.squared_norms(exec);
    const double norm = std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0));
    optimizer.update(exec, step, kLearningRate, std::min(1.0, kClipNorm / (norm + 1e-6)));
    exec.fence();
    wall.push_back(wall_seconds() - wall_start);
    processor.push_back(processor_seconds() - processor_start);
    const auto losses = stage.losses(0, rows);
    const auto host = Kokkos::create_mirror_view(losses);
    Kokkos::deep_copy(host, losses);
    loss = std::accumulate(host.data(), host.data() + rows, 0.0) / rows;
  }
  std::vector<double> rates;
  for (const double seconds : wall) rates.push_back(rows / seconds);
  std::printf("{");
  print_list("wall_seconds", wall);
  print_list("processor_seconds", processor);
  print_list("tokens_per_second", rates);
  std::printf("\"median_tokens_per_second\": %.6g, \"last_loss\": %.6g, \"peak_kilobytes\": %ld}\n",
              median(rates), loss, peak_kilobytes());
}

}  // namespace

int main(int argc, char** argv) {
  restart_with_better_blas_kernels(argv);
  if (argc != 9) {
    std::fprintf(stderr,
                 "usage: %s LAYERS HEADS CHANNELS VOCABULARY POSITIONS SAMPLES TOKENS STEPS\n",
                 argv[0]);
    return 2;
  }
  int n[9];
  for (int i = 1; i < 9; ++i) {
    n[i] = std::atoi(argv[i]);
    if (n[i] < 1) {
      std::fprintf(stderr, "%s: not a positive number: %s\n", argv[0], argv[i]);
      return 2;
    }
  }
  Shape shape;
  shape.config.n_layer = n[1];
  shape.config.n_head = n[2];
  shape.config.n_embd = n[3];
  shape.config.n_inner = 4 * n[3];
  shape.config.vocabulary_size = n[4];
  shape.config.n_positions = n[5];
  shape.config.embd_pdrop = shape.config.attn_pdrop = shape.config.resid_pdrop = 0;
  shape.samples = n[6];
  shape.tokens = n[7];
  shape.steps = n[8];
  const Kokkos::ScopeGuard kokkos;
  use_single_threaded_blas();
  train(shape);
  return 0;
}
