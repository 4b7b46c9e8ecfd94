// SPDX-License-Identifier: BSD-3-Clause
#include "comm/boundary/boundary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <mutex>
#include <numeric>
#include <type_traits>

#include "comm/boundary/end_name.hpp"
#include "comm/boundary/value_check.hpp"
#include "core/base/error.hpp"
#include "core/base/observe/trace.hpp"

namespace deltapipe {

namespace {

/// True if kernels cannot access the host's buffers.
constexpr bool kSeparateMemory = !std::is_same_v<HostBytes, DeviceBytes>;

bool is_in_device_memory(const BoundaryEndPlan& plan) {
  return plan.payload_memory == PayloadMemory::device;
}

CodecSettings plain_settings(PlainPrecision precision) {
  CodecSettings settings;
  switch (precision) {
    case PlainPrecision::fp32:
      settings.kind = CodecKind::none;
      break;
    case PlainPrecision::fp16:
      settings.kind = CodecKind::fp16;
      break;
    case PlainPrecision::quantize8:
      settings.kind = CodecKind::directq;
      settings.bits = 8;
      break;
  }
  return settings;
}

CodecShape codec_shape(const BoundaryEndPlan& plan) {
  CodecShape shape = plan.codec.shape;
  shape.side = plan.side;
  return shape;
}

std::unique_ptr<Codec> training_codec(const BoundaryEndPlan& plan) {
  const BoundaryCodec& codec = plan.codec;
  if (!codec.training) return nullptr;
  auto made = make_codec(codec.settings, codec_shape(plan), codec.storage);
  made->share(codec.masks);
  return made;
}

/// Sizes of an end's codecs for predictions of memory.
struct CodecSizes {
  RecordLayout record;
  std::size_t max_payload_bytes = 0;
  std::size_t memory_bytes = 0;
};

CodecSizes built_sizes(const BoundaryEndPlan& plan) {
  const BoundaryCodecs codecs(plan);
  return {codecs.record(), codecs.max_payload_bytes(), codecs.memory_bytes()};
}

/// Caches results: building a codec may take a tenth of a second, and most ends of a run are alike.
CodecSizes sizes_of(const BoundaryEndPlan& plan) {
  if (plan.codec.masks) return built_sizes(plan);
  struct Known {
    CodecSettings settings;
    CodecShape shape;
    MemoryStorage storage = {};
    bool training = false;
    EvaluationSettings evaluation;
    CodecSizes sizes;
  };
  constexpr std::size_t kMost = 64;
  static std::mutex mutex;
  static std::deque<Known> all;
  const CodecShape shape = codec_shape(plan);
  const std::lock_guard lock(mutex);
  for (const Known& known : all)
    if (known.settings == plan.codec.settings && known.storage == plan.codec.storage &&
        known.training == plan.codec.training && known.shape == shape &&
        known.evaluation == plan.evaluation)
      return known.sizes;
  if (all.size() == kMost) all.pop_front();
  return all
      .emplace_back(Known{plan.codec.settings, shape, plan.codec.storage, plan.codec.training,
                          plan.evaluation, built_sizes(plan)})
      .sizes;
}

/// Between two checkpoints a sample's record moves at most once: when it is visited, or when it is
/// evicted from memory. While checkpoints cannot be written, all records may move.
void add_spare_records(const BoundaryMemory& memory, CacheShape& shape) {
  const CacheGenerations& generations = memory.generations;
  if (generations.kept == 0 || shape.record_bytes == 0) return;
  const auto kept = static_cast<std::uint64_t>(generations.kept);
  const std::uint64_t in_memory = memory.budget_bytes / shape.record_bytes;
  const std::uint64_t moved = generations.visits == 0
                                  ? shape.samples
                                  : std::min(shape.samples, generations.visits + in_memory);
  shape.reserved_records = kept * moved;
  shape.spare_records = shape.samples + (kept - 1) * moved;
}

CacheShape cache_shape(const BoundaryEndPlan& plan, const RecordLayout& record) {
  const int samples = plan.codec.shape.max_samples;
  CacheShape shape;
  shape.samples = plan.memory.samples;
  shape.record_bytes = record.bytes(plan.side);
  shape.max_samples_in_flight = samples;
  shape.prefetch_samples = std::max(1, plan.memory.prefetch_micro_batches) * samples;
  add_spare_records(plan.memory, shape);
  return shape;
}

/// Returns all rows as the codec's View type, without ownership.
Activations activations(const MatrixRef<float>& x) {
  return Activations(x.data(), x.extent(0), x.extent(1));
}

}  // namespace

BoundaryCodecs::BoundaryCodecs(const BoundaryEndPlan& plan)
    : training_(training_codec(plan)),
      evaluates_first_visits_(sends_changes(plan.codec.settings) &&
                              plan.evaluation.changes == ChangesWithoutMemory::first_visit) {
  for (const EvaluationMode mode : plan.evaluation.modes) {
    const bool compressed = mode == EvaluationMode::codec;
    const CodecSettings settings =
        compressed ? without_memory(plan.codec.settings, plan.evaluation.changes)
                   : plain_settings(plan.evaluation.precision);
    evaluation_[static_cast<std::size_t>(mode)] =
        make_codec(settings, codec_shape(plan), plan.codec.storage);
  }
}

Codec& BoundaryCodecs::of(const Crossing& crossing) const {
  const std::unique_ptr<Codec>& codec =
      crossing.training ? training_ : evaluation_[static_cast<std::size_t>(crossing.evaluation)];
  DELTAPIPE_ASSERT(codec != nullptr, "a crossing that was not planned");
  return *codec;
}

bool BoundaryCodecs::has_steps_of_training(const Crossing& crossing) const {
  if (crossing.training) return true;
  return crossing.evaluation == EvaluationMode::codec && !evaluates_first_visits_;
}

std::size_t BoundaryCodecs::max_payload_bytes() const {
  std::size_t most = training_ ? training_->max_payload_bytes() : 0;
  for (const auto& codec : evaluation_)
    if (codec) most = std::max(most, codec->max_payload_bytes());
  return most;
}

std::size_t BoundaryCodecs::memory_bytes() const {
  std::size_t sum = training_ ? training_->memory_bytes() : 0;
  for (const auto& codec : evaluation_)
    if (codec) sum += codec->memory_bytes();
  return sum;
}

MemoryLedger boundary_end_memory(const BoundaryEndPlan& plan) {
  const CodecSizes sizes = sizes_of(plan);
  const RecordLayout record = sizes.record;
  const std::size_t payload = sizes.max_payload_bytes;
  MemoryLedger ledger;
  ChannelOptions channel;
  const std::size_t hashes = MemoryCheck::max_bytes(
      plan.memory.verify_every, plan.codec.shape.max_samples, record.shared_bytes);
  channel.max_payload_bytes = payload + hashes;
  channel.buffers = plan.buffers;
  channel.payload_memory = plan.payload_memory;
  ledger.add(channel_memory(channel));
  ledger.add<DeviceBytes>(MemoryUse::messages, sizes.memory_bytes + 2 * hashes);
  if (is_in_device_memory(plan))
    ledger.add_host(MemoryUse::messages, plan.side == BoundarySide::receiver ? hashes : 0);
  else if (kSeparateMemory)
    ledger.add<DeviceBytes>(MemoryUse::messages, payload);
  if (record.bytes(plan.side) == 0) return ledger;
  if (plan.memory.samples == 0) {
    ledger.add<DeviceBytes>(MemoryUse::cache, plan.memory.budget_bytes);
    return ledger;
  }
  const CacheMemory cache =
      ActivationCache::memory_bytes(cache_shape(plan, record), plan.memory.budget_bytes);
  ledger.add<DeviceBytes>(MemoryUse::cache, cache.pool_bytes);
  ledger.add_host(MemoryUse::cache, cache.staging_bytes + cache.table_bytes);
  return ledger;
}

CacheNeed cache_need(const BoundaryEndPlan& plan) {
  const RecordLayout record = sizes_of(plan).record;
  CacheNeed need;
  need.record_bytes = record.bytes(plan.side);
  if (need.record_bytes == 0 || plan.memory.samples == 0) return need;
  const CacheShape shape = cache_shape(plan, record);
  const CacheMemory memory = ActivationCache::memory_bytes(shape, plan.memory.budget_bytes);
  need.memory_bytes = memory.pool_bytes + memory.staging_bytes + memory.table_bytes;
  need.staging_bytes = memory.staging_bytes;
  need.disk_bytes = ActivationCache::disk_bytes_needed(shape, plan.memory.budget_bytes);
  if (need.disk_bytes > 0)
    need.row_bytes = (shape.samples + shape.spare_records) * shape.record_bytes;
  return need;
}

void check_cache_budget(const BoundaryEndPlan& plan) {
  const RecordLayout record = sizes_of(plan).record;
  if (record.bytes(plan.side) == 0) return;
  CacheShape shape = cache_shape(plan, record);
  if (plan.memory.samples == 0) shape.samples = shape.max_samples_in_flight;
  ActivationCache::check_budget(shape, plan.memory.budget_bytes);
}

std::string spill_file_path(const BoundaryEndPlan& plan) {
  return plan.memory.directory + "/" +
         spill_file_name(plan.memory.replica, static_cast<int>(plan.boundary), plan.backward,
                         plan.side);
}

std::uint64_t end_state_bytes(const BoundaryEndPlan& plan, bool copies_files) {
  const RecordLayout record = sizes_of(plan).record;
  if (record.bytes(plan.side) == 0 || plan.memory.samples == 0) return 0;
  return ActivationCache::state_bytes(cache_shape(plan, record), plan.memory.budget_bytes,
                                      copies_files);
}

namespace {

/// Returns true if the run may continue with records of the file.
bool reopens_file(const BoundaryEndPlan& plan) {
  const CacheGenerations& generations = plan.memory.generations;
  return generations.resyncs || generations.referred.contains(spill_file_path(plan));
}

SpillStart start_of_file(const BoundaryEndPlan& plan) {
  std::error_code error;
  const bool is_there = std::filesystem::is_regular_file(spill_file_path(plan), error);
  return reopens_file(plan) && is_there ? SpillStart::open_existing : SpillStart::create;
}

}  // namespace

BoundaryEnd::BoundaryEnd(ProgressThread& progress, const BoundaryEndPlan& plan,
                         const std::string& name, const ExecutionInstances& instances)
    : account_(progress.account()),
      instances_(instances),
      state_name_(end_part(name, plan.side)),
      shape_(plan.codec.shape),
      warmup_epochs_(plan.codec.settings.warmup_epochs),
      has_half_memory_(plan.codec.storage == MemoryStorage::fp16),
      codecs_(plan),
      first_sample_(plan.memory.first_sample),
      sample_stride_(plan.memory.sample_stride),
      of_positions_(plan.memory.of_positions),
      memory_check_(plan.memory.verify_every, plan.codec.shape.max_samples,
                    codecs_.record().shared_bytes) {
  if (is_in_device_memory(plan))
    checksum_.emplace();
  else if (kSeparateMemory)
    staging_ =
        DeviceBytes(uninitialized("deltapipe::Boundary::staging"), codecs_.max_payload_bytes());
  if (plan.target.is_set() && plan.side == BoundarySide::sender && plan.codec.training) {
    controller_.emplace(plan.target, plan.codec.settings.rms_step);
    codecs_.training()->measure_errors(plan.target.error > 0);
  }
  const RecordLayout record = codecs_.record();
  if (record.bytes(plan.side) == 0) return;

  const BoundaryCodec& codec = plan.codec;
  const BoundaryMemory& memory = plan.memory;
  CacheIdentity identity;
  identity.boundary = plan.boundary;
  identity.backward = plan.backward;
  identity.sender = plan.side == BoundarySide::sender;
  identity.blocks_before = plan.blocks_before;
  identity.storage = kMemoryStorageNames[static_cast<std::size_t>(codec.storage)];
  identity.tokens = codec.shape.tokens;
  identity.channels = codec.shape.channels;
  identity.data_fingerprint = memory.data_fingerprint;
  identity.first_sample = memory.first_sample;
  identity.sample_stride = memory.sample_stride;
  identity.owner = memory.generations.owner;
  // If checkpoints refer to no records, the file holds what both ends still know.
  identity.is_needed = memory.generations.keep_files && memory.generations.kept == 0;
  const auto make_cache = [&](SpillStart start) {
    cache_ = std::make_unique<ActivationCache>(instances_.copy, memory.io,
                                               cache_shape(plan, record), identity,
                                               memory.budget_bytes, spill_file_path(plan), start);
  };
  try {
    make_cache(start_of_file(plan));
  } catch (const UserError& error) {
    if (!memory.generations.resyncs) throw;
    make_cache(SpillStart::create);
    Mistake mistake = error.mistake();
    mistake.remedy.clear();  // it is what this start does
    std::fprintf(
        stderr,
        "deltapipe: warning: an activation cache cannot be used, its samples start again: %s\n",
        UserError(mistake).what());
  }
  // A start that writes no checkpoints may fail; the checkpoint that it resumes from then needs its
  // files.
  if (!memory.keep_file && !memory.generations.keep_files && !reopens_file(plan))
    cache_->remove_file_at_end();
}

void BoundaryEnd::find_records(std::span<const std::uint64_t> sample_ids,
                               std::uint64_t first_place) {
  record_ids_.assign(sample_ids.begin(), sample_ids.end());
  if (of_positions_) {
    std::iota(record_ids_.begin(), record_ids_.end(), first_place);
    return;
  }
  for (std::uint64_t& id : record_ids_) {
    DELTAPIPE_ASSERT(id % sample_stride_ == first_sample_,
                     fmt::format("sample {} belongs to another replica", id));
    id /= sample_stride_;
  }
}

std::span<const std::uint64_t> BoundaryEnd::records_of(const Crossing& crossing) {
  find_records(crossing.sample_ids,
               static_cast<std::uint64_t>(crossing.micro_batch) * shape_.max_samples);
  return record_ids_;
}

void BoundaryEnd::prefetch(std::span<const std::uint64_t> sample_ids) {
  if (!cache_) return;
  find_records(sample_ids, 0);
  cache_->prefetch(record_ids_);
}

std::vector<StatePart> BoundaryEnd::state() {
  std::vector<StatePart> parts;
  if (cache_) {
    const auto write = [this](StateWriter& writer) {
      write_scalar(writer, "codec", codecs_.training()->id());
      write_scalar(writer, "first_sample", first_sample_);
      write_scalar(writer, "sample_stride", sample_stride_);
      cache_->write_state(writer);
    };
    const auto read = [this](StateReader& reader) {
      expect_scalar(reader, "codec", codecs_.training()->id());
      expect_scalar(reader, "first_sample", first_sample_);
      expect_scalar(reader, "sample_stride", sample_stride_);
      cache_->read_state(reader);
    };
    parts.push_back({state_name_, write, read});
  }
  // A separate part, since it outlives the memories.
  if (controller_)
    parts.push_back({std::string(kTargetPart) + state_name_,
                     [this](StateWriter& writer) { controller_->write_state(writer); },
                     [this](StateReader& reader) { controller_->read_state(reader); }});
  return parts;
}

void BoundaryEnd::acquire_records(Crossing& crossing) {
  if (!remembers(crossing)) {
    crossing.visits.assign(crossing.samples(), 0);
    memory_check_.choose_none();
    return;
  }
  const ActivityScope activity(account_, Activity::cache);
  const TraceScope trace(TraceCategory::cache, "acquire", crossing.micro_batch);
  cache_->acquire(records_of(crossing), records_, crossing.visits);
  memory_check_.choose(crossing, records_);
}

void BoundaryEnd::release_records(const Crossing& crossing) {
  if (!remembers(crossing)) return;
  const ActivityScope activity(account_, Activity::cache);
  cache_->release(instances_.codec, record_ids_);
}

void BoundaryEnd::wait_for_compute(const ExecSpace& exec) {
  const ActivityScope activity(account_, Activity::compute);
  exec.fence();
}

void BoundaryEnd::wait_for_message() const {
  if (is_staged()) instances_.copy.fence();
  if (!is_staged() || memory_check_.bytes() > 0) instances_.codec.fence();
}

void BoundaryEnd::measure_errors(bool on) {
  const bool always = controller_ && controller_->target().error > 0;
  codecs_.training()->measure_errors(on || always);
}

CodecStatistics BoundaryEnd::take_codec_statistics() {
  const ActivityScope activity(account_, Activity::codec);
  CodecStatistics sum = std::exchange(measured_, {});
  sum += codecs_.training()->take_statistics(instances_.codec);
  return sum;
}

MessageHeader BoundaryEnd::header(const Crossing& crossing) const {
  return header_of(crossing, codec(crossing).id(), codec(crossing).state_hash(crossing));
}

ChannelOptions BoundaryEnd::channel_options(const BoundaryEndPlan& plan,
                                            const std::string& name) const {
  ChannelOptions options;
  options.max_payload_bytes = codecs_.max_payload_bytes() + memory_check_.max_bytes();
  options.buffers = plan.buffers;
  options.name = name;
  options.payload_memory = plan.payload_memory;
  // MPI itself splits messages in device memory, to suit its copies and networks.
  if (is_in_device_memory(plan)) options.piece_bytes = kLargestMessagePiece;
  return options;
}

template <class Message>
DeviceBytes BoundaryEnd::device_payload(const Message& message) const {
  if (in_device_memory()) return message.device_payload;
  if constexpr (kSeparateMemory)
    return staging_;
  else
    return message.payload;
}

BoundarySender::BoundarySender(ProgressThread& progress, MPI_Comm comm, int peer, int tag,
                               const BoundaryEndPlan& plan, std::shared_ptr<EmulatedLink> link,
                               const std::string& name, const ExecutionInstances& instances)
    : BoundaryEnd(progress, plan, name, instances),
      channel_(progress, comm, peer, tag, channel_options(plan, name), std::move(link)),
      rms_step_(plan.codec.settings.rms_step) {}

void BoundarySender::choose_step(const Crossing& crossing) {
  if (controller_ && codecs_.has_steps_of_training(crossing)) {
    rms_step_ = controller_->step();
    codec(crossing).set_rms_step(rms_step_);
  }
  if (!crossing.training || codec(crossing).values_in_rms_steps(crossing) == 0) return;
  steps_.sum += rms_step_;
  ++steps_.messages;
}

void BoundarySender::note_sent(const Crossing& crossing, std::size_t bytes) {
  if (!controller_ || !crossing.training) return;
  SentMessage message;
  message.bytes = sizeof(MessageHeader) + bytes;
  if (crossing.epoch >= warmup_epochs_) {
    for (const int tokens : crossing.tokens)
      message.values += static_cast<std::uint64_t>(tokens) * shape_.channels;
    message.steered_values = codec(crossing).values_in_rms_steps(crossing);
  }
  if (controller_->target().error > 0) {
    const CodecStatistics now = codec(crossing).take_statistics(instances_.codec);
    message.error2 = now.error2;
    message.signal2 = now.signal2;
    measured_ += now;
  }
  controller_->sent(message);
}

void BoundarySender::send(const ExecSpace& exec, Crossing& crossing,
                          const MatrixRef<float>& x_BTC) {
  const SendChannel::Buffer buffer = channel_.acquire();
  const DeviceBytes payload = device_payload(buffer);
  acquire_records(crossing);
  MessageHeader message = header(crossing);  // first: encode() changes the codec's state
  choose_step(crossing);
  if (codec(crossing).waits()) wait_for_compute(exec);
  std::size_t bytes = 0;
  {
    const ActivityScope activity(account_, Activity::codec);
    const TraceScope trace(TraceCategory::encode, "encode", crossing.micro_batch);
    order_after(instances_.codec, exec);
    bytes =
        codec(crossing).encode(instances_.codec, crossing, activations(x_BTC), records_, payload);
    if (is_staged()) {
      order_after(instances_.copy, instances_.codec);
      const auto range = Kokkos::make_pair(std::size_t{0}, bytes);
      Kokkos::deep_copy(instances_.copy, Kokkos::subview(buffer.payload, range),
                        Kokkos::subview(payload, range));
    }
    memory_check_.hash(instances_.codec, records_, !is_spoiled(crossing));
    if (in_device_memory()) {
      memory_check_.append_on_device(instances_.codec, payload.data() + bytes);
      checksum_->queue(instances_.codec, payload, bytes + memory_check_.bytes());
    }
    wait_for_compute(exec);
    wait_for_message();
    if (codec(crossing).lost_values())
      refuse_values(crossing, x_BTC, shape_.tokens, has_half_memory_);
    note_sent(crossing, bytes + memory_check_.bytes());
  }
  release_records(crossing);
  if (in_device_memory())
    message.payload_checksum = checksum_->value();
  else
    memory_check_.append(buffer.payload.data() + bytes);
  channel_.send(buffer, message, bytes + memory_check_.bytes());
}

BoundaryReceiver::BoundaryReceiver(ProgressThread& progress, MPI_Comm comm, int peer, int tag,
                                   const BoundaryEndPlan& plan, const std::string& name,
                                   const ExecutionInstances& instances)
    : BoundaryEnd(progress, plan, name, instances),
      channel_(progress, comm, peer, tag, channel_options(plan, name)) {
  if (in_device_memory())
    sent_hashes_ =
        HostBytes(uninitialized("deltapipe::Boundary::sent_hashes"), memory_check_.max_bytes());
}

namespace {

[[noreturn]] void refuse_length(const ReceiveChannel::Received& received, const std::string& wrong,
                                const std::string& value) {
  const MessageHeader& header = received.header;
  throw UserError({.what = fmt::format(
                       "the message of rank {} to rank {} at boundary {}, step {} is {}",
                       header.source_rank, header.target_rank, header.boundary, header.step, wrong),
                   .value = value,
                   .remedy = "run the same program and deck on all ranks"});
}

/// Returns the length of the payload, which hashes follow. Checks that it is at most `most` before
/// it is copied to the device.
std::size_t payload_length(const ReceiveChannel::Received& received, std::size_t hashes,
                           std::size_t most) {
  const std::size_t all = received.header.payload_bytes;
  if (all < hashes)
    refuse_length(received, "too short for its memories' hashes",
                  fmt::format("{} bytes, not {} or more", all, hashes));
  if (all - hashes > most)
    refuse_length(received, "longer than its codec's longest payload",
                  fmt::format("{} bytes, not up to {}", all - hashes, most));
  return all - hashes;
}

}  // namespace

void BoundaryReceiver::check_on_device(const ReceiveChannel::Received& received,
                                       std::size_t bytes) {
  const std::size_t hashes = memory_check_.bytes();
  checksum_->queue(instances_.codec, received.device_payload, bytes + hashes);
  if (hashes > 0)
    Kokkos::deep_copy(
        instances_.codec, Kokkos::subview(sent_hashes_, Kokkos::make_pair(std::size_t{0}, hashes)),
        Kokkos::subview(received.device_payload, Kokkos::make_pair(bytes, bytes + hashes)));
  instances_.codec.fence();
  check_payload_checksum(received.header, checksum_->value());
}

void BoundaryReceiver::receive(const ExecSpace& exec, Crossing& crossing,
                               const MatrixRef<float>& x_BTC) {
  acquire_records(crossing);
  wait_for_compute(exec);  // later time is spent waiting for the message
  const ReceiveChannel::Received received = channel_.receive(header(crossing));
  const std::size_t bytes =
      payload_length(received, memory_check_.bytes(), codecs_.max_payload_bytes());
  const DeviceBytes payload = device_payload(received);
  {
    const ActivityScope activity(account_, Activity::codec);
    const TraceScope trace(TraceCategory::decode, "decode", crossing.micro_batch);
    if (in_device_memory()) check_on_device(received, bytes);
    if (is_staged()) {
      order_after(instances_.copy, instances_.codec);  // until the previous payload is decoded
      const auto range = Kokkos::make_pair(std::size_t{0}, bytes);
      Kokkos::deep_copy(instances_.copy, Kokkos::subview(payload, range),
                        Kokkos::subview(received.payload, range));
      order_after(instances_.codec, instances_.copy);
    }
    order_after(instances_.codec, exec);
    codec(crossing).decode(instances_.codec, crossing, payload, bytes, records_,
                           activations(x_BTC));
    order_after(exec, instances_.codec);
    memory_check_.hash(instances_.codec, records_, !is_spoiled(crossing));
    wait_for_message();
  }
  memory_check_.compare(in_device_memory() ? sent_hashes_.data() : received.payload.data() + bytes,
                        crossing, received.header);
  channel_.release(received);
  release_records(crossing);
}

}  // namespace deltapipe
