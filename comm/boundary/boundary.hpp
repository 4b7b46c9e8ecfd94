// SPDX-License-Identifier: BSD-3-Clause
// One end of one direction of a boundary: codec, activation memories and channel together.
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

#include "comm/boundary/device_checksum.hpp"
#include "comm/boundary/memory_check.hpp"
#include "comm/boundary/settings.hpp"
#include "comm/transport/channel.hpp"
#include "core/base/observe/memory_ledger.hpp"
#include "core/base/parallel/execution.hpp"
#include "core/base/state/state.hpp"
#include "core/cache/activation_cache.hpp"
#include "core/cache/settings.hpp"
#include "core/codec/codec.hpp"
#include "core/codec/quantizer/step_controller.hpp"

namespace deltapipe {

/// Tells the channels between two ranks apart.
enum ChannelTag : int {
  kForwardTag,
  kBackwardTag,
  kTokenRowsTag,
  kTokenGradientsTag,
  kResyncForwardTag,
  kResyncBackwardTag,
  kChannelTags
};
/// Begins the names of the parts of a state that hold a StepController.
inline constexpr std::string_view kTargetPart = "target of ";

/// Two ranks with several stages each have every pipeline_ranks'th boundary in common.
inline int boundary_tag(ChannelTag tag, int boundary, int pipeline_ranks) {
  return tag + kChannelTags * (boundary / pipeline_ranks);
}

/// How an end encodes.
struct BoundaryCodec {
  CodecSettings settings;
  CodecShape shape;
  MemoryStorage storage = MemoryStorage::fp16;
  bool training = true;  ///< false: only evaluations cross
  /// Of both directions at this end of the boundary; null: gradients do not follow positions.
  std::shared_ptr<ForwardMasks> masks = nullptr;
};

/// Storage of an end's memories; used by codecs with memory.
struct BoundaryMemory {
  std::uint64_t samples = 0;  ///< that cross here, of the training set
  std::uint64_t first_sample = 0;
  std::uint64_t sample_stride = 1;  ///< their ids are first_sample + n * sample_stride
  /// A record for each place of a step instead, the samples' micro-batches one after the other.
  bool of_positions = false;
  std::uint64_t data_fingerprint = 0;
  std::uint64_t budget_bytes = 0;
  int prefetch_micro_batches = 8;
  std::string directory;   ///< of the spill file
  bool keep_file = false;  ///< after the end of the run
  CacheGenerations generations;
  std::uint64_t verify_every = 64;  ///< as MemoryCheck has it
  int replica = 0;
  CacheIoThread* io = nullptr;
};

/// One end of one direction of a boundary before it is built.
struct BoundaryEndPlan {
  BoundaryCodec codec;
  BoundaryMemory memory;
  std::uint32_t boundary = 0;
  std::uint64_t blocks_before = 0;  ///< of the model, where stages are cut
  bool backward = false;
  BoundarySide side = BoundarySide::receiver;
  int buffers = 2;                                     ///< of messages
  PayloadMemory payload_memory = PayloadMemory::host;  ///< the same at both ends
  EvaluationSettings evaluation;  ///< no modes: evaluations do not cross here, as gradients do not
  StepTarget target;              ///< of a sender's steps in training
};

/// The codecs of an end: that of training and those of evaluations, whichever cross there.
class BoundaryCodecs {
 public:
  explicit BoundaryCodecs(const BoundaryEndPlan& plan);
  Codec& of(const Crossing& crossing) const;
  /// Null without training.
  Codec* training() const { return training_.get(); }
  /// Nothing without training.
  RecordLayout record() const { return training_ ? training_->record() : RecordLayout{}; }
  std::size_t max_payload_bytes() const;
  std::size_t memory_bytes() const;

 private:
  std::unique_ptr<Codec> training_;
  std::array<std::unique_ptr<Codec>, 2> evaluation_;  ///< by EvaluationMode
};

/// Memory of the end. memory.samples 0: not known yet, the cache uses its budget.
MemoryLedger boundary_end_memory(const BoundaryEndPlan& plan);
/// Needs of its cache; all 0: no cache. Only records if memory.samples is 0.
struct CacheNeed {
  std::uint64_t record_bytes = 0;   ///< of a sample
  std::uint64_t memory_bytes = 0;   ///< records in memory, staging, tables
  std::uint64_t staging_bytes = 0;  ///< of memory_bytes: for reads and writes under way
  std::uint64_t disk_bytes = 0;     ///< of the spill file, that it takes at the start
  std::uint64_t row_bytes = 0;      ///< of all its records, also those that take space later
};
CacheNeed cache_need(const BoundaryEndPlan& plan);
/// UserError when the budget of its cache is too small.
void check_cache_budget(const BoundaryEndPlan& plan);
std::string spill_file_path(const BoundaryEndPlan& plan);

/// Common part of both kinds of ends. An end encodes and decodes on instances.codec, and copies on
/// instances.copy.
class BoundaryEnd {
 public:
  /// `name` of the direction: "boundary 0 forward".
  BoundaryEnd(ProgressThread& progress, const BoundaryEndPlan& plan, const std::string& name,
              const ExecutionInstances& instances);

