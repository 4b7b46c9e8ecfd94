// SPDX-License-Identifier: BSD-3-Clause
// A boundary between two ranks (mpirun -n 2): rank 0 sends activations of four samples through
// AQ-SGD with 4 bits, rank 1 receives them, for three epochs.
#include <cmath>
#include <cstdio>
#include <deltapipe/comm/boundary/boundary.hpp>
#include <deltapipe/comm/transport/mpi_session.hpp>
#include <memory>
#include <optional>

using namespace deltapipe;

int main(int argc, char** argv) {
  const MpiSession mpi(&argc, &argv);
  const Kokkos::ScopeGuard kokkos(argc, argv);
  if (mpi.size() != 2) {
    std::fprintf(stderr, "start it on two ranks: mpirun -n 2 %s\n", argv[0]);
    return 1;
  }
  const ExecSpace exec;
  constexpr int B = 2, T = 16, C = 64, kSamples = 4;

  BoundaryEndPlan plan;  // the same at both ends, but for the side
  plan.codec.settings.kind = CodecKind::aqsgd;
  plan.codec.settings.bits = 4;
  plan.codec.shape = {B, T, C};
  plan.memory.samples = kSamples;
  plan.side = mpi.rank() == 0 ? BoundarySide::sender : BoundarySide::receiver;

  ProgressThread progress(MPI_COMM_WORLD);  // makes all MPI calls
  std::optional<BoundarySender> sender;
  std::optional<BoundaryReceiver> receiver;
  if (mpi.rank() == 0)
    sender.emplace(progress, MPI_COMM_WORLD, 1, kForwardTag, plan,
                   std::make_shared<EmulatedLink>(LinkSettings{}), "example");
  else
    receiver.emplace(progress, MPI_COMM_WORLD, 0, kForwardTag, plan, "example");

  const Matrix<float> x_BTC("example::activations", B * T, C);
  for (std::uint32_t step = 0; step < 6; ++step) {
    Crossing crossing;
    crossing.step = step;
    crossing.epoch = step / 2;
    crossing.sample_ids =
        step % 2 == 0 ? std::vector<std::uint64_t>{0, 1} : std::vector<std::uint64_t>{2, 3};
    crossing.tokens = {T, T};
    if (sender) {
      Kokkos::deep_copy(x_BTC, 1.0f + std::exp2(-1.0f * static_cast<float>(step)));
      sender->send(exec, crossing, x_BTC);
      std::printf("step %u: %llu bytes\n", step,
                  static_cast<unsigned long long>(sender->take_statistics().bytes));
    } else {
      receiver->receive(exec, crossing, x_BTC);
    }
  }
  if (sender) sender->flush();
  return 0;
}
