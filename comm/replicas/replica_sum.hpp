// SPDX-License-Identifier: BSD-3-Clause
// Sum of gradients over the replicas of a stage while the backward pass still runs, as a
// reduce-scatter and an all-gather of messages. Replica r receives part r of every chunk from all
// others, adds the parts in the order of the replicas, and sends the sum to all. Together the
// replicas send as much as in a ring, 2 (R - 1) times the values, in two steps instead of
// 2 (R - 1).
//
// With a codec both legs are compressed. Own values of part r are added unchanged; every replica,
// r included, continues with the decoded sum. With an error memory e that makes
//   sum = own_r + sum over r' != r of Q(values_r' + e_r'),  result = Q(sum + e_r)
// in which e_r holds the errors of values in the parts of others, and those of sums in part r.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/replicas/part_codec.hpp"
#include "comm/replicas/settings.hpp"
#include "comm/replicas/sum_chunks.hpp"
#include "comm/transport/channel.hpp"
#include "comm/transport/device_checksum.hpp"
#include "comm/transport/progress_thread.hpp"
#include "core/base/observe/memory_ledger.hpp"
#include "core/base/parallel/views.hpp"
#include "core/base/state/state.hpp"

namespace deltapipe {

/// Values that replicas sum together. They become final at the same time.
struct SumBucket {
  int id = 0;
  Vector<float> values;  ///< memory that outlives the sum
};

struct SumStatistics {
  std::uint64_t bytes = 0;  ///< including headers
  /// Squared errors of what the codec sent, and squares of its values, error feedback included;
  /// 0: not measured.
  double error2 = 0, signal2 = 0;
};

/// Returns the elements of each bucket.
std::vector<std::size_t> sizes_of(const std::vector<SumBucket>& buckets);
/// Returns the memory of a sum over buckets of these sizes.
MemoryLedger replica_sum_memory(std::span<const std::size_t> bucket_sizes, int replicas,
                                const ReplicaSettings& settings, PayloadMemory memory);
/// Returns the bytes that all replicas together send in a step.
std::uint64_t replica_sum_bytes(std::span<const std::size_t> bucket_sizes, int replicas,
                                const ReplicaSettings& settings, bool is_warmup = false);

/// Returns the number of pieces in which a sum passes a rank's wire: a piece is the messages that
/// are under way at the same time. Other messages of the rank pass between pieces.
int replica_sum_pieces(std::span<const std::size_t> bucket_sizes, int replicas,
                       const ReplicaSettings& settings);
/// Returns how often a sum has as many messages under way as there are buffers.
int replica_sum_rounds(std::span<const std::size_t> bucket_sizes, int replicas,
                       const ReplicaSettings& settings);

/// Prefix of the names of state parts; the stage's number follows.
inline constexpr const char* kReplicaErrorsPart = "replica errors, stage ";

/// All replicas of a stage call the same functions in the same order. Only poll() may differ. Every
/// replica ends with the same bits.
class ReplicaSum {
 public:
  struct Place {
    int stage = 0;        ///< for messages
    MPI_Comm stage_comm;  ///< joins the replicas of the stage
    /// Link that the rank sends over; null: not emulated.
    std::shared_ptr<EmulatedLink> link;
    int first_tag = 0;               ///< channel number; sums on one communicator are kTags apart
    std::string what = "gradients";  ///< for messages
  };
  static constexpr int kTags = 2;

  /// `buckets` lists all sums of a step in the order in which every replica starts them. `memory`
  /// is the same at all replicas.
  ReplicaSum(ProgressThread& progress, Place place, std::vector<SumBucket> buckets,
             const ReplicaSettings& settings = {}, PayloadMemory memory = PayloadMemory::host);
  ~ReplicaSum();

