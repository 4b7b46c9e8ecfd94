// SPDX-License-Identifier: BSD-3-Clause
#include "comm/boundary/memory_resync.hpp"

#include <limits>
#include <memory>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/pieces.hpp"

namespace deltapipe {

namespace {

/// Visits of an end's records, followed by their hashes.
using Table = std::vector<std::uint64_t>;

/// Exchanges tables in pieces that MPI can count, with a tag that no channel's pieces use.
Table exchange(ProgressThread& progress, MPI_Comm comm, int peer, int channel, const Table& mine) {
  constexpr std::size_t kPiece = std::size_t{1} << 24;
  const int tag = channel * kTagsPerChannel;
  const auto sent = std::make_shared<Table>(mine);
  const auto received = std::make_shared<Table>(mine.size());
  for_pieces(0, mine.size(), kPiece, [&](std::size_t first, std::size_t count) {
    const int bytes = static_cast<int>(count * sizeof(std::uint64_t));
    const Ticket receive =
        progress.irecv({received, received->data() + first}, bytes, peer, tag, comm);
    const Ticket send = progress.isend({sent, sent->data() + first}, bytes, peer, tag, comm);
    progress.wait(receive);
    progress.wait(send);
  });
  return *received;
}

}  // namespace

ResyncCounts resync_memories(ProgressThread& progress, MPI_Comm comm, int peer, int tag,
                             BoundaryEnd& end) {
  ActivationCache& cache = *end.cache();
  const std::size_t samples = cache.visits().size();
  const std::size_t shared = end.shared_record_bytes();
  Table mine(cache.visits().begin(), cache.visits().end());
  const std::vector<std::uint64_t> hashes = cache.hashes_in_file(shared);
  mine.insert(mine.end(), hashes.begin(), hashes.end());
  const Table theirs = shared > 0 ? exchange(progress, comm, peer, tag, mine) : mine;
  ResyncCounts counts;
  std::vector<std::uint64_t> forgotten;
  for (std::uint64_t sample = 0; sample < samples; ++sample) {
    const bool is_same = mine[sample] == theirs[sample] && mine[samples + sample] != 0 &&
                         mine[samples + sample] == theirs[samples + sample];
    if (is_same) {
      ++counts.kept;
    } else if (mine[sample] > 0 || theirs[sample] > 0) {
      ++counts.forgotten;
      if (mine[sample] > 0) forgotten.push_back(sample);
    }
  }
  cache.forget(forgotten);
  return counts;
}

void forget_damaged(ProgressThread& progress, MPI_Comm comm, int peer, int tag, BoundaryEnd& end,
                    std::span<const Crossing> spoiled) {
  ActivationCache& cache = *end.cache();
  Table mine(cache.visits().size(), 0);
  for (const std::uint64_t sample : cache.take_damaged()) mine[sample] = 1;
  const Table theirs =
      end.shared_record_bytes() > 0 ? exchange(progress, comm, peer, tag, mine) : mine;
  for (const Crossing& crossing : spoiled)
    for (const std::uint64_t record : end.records_of(crossing)) mine[record] = 1;
  std::vector<std::uint64_t> forgotten;
  for (std::uint64_t sample = 0; sample < mine.size(); ++sample)
    if (mine[sample] + theirs[sample] > 0) forgotten.push_back(sample);
  cache.forget(forgotten);
}

}  // namespace deltapipe
