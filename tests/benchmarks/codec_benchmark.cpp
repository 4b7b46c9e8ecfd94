// SPDX-License-Identifier: BSD-3-Clause
// Speed of boundary codecs against the memory bandwidth of the same run.
//
//   codec_benchmark [T C samples] [--results FILE --machine NAME]
//
// On as many threads as OMP_NUM_THREADS says. Samples visit one at a time, T x C values each. The
// bytes that a visit must touch are the activations (fp32), the memory read and written, and the
// payload; they are what GB/s and shares of the triad count. Scales are one for each tile of 64
// channels, rounding is to nearest, memories are fp16, unless a line says otherwise. FILE,
// docs/results/codec_speed.toml, gets the figures as data; NAME is one of
// docs/results/machines.toml.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "benchmark_support.hpp"
#include "core/base/parallel/helper_thread.hpp"
#include "core/base/parallel/host_team.hpp"
#include "core/base/version.hpp"
#include "core/codec/algorithms/recommended.hpp"
#include "core/codec/codec.hpp"
#include "core/kernels/gemm/blas.hpp"

using namespace deltapipe;
using deltapipe::benchmark::status_of;
using deltapipe::benchmark::use_threads_of_environment;

namespace {

int threads() {
  return kTeamExecution ? HostTeam::instance().size() : ExecSpace().concurrency();
}

/// CPU time of this process on one thread, so that a busy machine counts less; else wall time.
double now() {
  if (threads() > 1 || !kHostExecution)
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

double seconds_of(const std::function<void()>& work) {
  double best = 1e30;
  for (int repeat = 0; repeat < 5; ++repeat) {
    Kokkos::fence();
    const double start = now();
    work();
    Kokkos::fence();
    best = std::min(best, now() - start);
  }
  return best;
}

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

double triad_bytes_per_second(std::size_t floats) {
  const benchmark::Triad triad(floats);
  return triad.bytes() / seconds_of([&] { triad(ExecSpace()); });
}

struct Options {
  int tokens = 1024, channels = 768, samples = 32;
  std::string results, machine;
  std::string only;  ///< cases whose names have it
};

/// Nothing where they cannot be understood.
std::optional<Options> parse(int argc, char** argv) {
  Options options;
  std::vector<int> extents;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    std::string* const text = argument == "--results"   ? &options.results
                              : argument == "--machine" ? &options.machine
                              : argument == "--only"    ? &options.only
                                                        : nullptr;
    if (text != nullptr) {
      if (++i == argc) return {};
      *text = argv[i];
    } else {
      extents.push_back(std::atoi(argv[i]));
      if (extents.back() < 1) return {};
    }
  }
  if (options.results.empty() != options.machine.empty()) return {};
  if (!options.only.empty() && !options.results.empty()) return {};
  if (extents.empty()) return options;
  if (extents.size() != 3) return {};
  options.tokens = extents[0];
  options.channels = extents[1];
  options.samples = extents[2];
  return options;
}

struct Case {
  std::string name;
  CodecSettings settings;
  MemoryStorage storage = MemoryStorage::fp16;
};

CodecSettings codes(CodecKind kind, int bits) {
  CodecSettings settings;
  settings.kind = kind;
  settings.bits = bits;
  return settings;
}

CodecSettings with_scale(CodecSettings settings, ScaleKind scale) {
  settings.scale = scale;
  return settings;
}

CodecSettings coded(CodecSettings settings) {
  settings.entropy_coding = true;
  return settings;
}

/// Entropy coded codes in steps of the RMS.
CodecSettings rms(CodecKind kind, double step) {
  CodecSettings settings = coded(codes(kind, 4));
  settings.rms_step = step;
  return settings;
}

CodecSettings with_feedback(CodecSettings settings, FeedbackKind kind) {
  settings.error_feedback = true;
  settings.feedback_kind = kind;
  return settings;
}

CodecSettings topk(double part, ChosenValues values) {
  CodecSettings settings = codes(CodecKind::topk, 4);
  settings.topk = part;
  settings.values = values;
  return settings;
}

std::vector<Case> plain_cases() {
  std::vector<Case> all;
  for (const CodecKind kind : {CodecKind::none, CodecKind::fp16, CodecKind::bf16})
    all.push_back({kCodecKindNames[static_cast<std::size_t>(kind)], codes(kind, 4)});
  return all;
}

/// Packed codes without memories.
std::vector<Case> quantize_cases() {
  std::vector<Case> all;
  for (const int bits : {2, 3, 4, 6, 8})
    all.push_back({"directq, " + std::to_string(bits) + " bits", codes(CodecKind::directq, bits)});
  const CodecSettings four = codes(CodecKind::directq, 4);
  all.push_back({"directq, 4 bits, scale per channel", with_scale(four, ScaleKind::channel)});
  CodecSettings stochastic = four;
  stochastic.rounding = Rounding::stochastic;
  all.push_back({"directq, 4 bits, stochastic", stochastic});
  for (const MemoryStorage storage : {MemoryStorage::fp32, MemoryStorage::bf16}) {
    const std::string name = kMemoryStorageNames[static_cast<std::size_t>(storage)];
    all.push_back({"directq, 4 bits, ef, " + name, with_feedback(four, FeedbackKind::ef), storage});
    all.push_back(
        {"directq, 4 bits, ef21, " + name, with_feedback(four, FeedbackKind::ef21), storage});
  }
  return all;
}

std::vector<Case> delta_cases() {
  std::vector<Case> all;
  for (const int bits : {2, 3, 4})
    for (std::size_t i = 0; i < kMemoryStorageNames.size(); ++i)
      all.push_back({"aqsgd, " + std::to_string(bits) + " bits, " + kMemoryStorageNames[i],
                     codes(CodecKind::aqsgd, bits), static_cast<MemoryStorage>(i)});
  const CodecSettings three = codes(CodecKind::aqsgd, 3);
  all.push_back({"aqsgd, 3 bits, scale per channel", with_scale(three, ScaleKind::channel)});
  CodecSettings stochastic = three;
  stochastic.rounding = Rounding::stochastic;
  all.push_back({"aqsgd, 3 bits, stochastic", stochastic});
  return all;
}

std::vector<Case> coded_cases() {
  std::vector<Case> all;
  all.push_back({"directq, 4 bits, coded", coded(codes(CodecKind::directq, 4))});
  for (const int bits : {2, 3})
    all.push_back(
        {"aqsgd, " + std::to_string(bits) + " bits, coded", coded(codes(CodecKind::aqsgd, bits))});
  for (const double step : {1.9, 1.0, 0.5, 0.1}) {
    char name[64];
    std::snprintf(name, sizeof name, "aqsgd, rms %g, coded", step);
    all.push_back({name, rms(CodecKind::aqsgd, step)});
  }
  all.push_back(
      {"aqsgd, rms 1, coded, message", with_scale(rms(CodecKind::aqsgd, 1), ScaleKind::message)});
  all.push_back({"directq, rms 0.6, coded, ef",
                 with_feedback(rms(CodecKind::directq, 0.6), FeedbackKind::ef),
                 MemoryStorage::bf16});
  all.push_back({"auto, forward", recommended_settings(Direction::forward)});
  all.push_back({"auto, backward", recommended_settings(Direction::backward), MemoryStorage::bf16});
  return all;
}

std::vector<Case> topk_cases() {
  const CodecSettings tenth = topk(0.1, ChosenValues::fp16);
  CodecSettings changes = tenth;
  changes.kind = CodecKind::aqsgd_topk;
  return {
      {"topk, 50 %, fp16", topk(0.5, ChosenValues::fp16)},
      {"topk, 10 %, fp16", tenth},
      {"topk, 10 %, fp32", topk(0.1, ChosenValues::fp32)},
      {"topk, 10 %, codes of 4 bits", topk(0.1, ChosenValues::codes)},
      {"topk, 1 %, fp16", topk(0.01, ChosenValues::fp16)},
      {"topk, 10 %, fp16, ef", with_feedback(tenth, FeedbackKind::ef), MemoryStorage::bf16},
      {"topk, 10 %, fp16, ef21", with_feedback(tenth, FeedbackKind::ef21), MemoryStorage::bf16},
      {"topk, 10 %, fp16, mixed", with_feedback(tenth, FeedbackKind::mixed), MemoryStorage::bf16},
      {"aqsgd_topk, 10 %, fp16", changes}};
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& some :
       {plain_cases(), quantize_cases(), delta_cases(), coded_cases(), topk_cases()})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

/// Seconds of all samples' visits, and the bytes that these have to touch.
struct Measured {
  std::string name;
  double bits;  ///< per value
  double encode_seconds, decode_seconds;
  double encode_bytes, decode_bytes;
};

struct Bench {
  CodecShape shape;
  int samples;
  Activations x_NC;

