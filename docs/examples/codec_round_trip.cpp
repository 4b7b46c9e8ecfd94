// SPDX-License-Identifier: BSD-3-Clause
// Both ends of AQ-SGD in one process: a sample's activation crosses five times, each time as 3-bit
// codes of its change. Prints bytes and the relative error that the receiver sees.
#include <cmath>
#include <cstdio>
#include <deltapipe/core/codec/codec.hpp>

using namespace deltapipe;

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  const ExecSpace exec;
  constexpr int T = 16, C = 64;  // one sample of 16 tokens and 64 channels

  CodecSettings settings;
  settings.kind = CodecKind::aqsgd;
  settings.bits = 3;
  const auto sender = make_codec(settings, {1, T, C}, MemoryStorage::fp16);
  const auto receiver = make_codec(settings, {1, T, C}, MemoryStorage::fp16);

  // A record for each end's memory of the sample, and the payload between them.
  const std::size_t record = sender->record().bytes(BoundarySide::sender);
  const MemoryRecords sent{DeviceBytes("example::senderRecord", record), {0}};
  const MemoryRecords received{DeviceBytes("example::receiverRecord", record), {0}};
  const DeviceBytes payload("example::payload", sender->max_payload_bytes());
  const Matrix<float> a_TC("example::activation", T, C), x_TC("example::received", T, C);

  Crossing crossing;
  crossing.sample_ids = {7};
  crossing.tokens = {T};
  double last_error = 1;
  for (std::uint32_t visit = 0; visit < 5; ++visit) {
    const auto a_host = Kokkos::create_mirror_view(a_TC);
    for (int i = 0; i < T * C; ++i)  // changes less from visit to visit, as in training
      a_host.data()[i] = std::sin(0.1f * static_cast<float>(i) + std::exp2(-1.0f * visit));
    Kokkos::deep_copy(a_TC, a_host);

    crossing.visits = {visit};
    const std::size_t bytes = sender->encode(exec, crossing, a_TC, sent, payload);
    receiver->decode(exec, crossing, payload, bytes, received, x_TC);
    exec.fence();

    const auto x_host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), x_TC);
    double error2 = 0, signal2 = 0;
    for (int i = 0; i < T * C; ++i) {
      error2 += std::pow(x_host.data()[i] - a_host.data()[i], 2);
      signal2 += std::pow(a_host.data()[i], 2);
    }
    last_error = std::sqrt(error2 / signal2);
    std::printf("visit %u: %zu bytes of %zu, error %.4f\n", visit, bytes, sizeof(float) * T * C,
                last_error);
  }
  return last_error < 0.03 ? 0 : 1;
}