  /// Announces the samples of a later step, in their order.
  void prefetch(std::span<const std::uint64_t> sample_ids);
  /// In training. Senders that hold an error measure every message.
  void measure_errors(bool on);
  CodecStatistics take_codec_statistics();
  ActivationCache* cache() { return cache_.get(); }
  /// Records of a crossing's samples in the cache.
  std::span<const std::uint64_t> records_of(const Crossing& crossing);
  /// The part of a record that both ends keep.
  std::size_t shared_record_bytes() const { return codecs_.record().shared_bytes; }
  /// State of the end: "NAME sender" or "NAME receiver" with its records, since codecs
  /// without records keep nothing from one crossing to the next, and kTargetPart + "NAME sender"
  /// with what it has sent towards its target.
  std::vector<StatePart> state();

 protected:
  /// Fills record_ids_; the first sample stands at a place of its step.
  void find_records(std::span<const std::uint64_t> sample_ids, std::uint64_t first_place);
  Codec& codec(const Crossing& crossing) const { return codecs_.of(crossing); }
  bool remembers(const Crossing& crossing) const { return cache_ && crossing.training; }
  /// Pins the crossing's records into records_ and fills in its visits.
  void acquire_records(Crossing& crossing);
  /// A record was damaged: what crosses does not count.
  bool is_spoiled(const Crossing& crossing) const {
    return remembers(crossing) && cache_->has_damaged();
  }
  /// Unpins what the crossing's kernels have changed.
  void release_records(const Crossing& crossing);
  /// Waits for what the model has queued, so that its time counts as the model's.
  void wait_for_compute(const ExecSpace& exec);
  /// After this the host or MPI may use the message's buffer, and the host the memories' hashes.
  void wait_for_message() const;
  MessageHeader header(const Crossing& crossing) const;
  std::size_t max_payload_bytes() const;  ///< of the codecs
  std::size_t max_message_bytes() const;  ///< hashes of memories included
  ChannelOptions channel_options(const BoundaryEndPlan& plan, const std::string& name) const;
  /// MPI finds payloads in device memory.
  bool in_device_memory() const { return checksum_.has_value(); }
  /// Payloads pass through device memory beside the host's.
  bool is_staged() const { return staging_.data() != nullptr; }
  /// A message's payload where kernels reach it.
  template <class Message>
  DeviceBytes device_payload(const Message& message) const;

  TimeAccount& account_;
  ExecutionInstances instances_;
  std::string state_name_;
  CodecShape shape_;
  double warmup_epochs_;
  bool has_half_memory_;  ///< what codecs keep of samples is kept in fp16
  BoundaryCodecs codecs_;
  std::unique_ptr<ActivationCache> cache_;
  std::optional<StepController> controller_;  ///< a sender's with a target
  CodecStatistics measured_;                  ///< what it has taken from the codec
  std::uint64_t first_sample_;
  std::uint64_t sample_stride_;
  bool of_positions_;
  std::vector<std::uint64_t> record_ids_;  ///< of the samples at hand, in the cache
  MemoryRecords records_;
  MemoryCheck memory_check_;
  DeviceBytes staging_;
  std::optional<DeviceChecksum> checksum_;  ///< of payloads that MPI finds in device memory
};

/// Steps of the RMS that training's messages had since the last take_steps().
struct StepStatistics {
  double sum = 0;
  std::uint64_t messages = 0;
};

class BoundarySender : public BoundaryEnd {
 public:
  BoundarySender(ProgressThread& progress, MPI_Comm comm, int peer, int tag,
                 const BoundaryEndPlan& plan, std::shared_ptr<EmulatedLink> link,
                 const std::string& name, const ExecutionInstances& instances = {});

  /// x_BTC: rows of shape.tokens a sample, as what is queued on exec leaves them. Returns when
  /// x_BTC may be overwritten. Fills in crossing.visits.
  void send(const ExecSpace& exec, Crossing& crossing, const MatrixRef<float>& x_BTC);
  /// Waits until everything left.
  void flush() { channel_.flush(); }
  ChannelStatistics take_statistics() { return channel_.take_statistics(); }
  StepStatistics take_steps() { return std::exchange(steps_, {}); }
  /// Null: the end has no target.
  const StepController* controller() const { return controller_ ? &*controller_ : nullptr; }

 private:
  void choose_step(const Crossing& crossing);
  /// Puts hashes of memories behind a payload: in the host's memory, whatever hash() has left
  /// there, and in device memory, on instances.codec.
  void append_hashes(const Crossing& crossing, const SendChannel::Buffer& buffer,
                     std::size_t bytes) const;
  /// Tells the controller what became of a message of so many bytes, which is encoded.
  void note_sent(const Crossing& crossing, std::size_t bytes);

  SendChannel channel_;
  double rms_step_;  ///< of the messages at hand
  StepStatistics steps_;
};

class BoundaryReceiver : public BoundaryEnd {
 public:
  BoundaryReceiver(ProgressThread& progress, MPI_Comm comm, int peer, int tag,
                   const BoundaryEndPlan& plan, const std::string& name,
                   const ExecutionInstances& instances = {});

  /// Waits for the message and decodes it into x_BTC, behind what is queued on exec and before what
  /// comes next there. Fills in crossing.visits.
  void receive(const ExecSpace& exec, Crossing& crossing, const MatrixRef<float>& x_BTC);
  ChannelStatistics take_statistics() { return channel_.take_statistics(); }

 private:
  /// Refuses a payload in device memory that is damaged, before it is decoded, and fetches the
  /// hashes behind it.
  void check_on_device(const ReceiveChannel::Received& received, std::size_t bytes);

  ReceiveChannel channel_;
  HostBytes sent_hashes_;  ///< of the other end's memories, behind a payload in device memory
};

}  // namespace deltapipe