  Measured run(const Case& test) const {
    const auto codec = make_codec(test.settings, shape, test.storage);
    const ExecSpace exec;
    const std::size_t record = codec->record().bytes(BoundarySide::sender);
    DeviceBytes pool("pool", record * samples), payload("payload", codec->max_payload_bytes());
    const std::size_t received = codec->record().bytes(BoundarySide::receiver);
    std::size_t sent = 0;  // bytes of the last payload
    const auto visit_all = [&](std::uint32_t visits, bool encodes) {
      for (int s = 0; s < samples; ++s) {
        Crossing visit;
        visit.sample_ids = {static_cast<std::uint64_t>(s)};
        visit.tokens = {shape.tokens};
        visit.visits = {visits};
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
    const double encode = seconds_of([&] { visit_all(2, true); });
    const double decode = seconds_of([&] { visit_all(2, false); });
    const double elements = static_cast<double>(shape.tokens) * shape.channels * samples;
    const double payload_bytes = static_cast<double>(sent) * samples;
    const auto bytes_with = [&](std::size_t kept) {
      return 4 * elements + 2.0 * static_cast<double>(kept) * samples + payload_bytes;
    };
    return {test.name, 8 * payload_bytes / elements, encode,
            decode,    bytes_with(record),           bytes_with(received)};
  }
};

struct Shares {
  double encode, decode, both;
};

Shares shares_of(const Measured& m, double bandwidth) {
  return {m.encode_bytes / m.encode_seconds / bandwidth,
          m.decode_bytes / m.decode_seconds / bandwidth,
          (m.encode_bytes + m.decode_bytes) / (m.encode_seconds + m.decode_seconds) / bandwidth};
}

void print(const Measured& m, double bandwidth) {
  const Shares share = shares_of(m, bandwidth);
  std::printf(
      "%-40s %5.2f bit  encode %6.2f GB/s %4.0f %%  decode %6.2f GB/s %4.0f %%  both %4.0f %%\n",
      m.name.c_str(), m.bits, m.encode_bytes / m.encode_seconds / 1e9, 100 * share.encode,
      m.decode_bytes / m.decode_seconds / 1e9, 100 * share.decode, 100 * share.both);
}

/// The table as scripts/render_results.py reads it.
bool write_results(const Options& options, const std::vector<Measured>& all, double bandwidth) {
  std::FILE* file = std::fopen(options.results.c_str(), "w");
  if (file == nullptr) return false;
  const std::time_t time = std::time(nullptr);
  char date[16];
  std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&time));
  std::fprintf(
      file,
      "# SPDX-License-Identifier: BSD-3-Clause\n"
      "# Speed of codecs, written by codec_benchmark: table of docs/codec_measurements.md.\n"
      "commit = \"%s\"\ncommit_is = \"measured\"\ndate = %s\nmachine = \"%s\"\n"
      "command = \"%scodec_benchmark --results FILE --machine NAME\"\n"
      "note = \"%d thread(s), %d samples of %d tokens × %d channels, the triad %.1f GB/s\"\n",
      std::string(revision()).c_str(), date, options.machine.c_str(),
      kTeamExecution ? ("OMP_NUM_THREADS=" + std::to_string(threads()) + " ").c_str() : "",
      threads(), options.samples, options.tokens, options.channels, bandwidth / 1e9);
  std::fprintf(file,
               "columns = [\n"
               "  { heading = \"codec\", cell = \"{codec}\" },\n"
               "  { heading = \"bits per value\", cell = \"{bits:.2f}\" },\n"
               "  { heading = \"encode, GB/s\", cell = \"{encode:.1f}\" },\n"
               "  { heading = \"of the triad\", cell = \"{encode_percent:.0f} %%\" },\n"
               "  { heading = \"decode, GB/s\", cell = \"{decode:.1f}\" },\n"
               "  { heading = \"of the triad\", cell = \"{decode_percent:.0f} %%\" },\n"
               "  { heading = \"both, of the triad\", cell = \"{both_percent:.0f} %%\" },\n"
               "]\n");
  for (const Measured& m : all) {
    const Shares share = shares_of(m, bandwidth);
    std::fprintf(file,
                 "\n[[row]]\ncodec = \"%s\"\nbits = %.3f\nencode = %.3f\nencode_percent = %.2f\n"
                 "decode = %.3f\ndecode_percent = %.2f\nboth_percent = %.2f\n",
                 m.name.c_str(), m.bits, m.encode_bytes / m.encode_seconds / 1e9,
                 100 * share.encode, m.decode_bytes / m.decode_seconds / 1e9, 100 * share.decode,
                 100 * share.both);
  }
  return std::fclose(file) == 0;
}

}  // namespace

