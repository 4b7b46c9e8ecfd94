// SPDX-License-Identifier: BSD-3-Clause
// Sums over replicas: every codec's result against the formula of replica_sum.hpp.
#include "comm/replicas/replica_sum.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <exception>
#include <functional>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "comm/transport/agree.hpp"
#include "core/base/error.hpp"
#include "mpi_test.hpp"
#include "support/memory_state_reader.hpp"

namespace deltapipe {
namespace {

/// Value of a replica at an element of a bucket in a round.
using Values = std::function<float(int replica, std::size_t bucket, std::size_t i, int round)>;

float wave(int replica, std::size_t bucket, std::size_t i, int round) {
  const auto x = static_cast<float>(i + 3 * bucket + 1);
  return std::sin(x * (1.0f + 0.1f * static_cast<float>(round))) * static_cast<float>(replica + 1) /
         3.0f * (i / 512 % 2 == 0 ? 1.0f : 1e-6f);
}

/// Magnitudes from 1 to 400, few of them large.
float spread(int replica, std::size_t bucket, std::size_t i, int round) {
  const double x = std::sin(static_cast<double>(i + 7919 * bucket + 104729 * round) * 12.9898 +
                            78.233 * replica) *
                   43758.5453;
  const double fraction = x - std::floor(x);
  return static_cast<float>((fraction < 0.5 ? -1 : 1) *
                            std::pow(400.0, 2 * fraction - std::floor(2 * fraction)));
}

class Sums {
 public:
  Sums(ProgressThread& progress, std::vector<std::size_t> sizes, ReplicaSettings settings,
       PayloadMemory memory = PayloadMemory::host, std::shared_ptr<EmulatedLink> link = nullptr,
       MPI_Comm comm = MPI_COMM_WORLD)
      : progress_(progress), sizes_(std::move(sizes)) {
    std::vector<SumBucket> order;
    for (std::size_t b = 0; b < sizes_.size(); ++b) {
      buckets_.emplace_back("deltapipe::Test::bucket", sizes_[b]);
      order.push_back({static_cast<int>(b), buckets_[b]});
    }
    sum_ = std::make_unique<ReplicaSum>(progress, ReplicaSum::Place{0, comm, std::move(link)},
                                        order, settings, memory);
  }

  /// Waits for all ranks: the receives of one object must not match the sends of the next one.
  ~Sums() {
    sum_.reset();
    if (std::uncaught_exceptions() == 0) barrier(progress_, MPI_COMM_WORLD);
  }
  Sums(const Sums&) = delete;
  Sums& operator=(const Sums&) = delete;

  /// Returns the sums of this rank's values, bucket by bucket.
  std::vector<std::vector<float>> add(const Values& values, int round = 0, double epoch = 1) {
    const ExecSpace exec;
    sum_->begin(epoch, true);
    for (std::size_t b = 0; b < sizes_.size(); ++b) {
      const auto host = Kokkos::create_mirror_view(buckets_[b]);
      for (std::size_t i = 0; i < sizes_[b]; ++i) host(i) = values(progress_.rank(), b, i, round);
      Kokkos::deep_copy(buckets_[b], host);
      sum_->start(exec, static_cast<int>(b));
      sum_->poll(exec);
    }
    sum_->finish(exec);
    exec.fence();
    std::vector<std::vector<float>> sums;
    for (std::size_t b = 0; b < sizes_.size(); ++b) {
      const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), buckets_[b]);
      sums.emplace_back(host.data(), host.data() + sizes_[b]);
    }
    return sums;
  }

  ReplicaSum& operator*() { return *sum_; }
  ReplicaSum* operator->() { return sum_.get(); }

 private:
  ProgressThread& progress_;
  std::vector<std::size_t> sizes_;
  std::vector<Vector<float>> buckets_;
  std::unique_ptr<ReplicaSum> sum_;
};