  /// Begins a step. `epoch` decides on warm-up, the same on all replicas. `measures`: statistics
  /// have errors.
  void begin(double epoch, bool measures);
  /// Starts the sum of a bucket in place. Throws InternalError if it is not the next one of the
  /// step. Kernels that write the bucket must have been queued on `exec`, which is fenced.
  void start(const ExecSpace& exec, int bucket);
  /// Starts all buckets of a step, on a replica without samples, whose gradients are zero.
  void start_all(const ExecSpace& exec);
  /// Continues started sums as far as that is possible without waiting.
  void poll(const ExecSpace& exec);
  /// Returns the name of a message that the started sums wait for; empty: they can continue, or are
  /// complete.
  std::string missing_message() const;
  bool is_complete() const { return gathered_ == ready_; }
  /// Completes the sums of a step. Work that is queued on `exec` afterwards finds them (sums, not
  /// means) in the buckets. Throws InternalError if a bucket was not started in this step.
  void finish(const ExecSpace& exec);

  /// Returns what the sum retains from step to step, one part at most.
  std::vector<StatePart> state(const ExecSpace& exec);
  /// Forgets what it retains, when a step does not count. All replicas call it together.
  void reset(const ExecSpace& exec);
  /// Returns what this rank sent since the last call, and the errors of the last sum if there was
  /// one since then. Waits for exec.
  SumStatistics take_statistics(const ExecSpace& exec);

 private:
  /// Channels to and from another replica.
  struct Peer {
    Peer(ProgressThread& progress, const Place& place, int rank, const ChannelOptions& part,
         const ChannelOptions& sum);

    int replica;
    SendChannel send_part, send_sum;
    ReceiveChannel receive_part, receive_sum;
  };
  /// Part of a chunk that this rank decodes, and its message until the decoding is done.
  struct Decoding {
    ReceiveChannel* channel;
    ReceiveChannel::Received message;
  };

  void open_channels(const Place& place, PayloadMemory memory);
  PartCodec& codec() const { return is_warmup_ ? *warmup_codec_ : *codec_; }
  SumRange part_of(std::size_t chunk, int replica) const { return chunks_[chunk].part(replica); }
  VectorRef<float> values_of(std::size_t chunk, int replica) const;
  std::size_t place_of(std::size_t chunk, int replica) const;
  MessageHeader header(CrossingKind kind, std::size_t chunk, int owner) const;

  // True if the next chunk of a phase can pass it without waiting.
  bool can_scatter() const;
  bool can_reduce() const;
  bool can_gather() const;
  void scatter(const ExecSpace& exec, std::size_t chunk);
  void reduce(const ExecSpace& exec, std::size_t chunk);
  void gather(const ExecSpace& exec, std::size_t chunk);
  void advance(const ExecSpace& exec);

  std::uint8_t* memory_of(const HostBytes& host, const DeviceBytes& device) const;
  void send(const ExecSpace& exec, SendChannel& channel, const SendChannel::Buffer& buffer,
            MessageHeader header, std::size_t bytes);
  Decoding decode(const ExecSpace& exec, ReceiveChannel& channel, const MessageHeader& expected,
                  const VectorRef<float>& values, bool adds) const;

  ProgressThread& progress_;
  const int stage_;
  const std::string what_;
  const bool on_device_;  ///< payloads
  const std::vector<SumBucket> buckets_;
  const ReplicaSettings settings_;
  int replica_ = 0, replicas_ = 1;
  std::vector<SumChunk> chunks_;
  std::vector<std::size_t> chunks_until_;  ///< end of each bucket's chunks
  std::vector<std::size_t> first_place_;   ///< of each bucket in the memory of errors
  std::unique_ptr<PartCodec> codec_, warmup_codec_;
  bool is_warmup_ = false;
  bool measures_ = false;
  bool has_summed_ = false;  ///< since statistics were taken
  std::vector<std::unique_ptr<Peer>> peers_;
  Vector<float> sum_;  ///< of this replica's part of a chunk
  DeviceChecksum checksum_;

  std::uint64_t step_ = 0;
  std::size_t started_ = 0;  ///< buckets of the current step
  // Chunks of the current step that have passed each phase; chunks pass in their order.
  std::size_t ready_ = 0, scattered_ = 0, reduced_ = 0, gathered_ = 0;
};

/// Waits until all started sums are complete. They continue together, whichever message comes
/// first: a wait for one of them would delay the others by a link's latency. Messages about the
/// wait name the first sum that lacks a message.
void complete(std::span<ReplicaSum* const> sums, const ExecSpace& exec, ProgressThread& progress);

}  // namespace deltapipe
