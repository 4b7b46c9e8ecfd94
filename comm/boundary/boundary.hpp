// SPDX-License-Identifier: BSD-3-Clause
// One end of one direction of a boundary: combines codec, activation memories and channel.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/boundary/memory_check.hpp"
#include "comm/boundary/settings.hpp"
#include "comm/transport/channel.hpp"
#include "comm/transport/device_checksum.hpp"
#include "core/base/observe/memory_ledger.hpp"
#include "core/base/parallel/execution.hpp"
#include "core/base/state/state.hpp"
#include "core/cache/activation_cache.hpp"
#include "core/cache/settings.hpp"
#include "core/codec/codec.hpp"
#include "core/codec/quantizer/step_controller.hpp"

namespace deltapipe {

/// Distinguishes the channels between two ranks.
enum ChannelTag : int {
  kForwardTag,
  kBackwardTag,
  kTokenRowsTag,
  kTokenGradientsTag,
  kCommonGradientTag,
  kCommonValuesTag,
  kResyncForwardTag,
  kResyncBackwardTag,
  kChannelTags
};

/// Returns the tag of a channel. Two ranks with several stages each share every pipeline_ranks'th
/// boundary.
inline int boundary_tag(ChannelTag tag, int boundary, int pipeline_ranks) {
  return tag + kChannelTags * (boundary / pipeline_ranks);
}

/// Codec of an end.
struct BoundaryCodec {
  CodecSettings settings;
  CodecShape shape;
  MemoryStorage storage = MemoryStorage::fp16;
  bool training = true;  ///< false: only evaluations cross
  /// Shared by both directions at this end of the boundary; null: gradients do not follow
  /// positions.
  std::shared_ptr<ForwardMasks> masks = nullptr;
};

/// Location of an end's memories; used by codecs that have some.
struct BoundaryMemory {
  std::uint64_t samples = 0;  ///< number of training samples that cross here
  std::uint64_t first_sample = 0;
  std::uint64_t sample_stride = 1;  ///< ids are first_sample + n * sample_stride
  /// Keeps a record for each place of a step instead of each sample; micro-batches follow each
  /// other.
  bool of_positions = false;
  std::uint64_t data_fingerprint = 0;
  std::uint64_t budget_bytes = 0;
  int prefetch_micro_batches = 8;
  std::string directory;   ///< directory of the spill file
  bool keep_file = false;  ///< after the end of the run
  CacheGenerations generations;
  std::uint64_t verify_every = 64;  ///< see MemoryCheck
  int replica = 0;
  CacheIoThread* io = nullptr;
};

/// Plan of one end of one direction of a boundary, before it is built.
struct BoundaryEndPlan {
  BoundaryCodec codec;
  BoundaryMemory memory;
  std::uint32_t boundary = 0;
  std::uint64_t blocks_before = 0;  ///< blocks of the model before the boundary
  bool backward = false;
  BoundarySide side = BoundarySide::receiver;
  int buffers = 2;                                     ///< number of message buffers
  PayloadMemory payload_memory = PayloadMemory::host;  ///< the same at both ends
  EvaluationSettings evaluation;  ///< without modes (gradients): no evaluations cross here
  StepTarget target;              ///< target of a sender's steps in training
};

/// Codecs of an end for training and for the evaluations that cross there.
class BoundaryCodecs {
 public:
  explicit BoundaryCodecs(const BoundaryEndPlan& plan);
  Codec& of(const Crossing& crossing) const;
  /// Returns true if the crossing has the steps of training: evaluations of first visits, and those
  /// without the boundary's codec, have their own.
  bool has_steps_of_training(const Crossing& crossing) const;
  /// Returns null without training.
  Codec* training() const { return training_.get(); }
  /// Returns an empty layout without training.
  RecordLayout record() const { return training_ ? training_->record() : RecordLayout{}; }
  std::size_t max_payload_bytes() const;
  std::size_t memory_bytes() const;

 private:
  std::unique_ptr<Codec> training_;
  std::array<std::unique_ptr<Codec>, 2> evaluation_;  ///< indexed by EvaluationMode
  bool evaluates_first_visits_;
};

/// Returns the memory that the end requires. If memory.samples is 0 (not known yet), the cache
/// counts with its whole budget.
MemoryLedger boundary_end_memory(const BoundaryEndPlan& plan);
/// Space that an end's cache requires; all 0 if the end has no cache. If memory.samples is 0, only
/// record_bytes is set.
struct CacheNeed {
  std::uint64_t record_bytes = 0;   ///< per sample
  std::uint64_t memory_bytes = 0;   ///< records in memory, staging, tables
  std::uint64_t staging_bytes = 0;  ///< part of memory_bytes for reads and writes under way
  std::uint64_t disk_bytes = 0;     ///< space of the spill file, reserved at the start
  std::uint64_t row_bytes = 0;      ///< size of all its records, including those written later
};
CacheNeed cache_need(const BoundaryEndPlan& plan);
/// Throws UserError when the budget of the end's cache is too small.
void check_cache_budget(const BoundaryEndPlan& plan);
std::string spill_file_path(const BoundaryEndPlan& plan);
/// Returns the size of the end's memories in a rank's state once all samples have been visited.
/// Records in a spill file are a part of it only with `copies_files`.
std::uint64_t end_state_bytes(const BoundaryEndPlan& plan, bool copies_files);

/// Base of senders and receivers. An end encodes and decodes on instances.codec, and copies on
/// instances.copy.
class BoundaryEnd {
 public:
  /// `name` is that of the direction, such as "boundary 0 forward".
  BoundaryEnd(ProgressThread& progress, const BoundaryEndPlan& plan, const std::string& name,
              const ExecutionInstances& instances);