void check_same_on_all_ranks(ProgressThread& progress,
                             const std::vector<std::vector<float>>& sums) {
  for (const std::vector<float>& sum : sums) {
    const std::string bits(reinterpret_cast<const char*>(sum.data()), sum.size() * sizeof(float));
    for (const std::string& other : gather(progress, MPI_COMM_WORLD, bits, 0))
      CHECK((other == bits));
  }
}

/// The algorithm in double precision, for all replicas at once.
class Reference {
 public:
  Reference(std::vector<std::size_t> sizes, int replicas, const ReplicaSettings& settings)
      : sizes_(std::move(sizes)), replicas_(replicas), settings_(settings), bits_(settings.bits) {
    for (const std::size_t size : sizes_) errors_.emplace_back(replicas, std::vector<double>(size));
  }

  std::vector<std::vector<double>> add(const Values& values, int round) {
    std::vector<std::vector<double>> sums;
    for (const std::size_t size : sizes_) sums.emplace_back(size);
    for (const SumChunk& chunk : sum_chunks(sizes_, replicas_))
      for (int owner = 0; owner < replicas_; ++owner) {
        const SumRange part = chunk.part(owner);
        const std::size_t group = settings_.codec == ReplicaCodec::topk ? 4096 : 512;
        for (std::size_t begin = part.begin; begin < part.begin + part.size; begin += group) {
          const std::size_t n = std::min<std::size_t>(group, part.begin + part.size - begin);
          std::vector<double> sum(n);
          for (int r = 0; r < replicas_; ++r) {
            std::vector<double> x(n);
            for (std::size_t i = 0; i < n; ++i) x[i] = values(r, chunk.bucket, begin + i, round);
            if (r != owner) x = sent(std::move(x), &errors_[chunk.bucket][r][begin]);
            for (std::size_t i = 0; i < n; ++i) sum[i] += x[i];
          }
          sum = sent(std::move(sum), &errors_[chunk.bucket][owner][begin]);
          std::copy(sum.begin(), sum.end(), sums[chunk.bucket].begin() + begin);
        }
      }
    return sums;
  }

 private:
  /// Q(x + e); e becomes what it leaves out.
  std::vector<double> sent(std::vector<double> x, double* e) const {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += e[i];
    const std::vector<bool> is_sent = chosen(x);
    const auto count = static_cast<double>(std::count(is_sent.begin(), is_sent.end(), true));
    double most = 0, mean = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (!is_sent[i]) continue;
      most = std::max(most, std::abs(x[i]));
      mean += std::abs(x[i]) / count;
    }
    const double s = bits_ == 1               ? rounded_up(mean)
                     : bits_ > 4 || most == 0 ? rounded_up(most / reach())
                                              : rounded_up(fitted_scale(x, is_sent));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double sent = is_sent[i] ? nearest(x[i], s) : 0;
      e[i] = x[i] - sent;
      x[i] = sent;
    }
    return x;
  }

  double reach() const { return bits_ == 2 ? 4 : (1 << (bits_ - 1)) - 1; }

  /// The nearest value that a code of scale s has.
  double nearest(double x, double s) const {
    const double largest = (1 << (bits_ - 1)) - 1, sign = x >= 0 ? 1 : -1;
    if (bits_ == 1) return sign * s;
    if (bits_ == 2) return sign * s * (std::abs(x) >= 2 * s ? 3 : 1);
    return s > 0 ? s * std::clamp(std::rint(x / s), -largest, largest) : 0;
  }

  /// The scale of those tried that has the least squared error.
  double fitted_scale(const std::vector<double>& x, const std::vector<bool>& is_sent) const {
    double most = 0, mean2 = 0, count = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (!is_sent[i]) continue;
      most = std::max(most, std::abs(x[i]));
      mean2 += x[i] * x[i];
      count += 1;
    }
    const double coarsest = most / reach();
    const double for_normal = bits_ == 2 ? 0.4978 : bits_ == 3 ? 0.6508 : 0.3534;
    double best = coarsest, least = std::numeric_limits<double>::max();
    for (int k = -2; k < 6; ++k) {
      const double tried =
          k == -2
              ? coarsest
              : std::min(for_normal * std::sqrt(mean2 / count) * std::pow(2, 0.5 * k), coarsest);
      double error2 = 0;
      for (std::size_t i = 0; i < x.size(); ++i)
        if (is_sent[i]) error2 += std::pow(x[i] - nearest(x[i], tried), 2);
      if (error2 < least) std::tie(least, best) = std::pair(error2, tried);
    }
    return best;
  }

  /// All, or the largest magnitudes.
  std::vector<bool> chosen(const std::vector<double>& x) const {
    if (settings_.codec != ReplicaCodec::topk) return std::vector<bool>(x.size(), true);
    std::vector<std::size_t> order(x.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return std::abs(x[a]) > std::abs(x[b]); });
    const long most = std::max(1L, static_cast<long>(x.size() / 4));
    const long wanted = std::lround(settings_.topk * static_cast<double>(x.size()));
    std::vector<bool> is_chosen(x.size());
    for (long j = 0; j < std::clamp(wanted, 1L, most); ++j)
      is_chosen[order[static_cast<std::size_t>(j)]] = true;
    return is_chosen;
  }

  /// To 9 bits of mantissa.
  static double rounded_up(double x) {
    int exponent = 0;
    const double mantissa = std::frexp(x, &exponent);
    return std::ldexp(std::ceil(std::ldexp(mantissa, 9)), exponent - 9);
  }

  std::vector<std::size_t> sizes_;
  int replicas_;
  ReplicaSettings settings_;
  int bits_;
  std::vector<std::vector<std::vector<double>>> errors_;  ///< [bucket][replica][element]
};

