// SPDX-License-Identifier: BSD-3-Clause
// The other end of a boundary as another build of the codecs makes it (plain instruction set and
// less optimisation, or fused products and sums): its memories must be the same bits.
//
//   codec_plain send FILE       writes all cases' payloads and the sender's hashes
//   codec_plain receive FILE    reads payloads, prints the receiver's hashes
#include <cstdio>
#include <fstream>

#include "support/codec_ends.hpp"

using namespace deltapipe;
using namespace deltapipe::test;

namespace {

void send(std::ofstream file) {
  for (const EndsCase& test : ends_cases()) {
    const EndsRun run = run_sender(test);
    const std::uint64_t head[2] = {run.stream.size(), run.records};
    file.write(reinterpret_cast<const char*>(head), sizeof head);
    file.write(reinterpret_cast<const char*>(run.stream.data()),
               static_cast<std::streamsize>(run.stream.size()));
  }
}

void receive(std::ifstream file) {
  for (const EndsCase& test : ends_cases()) {
    std::uint64_t head[2] = {};
    file.read(reinterpret_cast<char*>(head), sizeof head);
    std::vector<std::uint8_t> stream(head[0]);
    file.read(reinterpret_cast<char*>(stream.data()), static_cast<std::streamsize>(head[0]));
    const EndsRun run = run_receiver(test, stream);
    std::printf("%llx %llx\n", static_cast<unsigned long long>(run.records),
                static_cast<unsigned long long>(run.activations));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  Kokkos::ScopeGuard kokkos(argc, argv);
  if (std::string(argv[1]) == "send")
    send(std::ofstream(argv[2], std::ios::binary));
  else
    receive(std::ifstream(argv[2], std::ios::binary));
  return 0;
}
