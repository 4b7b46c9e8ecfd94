// SPDX-License-Identifier: BSD-3-Clause
// Speed of boundary codecs against the memory bandwidth of the same run.
//
//   codec_benchmark [T C samples]
//
// Samples visit one at a time and are more than the caches hold. The bytes that a visit must touch
// are the activations (fp32), the memory read and written, and the payload. The last two figures
// count the activations alone.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/codec/codec.hpp"
#include "core/kernels/blas.hpp"

using namespace deltapipe;

namespace {

/// CPU time of this process on one thread, so that a busy machine counts less; else wall time.
double now() {
  if (ExecSpace().concurrency() > 1 || !kHostExecution)
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

double seconds_of(const std::function<void()>& work, const std::function<void()>& prepare = {}) {
  double best = 1e30;
  for (int repeat = 0; repeat < 5; ++repeat) {
    if (prepare) prepare();
    Kokkos::fence();
    const double start = now();
    work();
    Kokkos::fence();
    best = std::min(best, now() - start);
  }
  return best;
}

struct Add {
  Vector<float> a, b, c;
  KOKKOS_INLINE_FUNCTION void operator()(int i) const { a(i) = b(i) + 3.0f * c(i); }
};

struct Fill {
  Activations x_NC;
  KOKKOS_INLINE_FUNCTION void operator()(int row) const {
    std::uint32_t state = row * 2654435761u + 12345u;
    for (std::size_t c = 0; c < x_NC.extent(1); ++c) {
      float sum = 0;
      for (int i = 0; i < 4; ++i) {
        state = state * 1664525u + 1013904223u;
        sum += static_cast<float>(state >> 8) * (1.0f / 16777216.0f) - 0.5f;
      }
      x_NC(row, c) = sum;
    }
  }
};

/// What prediction is for: all values change alike.
struct Drift {
  Activations x_NC;
  KOKKOS_INLINE_FUNCTION void operator()(int row) const {
    for (std::size_t c = 0; c < x_NC.extent(1); ++c) x_NC(row, c) *= c % 2 == 0 ? 1.03f : 0.97f;
  }
};

double triad_bytes_per_second(std::size_t floats) {
  Add add{Vector<float>("a", floats), Vector<float>("b", floats), Vector<float>("c", floats)};
  const double seconds = seconds_of([&] {
    Kokkos::parallel_for("deltapipe::Benchmark::triad",
                         Kokkos::RangePolicy<ExecSpace>(0, static_cast<int>(floats)), add);
  });
  return 12.0 * static_cast<double>(floats) / seconds;
}

struct Case {
  const char* name;
  CodecSettings settings;
  MemoryStorage storage;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&all](const char* name, auto change,
                          MemoryStorage storage = MemoryStorage::fp16) {
    CodecSettings settings;
    settings.kind = CodecKind::delta;
    settings.bits = 3;
    settings.scale = ScaleKind::token;
    settings.rounding = Rounding::nearest;
    change(settings);
    all.push_back({name, settings, storage});
  };
  const auto same = [](CodecSettings&) {};
  add("none", [](CodecSettings& s) { s.kind = CodecKind::none; });
  add("fp16", [](CodecSettings& s) { s.kind = CodecKind::fp16; });
  add("bf16", [](CodecSettings& s) { s.kind = CodecKind::bf16; });
  add("quantize 4 token", [](CodecSettings& s) {
    s.kind = CodecKind::quantize;
    s.bits = 4;
  });
  add("quantize 4 tile", [](CodecSettings& s) {
    s.kind = CodecKind::quantize;
    s.bits = 4;
    s.scale = ScaleKind::tile;
  });
  add("quantize 6 token", [](CodecSettings& s) {
    s.kind = CodecKind::quantize;
    s.bits = 6;
  });
  const auto with_feedback = [](CodecSettings& s) {
    s.kind = CodecKind::quantize;
    s.bits = 4;
    s.error_feedback = true;
  };
  add("quantize 4 token, errors fp32", with_feedback, MemoryStorage::fp32);
  add("quantize 4 token, errors bf16", with_feedback, MemoryStorage::bf16);
  add("quantize 4 token, errors bits8", with_feedback, MemoryStorage::bits8);
  add(
      "quantize 4 channel, errors bf16",
      [&](CodecSettings& s) {
        with_feedback(s);
        s.scale = ScaleKind::channel;
      },
      MemoryStorage::bf16);
  add("delta 3 token", same);
  add("delta 3 tile", [](CodecSettings& s) { s.scale = ScaleKind::tile; });
  add("delta 3 channel", [](CodecSettings& s) { s.scale = ScaleKind::channel; });
  add("delta 3 token stochastic", [](CodecSettings& s) { s.rounding = Rounding::stochastic; });
  add("delta 2 token", [](CodecSettings& s) { s.bits = 2; });
  const auto coded = [](CodecSettings& s, ScaleRule rule, double step = 1) {
    s.scale = ScaleKind::tile;
    s.scale_rule = rule;
    s.rms_step = step;
    s.entropy_coding = rule != ScaleRule::mse;
  };
  add("delta 2 tile", [](CodecSettings& s) {
    s.scale = ScaleKind::tile;
    s.bits = 2;
  });
  add("delta 2 tile mse", [&](CodecSettings& s) {
    coded(s, ScaleRule::mse);
    s.bits = 2;
  });
  add("delta 2 tile coded", [&](CodecSettings& s) {
    coded(s, ScaleRule::max);
    s.bits = 2;
  });
  add("delta 3 tile coded", [&](CodecSettings& s) { coded(s, ScaleRule::max); });
  add("delta 8 tile", [](CodecSettings& s) {
    s.scale = ScaleKind::tile;
    s.bits = 8;
  });
  add("delta rms 1.9 tile coded", [&](CodecSettings& s) { coded(s, ScaleRule::rms, 1.9); });
  add("delta rms 1 tile coded", [&](CodecSettings& s) { coded(s, ScaleRule::rms, 1); });
  add("delta rms 0.1 tile coded", [&](CodecSettings& s) { coded(s, ScaleRule::rms, 0.1); });
  add("quantize 4 tile coded", [&](CodecSettings& s) {
    coded(s, ScaleRule::max);
    s.kind = CodecKind::quantize;
    s.bits = 4;
  });
  const auto predicted = [](CodecSettings& s) {
    s.scale = ScaleKind::tile;
    s.prediction = Prediction::linear;
    s.prediction_interval = 1;
  };
  add("delta 3 tile, predicted", predicted);
  add("delta rms 1 tile coded, predicted", [&](CodecSettings& s) {
    coded(s, ScaleRule::rms, 1);
    predicted(s);
  });
  add("delta 3 token, memory fp32", same, MemoryStorage::fp32);
  add("delta 3 token, memory bf16", same, MemoryStorage::bf16);
  add("delta 3 token, memory bits8", same, MemoryStorage::bits8);
  add("delta 3 token, memory bits4", same, MemoryStorage::bits4);
  const auto topk = [](double part, ChosenValues values) {
    return [part, values](CodecSettings& s) {
      s.kind = CodecKind::topk;
      s.scale = ScaleKind::tile;
      s.bits = 4;
      s.topk = part;
      s.values = values;
    };
  };
  add("topk 50 % fp16", topk(0.5, ChosenValues::fp16));
  add("topk 10 % fp32", topk(0.1, ChosenValues::fp32));
  add("topk 10 % fp16", topk(0.1, ChosenValues::fp16));
  add("topk 10 % codes of 4 bits", topk(0.1, ChosenValues::codes));
  add("topk 1 % fp16", topk(0.01, ChosenValues::fp16));
  for (const auto& [name, kind] : {std::pair{"topk 10 % fp16, EF", FeedbackKind::ef},
                                   std::pair{"topk 10 % fp16, EF21", FeedbackKind::ef21},
                                   std::pair{"topk 10 % fp16, mixed", FeedbackKind::mixed}})
    add(name, [&, kind = kind](CodecSettings& s) {
      topk(0.1, ChosenValues::fp16)(s);
      s.error_feedback = true;
      s.feedback_kind = kind;
    });
  add("topk_delta 10 % fp16", [&](CodecSettings& s) {
    topk(0.1, ChosenValues::fp16)(s);
    s.kind = CodecKind::topk_delta;
  });
  return all;
}

struct Bench {
  CodecShape shape;
  int samples;
  double bandwidth;
  Activations x_NC;