DELTAPIPE_REMEMBER_CORES_FIRST();

int main(int argc, char** argv) {
  restart_with_better_settings(argv);
  Kokkos::ScopeGuard kokkos(argc, argv);
  return status_of(argv[0], [&] {
    use_threads_of_environment();
    const std::optional<Options> options = parse(argc, argv);
    if (!options) {
      std::fprintf(
          stderr,
          "usage: codec_benchmark [T C samples] [--results FILE --machine NAME | --only TEXT]\n");
      return 2;
    }
    const CodecShape shape{1, options->tokens, options->channels};
    const std::size_t floats =
        static_cast<std::size_t>(options->tokens) * options->channels * options->samples;
    const Bench bench{shape, options->samples,
                      Activations("x", floats / options->channels, options->channels)};
    const double before = triad_bytes_per_second(floats / 2);
    std::printf("T=%d C=%d samples=%d, triad %.2f GB/s\n", options->tokens, options->channels,
                options->samples, before / 1e9);
    std::vector<Measured> all;
    for (const Case& test : cases()) {
      if (test.name.find(options->only) == std::string::npos) continue;
      all.push_back(bench.run(test));
      print(all.back(), before);
    }
    const double after = triad_bytes_per_second(floats / 2);
    std::printf("triad afterwards %.2f GB/s\n", after / 1e9);
    if (options->results.empty()) return 0;
    if (write_results(*options, all, std::max(before, after))) return 0;
    std::fprintf(stderr, "codec_benchmark: cannot write %s\n", options->results.c_str());
    return 1;
  });
}
