// SPDX-License-Identifier: BSD-3-Clause
// One rank, one stage: seconds of training steps of a GPT-2 on random tokens, as JSON; with
// --profile also seconds by kernel. Part of scripts/benchmark.py.
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "benchmark_support.hpp"
#include "core/base/parallel/floating_point.hpp"
#include "core/base/parallel/helper_thread.hpp"
#include "core/kernels/gemm/blas.hpp"
#include "core/kernels/layers/embedding.hpp"
#include "kernel_times.hpp"
#include "models/gpt2/gpt2_stage.hpp"
#include "models/optimizer.hpp"

using namespace deltapipe;
using namespace deltapipe::benchmark;

namespace {

constexpr double kLearningRate = 1e-4, kClipNorm = 1.0;
constexpr int kWarmUp = 2;  // steps that are not profiled

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

class Training {
 public:
  Training(const Shape& shape, ProductPrecision products)
      : shape_(shape),
        stage_(shape.config, {0, shape.config.n_layer, true, true}, true, {}, products),
        optimizer_({}, reserved(stage_, shape, products).parameters()) {
    initialise_weights(shape.config, 1, stage_.parameters());
    std::vector<std::uint64_t> sample_ids(shape.samples);
    std::iota(sample_ids.begin(), sample_ids.end(), 0);
    sample_ids_ = to_device(sample_ids);
  }

  void step(std::uint64_t number, const Tokens& tokens) {
    const FlushedDenormals flushed;
    const int rows = shape_.rows();
    MicroBatch batch;
    batch.step = number;
    batch.samples = shape_.samples;
    batch.tokens = shape_.tokens;
    batch.sample_id_B = sample_ids_;
    batch.fields.set(Field::tokens, tokens.row_N);
    batch.fields.set(Field::next_tokens, tokens.target_N);
    batch.loss_scale = 1.0 / rows;
    stage_.forward(exec_, batch, 0, true, false);
    stage_.backward(exec_, batch, 0, false, {});
    const auto table = stage_.token_embedding()->embedding_gradient(
        exec_, tokens.first_of_U, tokens.row_of, static_cast<int>(tokens.distinct_U.extent(0)));
    add_rows<float>(exec_, tokens.distinct_U, table,
                    stage_.parameters().gradient_matrix(stage_.token_embedding()->wte()));
    const std::vector<double>& squares = optimizer_.squared_norms(exec_);
    const double norm = std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0));
    optimizer_.update(exec_, number, kLearningRate, std::min(1.0, kClipNorm / (norm + 1e-6)));
    exec_.fence();
  }

  /// Mean over the rows of the last step.
  double loss() {
    const int rows = shape_.rows();
    const auto losses = stage_.scores(0, rows);
    const auto host = Kokkos::create_mirror_view(losses);
    Kokkos::deep_copy(host, losses);
    return std::accumulate(host.data(), host.data() + rows, 0.0) / rows;
  }

 private:
  static Gpt2Stage<float>& reserved(Gpt2Stage<float>& stage, const Shape& shape,
                                    ProductPrecision products) {
    StageCapacity capacity;
    capacity.products = products;
    capacity.samples = shape.samples;
    capacity.tokens = shape.tokens;
    capacity.embedding_rows = std::min(shape.rows(), shape.config.vocabulary_size);
    stage.reserve(capacity);
    return stage;
  }

  Shape shape_;
  ExecSpace exec_;
  Gpt2Stage<float> stage_;
  Optimizer<float> optimizer_;
  Vector<std::uint64_t> sample_ids_;
};

nlohmann::json as_json(const KernelTimes& times, int steps) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [key, time] : times.times())
    list.push_back({{"region", key.region},
                    {"kernel", key.kernel},
                    {"seconds_a_step", time.seconds / steps},
                    {"calls_a_step", static_cast<double>(time.calls) / steps}});
  return list;
}

void train(const Shape& shape, ProductPrecision products, bool profile) {
  Training training(shape, products);
  KernelTimes kernels;
  nlohmann::json result = {{"wall_seconds", nlohmann::json::array()},
                           {"processor_seconds", nlohmann::json::array()}};
  for (int step = 0; step < shape.count; ++step) {
    const Tokens tokens = make_tokens(shape.rows(), shape.config.vocabulary_size, step);
    if (profile && step >= kWarmUp) kernels.start();
    const double wall_start = wall_seconds(), processor_start = processor_seconds();
    training.step(step, tokens);
    kernels.stop();
    result["wall_seconds"].push_back(wall_seconds() - wall_start);
    result["processor_seconds"].push_back(processor_seconds() - processor_start);
  }
  if (profile) result["kernels"] = as_json(kernels, shape.count - kWarmUp);
  result["last_loss"] = training.loss();
  result["peak_bytes"] = peak_bytes();
  result["execution_space"] = ExecSpace::name();
  std::printf("%s\n", result.dump().c_str());
}

}  // namespace

DELTAPIPE_REMEMBER_CORES_FIRST();

int main(int argc, char** argv) {
  return status_of(argv[0], [&] {
    restart_with_better_settings(argv);
    int first = 1;
    const auto takes = [&](const char* option) {
      const bool given = argc > first && std::strcmp(argv[first], option) == 0;
      first += given ? 1 : 0;
      return given;
    };
    const bool profile = takes("--profile");
    const auto products = takes("--bf16") ? ProductPrecision::bf16 : ProductPrecision::fp32;
    const Shape shape = parse_shape(argc, argv, first, "STEPS");
    if (profile && shape.count <= kWarmUp) {
      std::fprintf(stderr, "%s: --profile requires more than the %d warm-up steps\n", argv[0],
                   kWarmUp);
      return 2;
    }
    const Kokkos::ScopeGuard kokkos;
    use_threads_of_environment();
    train(shape, products, profile);
    return 0;
  });
}