  void run(const Case& test) const {
    const auto codec = make_codec(test.settings, shape, test.storage);
    const ExecSpace exec;
    const std::size_t record = codec->record().bytes(BoundarySide::sender);
    DeviceBytes pool("pool", record * samples), payload("payload", codec->max_payload_bytes());
    const std::size_t received = codec->record().bytes(BoundarySide::receiver);
    std::size_t sent = 0;  // bytes of the last payload
    std::uint64_t step = 0;
    const auto visit_all = [&](std::uint32_t visits, bool encodes) {
      for (int s = 0; s < samples; ++s) {
        Crossing visit;
        visit.sample_ids = {static_cast<std::uint64_t>(s)};
        visit.tokens = {shape.tokens};
        visit.visits = {visits};
        visit.step = step;
        visit.micro_batch = static_cast<std::uint32_t>(s);
        const int row = s * shape.tokens;
        const Activations x =
            Kokkos::subview(x_NC, Kokkos::make_pair(row, row + shape.tokens), Kokkos::ALL());
        const MemoryRecords records{pool, {s * record}};
        if (encodes)
          sent = codec->encode(exec, visit, x, records, payload);
        else
          codec->decode(exec, visit, payload, sent, records, x);
      }
    };
    Kokkos::parallel_for("deltapipe::Benchmark::fill",
                         Kokkos::RangePolicy<ExecSpace>(0, samples * shape.tokens), Fill{x_NC});
    visit_all(0, true);
    const auto next_step = [&] {
      ++step;
      if (test.settings.prediction == Prediction::none) return;
      Kokkos::parallel_for("deltapipe::Benchmark::drift",
                           Kokkos::RangePolicy<ExecSpace>(0, samples * shape.tokens), Drift{x_NC});
    };
    // A map for predictions comes in the first micro-batch of each step.
    for (int steps = 0; steps < 3 && test.settings.prediction != Prediction::none; ++steps) {
      visit_all(2, true);
      next_step();
    }
    const double encode = seconds_of([&] { visit_all(2, true); }, next_step);
    next_step();
    visit_all(2, true);
    const double decode = seconds_of([&] { visit_all(2, false); });
    const double elements = static_cast<double>(shape.tokens) * shape.channels * samples;
    const double payload_bytes = static_cast<double>(sent) * samples;
    const auto bytes_with = [&](std::size_t kept) {
      return 4 * elements + 2.0 * static_cast<double>(kept) * samples + payload_bytes;
    };
    const double sender = bytes_with(record), receiver = bytes_with(received);
    std::printf(
        "%-31s %5.2f bit  encode %6.2f GB/s %4.0f %%  decode %6.2f GB/s %4.0f %%  both %4.0f %%  "
        "fp32 %5.2f %5.2f GB/s\n",
        test.name, 8 * payload_bytes / elements, sender / encode / 1e9,
        100 * sender / encode / bandwidth, receiver / decode / 1e9,
        100 * receiver / decode / bandwidth,
        100 * (sender + receiver) / (encode + decode) / bandwidth, 4 * elements / encode / 1e9,
        4 * elements / decode / 1e9);
  }
};

}  // namespace

int main(int argc, char** argv) {
  restart_with_better_blas_kernels(argv);
  Kokkos::ScopeGuard kokkos(argc, argv);
  const int tokens = argc > 1 ? std::atoi(argv[1]) : 1024;
  const int channels = argc > 2 ? std::atoi(argv[2]) : 768;
  const int samples = argc > 3 ? std::atoi(argv[3]) : 32;
  if (tokens < 1 || channels < 1 || samples < 1) {
    std::fprintf(stderr, "usage: codec_benchmark [T C samples]\n");
    return 1;
  }
  const std::size_t floats = static_cast<std::size_t>(tokens) * channels * samples;
  const double bandwidth = triad_bytes_per_second(floats / 2);
  std::printf("T=%d C=%d samples=%d, triad %.2f GB/s\n", tokens, channels, samples,
              bandwidth / 1e9);
  const Bench bench{
      {1, tokens, channels}, samples, bandwidth, Activations("x", floats / channels, channels)};
  for (const Case& test : cases()) bench.run(test);
}