  /// Announces the samples of a later step, in their order.
  void prefetch(std::span<const std::uint64_t> sample_ids);
  /// Turns measurements of errors in training on or off. Senders with an error target measure every
  /// message.
  void measure_errors(bool on);
  CodecStatistics take_codec_statistics();
  ActivationCache* cache() { return cache_.get(); }
  /// Returns the records of a crossing's samples in the cache.
  std::span<const std::uint64_t> records_of(const Crossing& crossing);
  /// Returns the size of the part of a record that both ends keep.
  std::size_t shared_record_bytes() const { return codecs_.record().shared_bytes; }
  /// Returns the state of the end. "NAME sender" or "NAME receiver" holds its records; codecs
  /// without records keep nothing from one crossing to the next. kTargetPart + "NAME sender" holds
  /// what it has sent towards its target.
  std::vector<StatePart> state();

 protected:
  /// Fills record_ids_. first_place is the first sample's place in its step.
  void find_records(std::span<const std::uint64_t> sample_ids, std::uint64_t first_place);
  Codec& codec(const Crossing& crossing) const { return codecs_.of(crossing); }
  bool remembers(const Crossing& crossing) const { return cache_ && crossing.training; }
  /// Pins the crossing's records into records_ and sets its visits.
  void acquire_records(Crossing& crossing);
  /// Returns true if a record was damaged: what crosses then does not count.
  bool is_spoiled(const Crossing& crossing) const {
    return remembers(crossing) && cache_->has_damaged();
  }
  /// Unpins the records that the crossing's kernels have changed.
  void release_records(const Crossing& crossing);
  /// Waits for the model's queued work, so that its time counts as the model's.
  void wait_for_compute(const ExecSpace& exec);
  /// Waits until the host or MPI may use the message's buffer, and the host the memories' hashes.
  void wait_for_message() const;
  MessageHeader header(const Crossing& crossing) const;
  ChannelOptions channel_options(const BoundaryEndPlan& plan, const std::string& name) const;
  /// True if MPI reads and writes payloads in device memory.
  bool in_device_memory() const { return checksum_.has_value(); }
  /// True if payloads are copied between host and device memory.
  bool is_staged() const { return staging_.data() != nullptr; }
  /// Returns a message's payload in memory that kernels can access.
  template <class Message>
  DeviceBytes device_payload(const Message& message) const;

  TimeAccount& account_;
  ExecutionInstances instances_;
  std::string state_name_;
  CodecShape shape_;
  double warmup_epochs_;
  bool has_half_memory_;  ///< codecs store memories of samples in fp16
  BoundaryCodecs codecs_;
  std::unique_ptr<ActivationCache> cache_;
  std::optional<StepController> controller_;  ///< set for a sender with a target
  CodecStatistics measured_;                  ///< statistics already taken from the codec
  std::uint64_t first_sample_;
  std::uint64_t sample_stride_;
  bool of_positions_;
  std::vector<std::uint64_t> record_ids_;  ///< records in the cache of the current samples
  MemoryRecords records_;
  MemoryCheck memory_check_;
  DeviceBytes staging_;
  std::optional<DeviceChecksum> checksum_;  ///< set if MPI accesses payloads in device memory
};

/// Sum of the steps (in units of the RMS) of training's messages since the last take_steps().
struct StepStatistics {
  double sum = 0;
  std::uint64_t messages = 0;
};

class BoundarySender : public BoundaryEnd {
 public:
  BoundarySender(ProgressThread& progress, MPI_Comm comm, int peer, int tag,
                 const BoundaryEndPlan& plan, std::shared_ptr<EmulatedLink> link,
                 const std::string& name, const ExecutionInstances& instances = {});

  /// Sends x_BTC, with shape.tokens rows per sample, after the work that is queued on exec. Returns
  /// when x_BTC may be overwritten. Sets crossing.visits.
  void send(const ExecSpace& exec, Crossing& crossing, const MatrixRef<float>& x_BTC);
  /// Waits until all messages have left.
  void flush() { channel_.flush(); }
  ChannelStatistics take_statistics() { return channel_.take_statistics(); }
  StepStatistics take_steps() { return std::exchange(steps_, {}); }
  /// Returns null if the end has no target.
  const StepController* controller() const { return controller_ ? &*controller_ : nullptr; }

 private:
  void choose_step(const Crossing& crossing);
  /// Reports the size and the errors of an encoded message to the controller.
  void note_sent(const Crossing& crossing, std::size_t bytes);

  SendChannel channel_;
  double rms_step_;  ///< step of the current message
  StepStatistics steps_;
};

class BoundaryReceiver : public BoundaryEnd {
 public:
  BoundaryReceiver(ProgressThread& progress, MPI_Comm comm, int peer, int tag,
                   const BoundaryEndPlan& plan, const std::string& name,
                   const ExecutionInstances& instances = {});

  /// Waits for the message and decodes it into x_BTC. The decoding runs after the work that is
  /// already queued on exec and before later work. Sets crossing.visits.
  void receive(const ExecSpace& exec, Crossing& crossing, const MatrixRef<float>& x_BTC);
  ChannelStatistics take_statistics() { return channel_.take_statistics(); }

 private:
  /// Verifies the checksum of a payload in device memory before it is decoded, and copies the
  /// hashes that follow it to the host.
  void check_on_device(const ReceiveChannel::Received& received, std::size_t bytes);

  ReceiveChannel channel_;
  HostBytes sent_hashes_;  ///< hashes of the other end's memories, after a payload in device memory
};

}  // namespace deltapipe