TEST_CASE("Gradients are summed to the same bits on all replicas", "[replicas][gpu_aware]") {
  const PayloadMemory memory = GENERATE(PayloadMemory::host, PayloadMemory::device);
  const ReplicaCodec codec = GENERATE(ReplicaCodec::none, ReplicaCodec::bf16);
  ProgressThread progress(MPI_COMM_WORLD);
  const int size = progress.size();
  const std::vector<std::size_t> sizes = {1, 1000, 0, 600'147, 5, 2};
  const ReplicaSettings settings{.codec = codec};
  Sums sums(progress, sizes, settings, memory);
  for (int round = 0; round < 2; ++round) {
    const std::vector<std::vector<float>> found = sums.add(wave, round);
    check_same_on_all_ranks(progress, found);
    std::size_t others = 0;  // than sums in the order of the ranks
    double worst = 0;
    for (std::size_t b = 0; b < sizes.size(); ++b)
      for (std::size_t i = 0; i < sizes[b]; ++i) {
        float sum = wave(0, b, i, round);
        double magnitude = std::abs(sum);
        for (int r = 1; r < size; ++r) {
          sum += wave(r, b, i, round);
          magnitude += std::abs(wave(r, b, i, round));
        }
        others += found[b][i] == sum ? 0 : 1;
        worst = std::max(worst, std::abs(found[b][i] - sum) / (magnitude + 1e-30));
      }
    if (codec == ReplicaCodec::none || size == 1)
      CHECK(others == 0);
    else
      CHECK((worst > 0 && worst < 2.0 / 256));
  }
  const std::uint64_t sent = sums->take_statistics(ExecSpace()).bytes;
  CHECK(all_reduce(progress, MPI_COMM_WORLD, sent, Reduction::sum) ==
        2 * replica_sum_bytes(sizes, size, settings));
}

TEST_CASE("All replicas together send what a ring sends, and headers", "[replicas]") {
  const std::vector<std::size_t> sizes = {1, 1000, 0, 600'147};
  const std::uint64_t values = 601'148;
  CHECK(replica_sum_bytes(sizes, 1, {}) == 0);
  for (const int replicas : {2, 3, 4, 64}) {
    const std::uint64_t ring = 2 * 4 * (replicas - 1) * values;
    const std::uint64_t sent = replica_sum_bytes(sizes, replicas, {});
    CHECK(sent > ring);
    CHECK(static_cast<double>(sent) < 1.01 * static_cast<double>(ring) + 1e5);
  }
  // 1,024 values in two groups: two scales of 2 bytes and packed codes, there and back.
  for (const int bits : {1, 3, 8}) {
    const ReplicaSettings settings{.codec = ReplicaCodec::quantized, .bits = bits};
    CHECK(replica_sum_bytes(std::vector<std::size_t>{1024}, 2, settings) ==
          4 * (sizeof(MessageHeader) + 2 + 64 * static_cast<std::uint64_t>(bits)));
  }
  // 82 of 4,096 values: a scale, codes of 2 bits, 5 bits and a row of 82 + 127 bits for positions.
  const ReplicaSettings settings{.codec = ReplicaCodec::topk, .bits = 2, .topk = 0.02};
  CHECK(replica_sum_bytes(std::vector<std::size_t>{8192}, 2, settings) ==
        4 * (sizeof(MessageHeader) + 2 + 2 * 11 + 5 * 11 + 27));
}

void check_formula(const std::vector<std::size_t>& sizes, const ReplicaSettings& settings,
                   PayloadMemory memory, const Values& values) {
  ProgressThread progress(MPI_COMM_WORLD);
  if (progress.size() == 1) return;
  Sums sums(progress, sizes, settings, memory);
  Reference reference(sizes, progress.size(), settings);
  for (int round = 0; round < 3; ++round) {
    const std::vector<std::vector<float>> found = sums.add(values, round);
    check_same_on_all_ranks(progress, found);
    const std::vector<std::vector<double>> expected = reference.add(values, round);
    // fp32 and fp16 errors move a value that is next to the middle of two levels, or next to the
    // smallest one that is sent.
    std::size_t others = 0, all = 0, moved = 0;
    for (std::size_t b = 0; b < sizes.size(); ++b) {
      for (std::size_t i = 0; i < sizes[b]; ++i) {
        const double x = found[b][i], y = expected[b][i];
        others += std::abs(x - y) > 0.02 * std::abs(y) + 1e-12;
        all += x != 0 || y != 0;
        moved += (x != 0) != (y != 0);
      }
    }
    INFO("bits " << settings.bits << ", topk " << settings.topk << ", round " << round << ": "
                 << others << " of " << all << " differ, " << moved << " in their places");
    CHECK(all > 0);
    CHECK(others <= all / 50 + (round == 0 ? 0 : 4));
    if (round == 0) CHECK(moved <= all / 500);
  }
}

TEST_CASE("Quantised sums follow their formula", "[replicas][gpu_aware]") {
  const PayloadMemory memory = GENERATE(PayloadMemory::host, PayloadMemory::device);
  const int bits = GENERATE(1, 2, 3, 4, 5, 8);
  const ReplicaSettings settings{.codec = ReplicaCodec::quantized, .bits = bits};
  check_formula({700, 0, 1, 5000, 513}, settings, memory, wave);
  // One value of a group is much larger than the others, or the only one.
  check_formula({5000}, settings, memory, [](int r, std::size_t b, std::size_t i, int round) {
    return i % 512 == 7 ? 100.0f : i / 512 % 2 == 0 ? wave(r, b, i, round) : 0.0f;
  });
}

TEST_CASE("Sums of the largest values follow their formula", "[replicas][gpu_aware]") {
  const PayloadMemory memory = GENERATE(PayloadMemory::host, PayloadMemory::device);
  const int bits = GENERATE(1, 2, 4, 8);
  const double topk = GENERATE(1e-9, 0.001, 0.02, 0.25);
  check_formula({700, 0, 1, 2, 3, 30'000, 4097},
                {.codec = ReplicaCodec::topk, .bits = bits, .topk = topk}, memory, spread);
}

TEST_CASE("The first of equal values are summed", "[replicas]") {
  // 40 or 41 of 4,096 values are larger than the others.
  check_formula({9000}, {.codec = ReplicaCodec::topk, .bits = 4, .topk = 0.02}, PayloadMemory::host,
                [](int, std::size_t, std::size_t i, int) { return i % 100 == 99 ? -3.0f : 1.0f; });
}

TEST_CASE("The largest payload is not always that of the largest part", "[replicas]") {
  check_formula({80, 64}, {.codec = ReplicaCodec::topk, .bits = 2, .topk = 0.02},
                PayloadMemory::host, spread);
  check_formula({1}, {.codec = ReplicaCodec::topk, .bits = 8, .topk = 0.02}, PayloadMemory::host,
                spread);
}

TEST_CASE("Compressed sums have as many bytes under way as fp32 ones", "[replicas]") {
  const std::vector<std::size_t> sizes = {1'400'000};  // six chunks of two replicas
  const ReplicaSettings coded{.codec = ReplicaCodec::quantized, .bits = 4};
  ReplicaSettings warm = coded;
  warm.warmup_epochs = 1;
  CHECK(replica_sum_rounds(sizes, 2, {}) == 2);
  CHECK(replica_sum_rounds(sizes, 2, warm) == 2);
  CHECK(replica_sum_rounds(sizes, 2, coded) == 1);
  check_formula(sizes, coded, PayloadMemory::host, spread);
}

TEST_CASE("A sum over long links takes one message there and one back", "[replicas]") {
  ProgressThread progress(MPI_COMM_WORLD);
  if (progress.size() == 1) return;
  constexpr double kLatency = 0.5;
  const std::vector<std::size_t> sizes = {500, 600, 700, 800};
  const auto link = std::make_shared<EmulatedLink>(LinkSettings{0, kLatency});
  Sums sums(progress, sizes, {}, PayloadMemory::host, link);
  barrier(progress, MPI_COMM_WORLD);
  const TimePoint begin = Clock::now();
  sums.add(wave);
  const double seconds = seconds_between(begin, Clock::now());
  CHECK(seconds > 2 * kLatency);
  CHECK(seconds < 2.9 * kLatency);  // a wait for one chunk at a time takes four latencies
}

TEST_CASE("Errors are those of sums since they were last asked for", "[replicas]") {
  ProgressThread progress(MPI_COMM_WORLD);
  if (progress.size() == 1) return;
  const ExecSpace exec;
  Sums sums(progress, {3000}, {.codec = ReplicaCodec::quantized, .bits = 3});
  sums.add(wave);
  CHECK(sums->take_statistics(exec).error2 > 0);
  CHECK(sums->take_statistics(exec).signal2 == 0);
  sums.add(wave);
  CHECK(sums->take_statistics(exec).signal2 > 0);
}

TEST_CASE("With error feedback, the mean of quantised sums becomes that of the sums",
          "[replicas]") {
  const ReplicaCodec codec = GENERATE(ReplicaCodec::quantized, ReplicaCodec::topk);
  const int bits = GENERATE(1, 2, 4, 8);
  ProgressThread progress(MPI_COMM_WORLD);
  const std::vector<std::size_t> sizes = {1500};
  Sums sums(progress, sizes, {.codec = codec, .bits = bits, .topk = 0.25});
  const auto values = [](int replica, std::size_t, std::size_t i, int) {
    return wave(replica, 0, i % 512, 0);
  };
  std::vector<double> total(sizes[0]);
  const auto distance = [&](int rounds) {
    double error2 = 0, signal2 = 0;
    for (std::size_t i = 0; i < total.size(); ++i) {
      double sum = 0;
      for (int r = 0; r < progress.size(); ++r) sum += values(r, 0, i, 0);
      error2 += std::pow(total[i] / rounds - sum, 2);
      signal2 += sum * sum;
    }
    return std::sqrt(error2 / signal2);
  };
  double first = 0;
  for (int round = 1; round <= 64; ++round) {
    const std::vector<float> found = sums.add(values)[0];
    for (std::size_t i = 0; i < total.size(); ++i) total[i] += found[i];
    if (round == 1) first = distance(1);
  }
  CHECK(distance(64) <= first / 10 + 1e-6);
  CHECK(distance(64) < 0.1);
}

TEST_CASE("Sums of zeros and constants stay what they are", "[replicas]") {
  const int bits = GENERATE(1, 2, 3, 8);
  ProgressThread progress(MPI_COMM_WORLD);
  const auto size = static_cast<float>(progress.size());
  const auto count_zeros = [](Sums& sums) {
    const std::vector<std::vector<float>> zeros = sums.add([](auto...) { return 0.0f; });
    return std::count(zeros[0].begin(), zeros[0].end(), 0.0f);
  };
  {
    Sums sums(progress, {9000}, {.codec = ReplicaCodec::topk, .bits = bits});
    CHECK(count_zeros(sums) == 9000);
  }
  Sums sums(progress, {1300}, {.codec = ReplicaCodec::quantized, .bits = bits});
  CHECK(count_zeros(sums) == 1300);
  const std::vector<std::vector<float>> ones = sums.add([](auto...) { return 1.0f; });
  const auto [least, most] = std::minmax_element(ones[0].begin(), ones[0].end());
  CHECK(*least > 0.5f * size);
  CHECK(*most < 1.1f * size);
}

TEST_CASE("A value that is not finite reaches all replicas", "[replicas]") {
  const ReplicaCodec codec =
      GENERATE(ReplicaCodec::none, ReplicaCodec::bf16, ReplicaCodec::quantized, ReplicaCodec::topk);
  const float bad =
      GENERATE(std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity());
  ProgressThread progress(MPI_COMM_WORLD);
  const int culprit = progress.size() - 1;
  for (const std::size_t place : {std::size_t{3}, std::size_t{1999}}) {
    Sums sums(progress, {2000}, {.codec = codec, .bits = 2});
    const std::vector<float> found = sums.add([&](int replica, std::size_t, std::size_t i, int) {
      return replica == culprit && i == place ? bad : 1.0f;
    })[0];
    CHECK(!std::isfinite(found[place]));
  }
}

TEST_CASE("Errors of quantised sums continue from their state", "[replicas]") {
  ProgressThread progress(MPI_COMM_WORLD);
  const std::vector<std::size_t> sizes = {5000, 3};
  const ReplicaSettings settings{.codec = GENERATE(ReplicaCodec::quantized, ReplicaCodec::topk),
                                 .bits = 3};
  const ExecSpace exec;
  std::vector<std::vector<float>> expected, forgetful;
  StateContent state;
  {
    Sums sums(progress, sizes, settings);
    for (int round = 0; round < 3; ++round) sums.add(wave, round);
    state = state_in_memory(sums->state(exec));
    expected = sums.add(wave, 3);
  }
  CHECK(state.parts.size() == (progress.size() > 1 ? 1 : 0));
  Sums sums(progress, sizes, settings);
  MemoryStateReader reader(state);
  read_state(sums->state(exec), reader);
  CHECK((sums.add(wave, 3) == expected));
  if (progress.size() == 1) return;
  sums->reset(exec);
  CHECK_FALSE((sums.add(wave, 3) == expected));
}

TEST_CASE("Gradients travel in fp32 during the warm-up", "[replicas]") {
  ProgressThread progress(MPI_COMM_WORLD);
  const std::vector<std::size_t> sizes = {3000};
  const ReplicaSettings settings{.codec = ReplicaCodec::quantized, .bits = 4, .warmup_epochs = 1.5};
  std::vector<std::vector<float>> plain;
  {
    Sums sums(progress, sizes, {});
    plain = sums.add(wave);
  }
  Sums sums(progress, sizes, settings);
  CHECK((sums.add(wave, 0, 1.4) == plain));
  CHECK(all_reduce(progress, MPI_COMM_WORLD, sums->take_statistics(ExecSpace()).bytes,
                   Reduction::sum) == replica_sum_bytes(sizes, progress.size(), settings, true));
  CHECK((sums.add(wave, 0, 1.5) == plain) == (progress.size() == 1));
  CHECK(all_reduce(progress, MPI_COMM_WORLD, sums->take_statistics(ExecSpace()).bytes,
                   Reduction::sum) == replica_sum_bytes(sizes, progress.size(), settings));
}

TEST_CASE("Sums pass the emulated link of replicas", "[replicas][link]") {
  ProgressThread progress(MPI_COMM_WORLD);
  if (progress.size() == 1) return;
  const PayloadMemory memory = GENERATE(PayloadMemory::host, PayloadMemory::device);
  LinkSettings settings;
  settings.latency_seconds = 0.05;
  Sums sums(progress, {1001, 3}, {}, memory, std::make_shared<EmulatedLink>(settings));
  const TimePoint begin = Clock::now();
  sums.add([](auto...) { return 1.0f; });
  CHECK(seconds_between(begin, Clock::now()) >= 2 * 0.05);  // there and back
}

TEST_CASE("Memory of sums is that of messages, one part and errors", "[replicas]") {
  const std::vector<std::size_t> sizes = {1000, 2000};
  CHECK(replica_sum_memory(sizes, 1, {}, PayloadMemory::host).bytes(MemoryUse::replicas) == 0);
  CHECK(replica_sum_memory({}, 3, {}, PayloadMemory::host).bytes(MemoryUse::replicas) == 0);
  const auto bytes = [&](ReplicaCodec codec) {
    return replica_sum_memory(sizes, 3, {.codec = codec}, PayloadMemory::host)
        .bytes(MemoryUse::replicas);
  };
  // Parts of 1,024 values: 2 peers, 4 channels, 4 buffers each.
  CHECK(bytes(ReplicaCodec::none) == 2 * 4 * 4 * (128 + 4096) + 4096);
  CHECK(bytes(ReplicaCodec::quantized) == 2 * 4 * 4 * (128 + 1028) + 4096 + 2 * (3072 + 6) + 6 * 8);
}

TEST_CASE("Every bucket of a step is summed once, in its turn", "[replicas]") {
  ProgressThread progress(MPI_COMM_SELF);
  const Vector<float> a("deltapipe::Test::a", 3), b("deltapipe::Test::b", 3);
  const ReplicaSum::Place place{0, MPI_COMM_SELF, nullptr};
  ReplicaSum sum(progress, place, {{7, a}, {2, b}});
  const ExecSpace exec;
  sum.start(exec, 7);
  CHECK_THROWS_AS(sum.start(exec, 7), InternalError);
  CHECK_THROWS_AS(sum.start(exec, 3), InternalError);
  sum.start(exec, 2);
  CHECK_THROWS_AS(sum.start(exec, 2), InternalError);
  sum.finish(exec);
  sum.start(exec, 7);
  CHECK_THROWS_AS(sum.finish(exec), InternalError);
  sum.start_all(exec);
  sum.finish(exec);
}

TEST_CASE("A run that stops during a sum stops on all ranks", "[replicas]") {
  int size = 1, rank = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (size == 1) return;
  MPI_Comm world = MPI_COMM_NULL;  // of no further use after the stop
  MPI_Comm_dup(MPI_COMM_WORLD, &world);
  ProgressThread progress(world);
  const int culprit = size - 1;
  std::string text;
  try {
    agree(progress, [&] {
      Sums sums(progress, {1 << 20, 1 << 20}, {}, PayloadMemory::host, nullptr, world);
      barrier(progress, world);
      if (rank == culprit) throw UserError({.what = "the disk is full"});
      sums.add(wave);
    });
  } catch (const Stopped& stopped) {
    text = stopped.message();
  }
  CHECK(text == "the disk is full");
}

}  // namespace
}  // namespace deltapipe
