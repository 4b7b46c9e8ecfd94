// SPDX-License-Identifier: BSD-3-Clause
#include "comm/replicas/replica_sum.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/replicas/part_errors.hpp"
#include "comm/transport/mpi_check.hpp"
#include "core/base/error.hpp"
#include "core/base/observe/trace.hpp"
#include "core/base/parallel/floating_point.hpp"
#include "core/base/parallel/kernel.hpp"
#include "core/kernels/add_values.hpp"

namespace deltapipe {
namespace {

std::size_t places_of(std::span<const std::size_t> bucket_sizes) {
  std::size_t places = 0;
  for (const std::size_t size : bucket_sizes) places += in_groups(size);
  return places;
}

bool has_warmup(const ReplicaSettings& settings) {
  return has_errors(settings.codec) && settings.warmup_epochs > 0;
}

/// Returns the largest payload of a part of this many elements, also during a warm-up.
std::size_t max_payload_bytes(const ReplicaSettings& settings, std::size_t elements) {
  const std::size_t bytes = part_payload_bytes(settings, elements);
  return has_warmup(settings) ? std::max(bytes, part_payload_bytes({}, elements)) : bytes;
}

/// Returns the largest payload of all parts. A smaller part may have a larger one: topk codes its
/// positions in another way.
std::size_t max_payload_bytes(const ReplicaSettings& settings, std::span<const SumChunk> chunks) {
  std::size_t most = 0;
  for (const SumChunk& chunk : chunks)
    for (const std::size_t elements : chunk.part_sizes())
      most = std::max(most, max_payload_bytes(settings, elements));
  return most;
}

/// Returns the messages under way in each direction. They are enough that a link is busy while the
/// ends add, and more if they are small: otherwise a link with a long latency would stand idle.
int buffers_of(const ReplicaSettings& settings, std::size_t chunks) {
  constexpr std::size_t kDense = 4, kMost = 32, kElements = std::size_t{1} << 16;
  const std::size_t bytes = max_payload_bytes(settings, kElements);
  const std::size_t most = std::clamp(chunks, kDense, kMost);
  return static_cast<int>(std::min(most, kDense * sizeof(float) * kElements / bytes));
}

ChannelOptions channel_options(const std::string& name, const ReplicaSettings& settings,
                               std::span<const SumChunk> chunks, PayloadMemory memory) {
  ChannelOptions options;
  options.max_payload_bytes = max_payload_bytes(settings, chunks);
  options.buffers = buffers_of(settings, chunks.size());
  options.name = name;
  options.payload_memory = memory;
  options.waits_are_callers = true;
  // MPI itself splits messages in device memory, to suit its copies and networks.
  if (memory == PayloadMemory::device) options.piece_bytes = kLargestMessagePiece;
  return options;
}

/// Copies a payload from one buffer to another.
void copy(const ExecSpace& exec, const SendChannel::Buffer& from, const SendChannel::Buffer& to,
          std::size_t bytes) {
  const auto range = std::pair<std::size_t, std::size_t>(0, bytes);
  if (from.device_payload.data() != nullptr)
    Kokkos::deep_copy(exec, Kokkos::subview(to.device_payload, range),
                      Kokkos::subview(from.device_payload, range));
  else
    Kokkos::deep_copy(exec, Kokkos::subview(to.payload, range),
                      Kokkos::subview(from.payload, range));
}

}  // namespace

std::vector<std::size_t> sizes_of(const std::vector<SumBucket>& buckets) {
  std::vector<std::size_t> sizes;
  for (const SumBucket& bucket : buckets) sizes.push_back(bucket.values.extent(0));
  return sizes;
}

MemoryLedger replica_sum_memory(std::span<const std::size_t> bucket_sizes, int replicas,
                                const ReplicaSettings& settings, PayloadMemory memory) {
  MemoryLedger ledger;
  if (replicas == 1) return ledger;
  if (settings.codec == ReplicaCodec::adam_moment) {
    ledger = replica_sum_memory(bucket_sizes, replicas, settings.of_gradients(), memory);
    ledger.add(replica_sum_memory(bucket_sizes, replicas, settings.of_moments(), memory));
    return ledger;
  }
  const std::vector<SumChunk> chunks = sum_chunks(bucket_sizes, replicas);
  const std::size_t part = largest_part(chunks);
  if (part == 0) return ledger;
  const MemoryLedger channel = channel_memory(channel_options({}, settings, chunks, memory));
  const auto channels = 4 * static_cast<std::uint64_t>(replicas - 1);
  ledger.add_host(MemoryUse::replicas, channels * channel.host_bytes());
  ledger.add_device(MemoryUse::replicas, channels * channel.device_bytes());
  ledger.add<Vector<float>>(MemoryUse::replicas, sizeof(float) * part);
  ledger.add(part_codec_memory(settings, places_of(bucket_sizes)));
  return ledger;
}

std::uint64_t replica_sum_bytes(std::span<const std::size_t> bucket_sizes, int replicas,
                                const ReplicaSettings& settings, bool is_warmup) {
  const ReplicaSettings sent = is_warmup && has_warmup(settings) ? ReplicaSettings() : settings;
  std::uint64_t bytes = 0;
  for (const SumChunk& chunk : sum_chunks(bucket_sizes, replicas))
    for (int replica = 0; replica < replicas; ++replica) {
      const std::size_t size = chunk.part(replica).size;
      if (size > 0)
        bytes += 2 * static_cast<std::uint64_t>(replicas - 1) *
                 (sizeof(MessageHeader) + part_payload_bytes(sent, size));
    }
  return bytes;
}

int replica_sum_rounds(std::span<const std::size_t> bucket_sizes, int replicas,
                       const ReplicaSettings& settings) {
  const std::size_t chunks = sum_chunks(bucket_sizes, replicas).size();
  const int buffers = buffers_of(settings, chunks);
  return (static_cast<int>(chunks) + buffers - 1) / buffers;
}

int replica_sum_pieces(std::span<const std::size_t> bucket_sizes, int replicas,
                       const ReplicaSettings& settings) {
  const std::size_t chunks = sum_chunks(bucket_sizes, replicas).size();
  return std::max(1, 2 * static_cast<int>(chunks) / buffers_of(settings, chunks));
}

ReplicaSum::ReplicaSum(ProgressThread& progress, Place place, std::vector<SumBucket> buckets,
                       const ReplicaSettings& settings, PayloadMemory memory)
    : progress_(progress),
      stage_(place.stage),
      what_(place.what),
      on_device_(memory == PayloadMemory::device),
      buckets_(std::move(buckets)),
      settings_(settings) {
  {
    const auto lock = progress_.lock_mpi();
    DELTAPIPE_MPI(MPI_Comm_size(place.stage_comm, &replicas_));
    DELTAPIPE_MPI(MPI_Comm_rank(place.stage_comm, &replica_));
  }
  const std::vector<std::size_t> sizes = sizes_of(buckets_);
  std::size_t places = 0;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    first_place_.push_back(places);
    places += in_groups(sizes[b]);
  }
  if (replicas_ > 1) chunks_ = sum_chunks(sizes, replicas_);
  for (std::size_t b = 0, chunk = 0; b < buckets_.size(); ++b) {
    while (chunk < chunks_.size() && chunks_[chunk].bucket == b) ++chunk;
    chunks_until_.push_back(chunk);
  }
  if (chunks_.empty()) return;
  codec_ = make_part_codec(settings_, places);
  warmup_codec_ = make_part_codec({}, 0);
  sum_ = Vector<float>(uninitialized("deltapipe::ReplicaSum::sum"), largest_part(chunks_));
  open_channels(place, memory);
}

ReplicaSum::~ReplicaSum() = default;

ReplicaSum::Peer::Peer(ProgressThread& progress, const Place& place, int rank,
                       const ChannelOptions& part, const ChannelOptions& sum)
    : replica(rank),
      send_part(progress, place.stage_comm, rank, place.first_tag, part, place.link),
      send_sum(progress, place.stage_comm, rank, place.first_tag + 1, sum, place.link),
      receive_part(progress, place.stage_comm, rank, place.first_tag, part),
      receive_sum(progress, place.stage_comm, rank, place.first_tag + 1, sum) {}

void ReplicaSum::open_channels(const Place& place, PayloadMemory memory) {
  const auto options = [&](const std::string& what) {
    return channel_options(fmt::format("{} of stage {}", what, stage_), settings_, chunks_, memory);
  };
  const ChannelOptions part = options(what_), sum = options("sums of " + what_);
  // The next replica first: all replicas together then send to different ones.
  for (int i = 1; i < replicas_; ++i) {
    peers_.push_back(
        std::make_unique<Peer>(progress_, place, (replica_ + i) % replicas_, part, sum));
  }
}

VectorRef<float> ReplicaSum::values_of(std::size_t chunk, int replica) const {
  const SumRange part = part_of(chunk, replica);
  return VectorRef<float>(buckets_[chunks_[chunk].bucket].values.data() + part.begin, part.size);
}

std::size_t ReplicaSum::place_of(std::size_t chunk, int replica) const {
  return first_place_[chunks_[chunk].bucket] + part_of(chunk, replica).begin;
}

MessageHeader ReplicaSum::header(CrossingKind kind, std::size_t chunk, int owner) const {
  MessageHeader header;
  header.kind = kind;
  header.step = step_;
  header.micro_batch = static_cast<std::uint32_t>(chunk);
  header.boundary = static_cast<std::uint32_t>(stage_);
  header.sample_count = static_cast<std::uint32_t>(part_of(chunk, owner).size);
  header.codec_id = codec().id();
  return header;
}

void ReplicaSum::begin(double epoch, bool measures) {
  measures_ = measures;
  is_warmup_ = has_warmup(settings_) && epoch < settings_.warmup_epochs;
}

void ReplicaSum::start_all(const ExecSpace& exec) {
  for (const SumBucket& bucket : buckets_) start(exec, bucket.id);
}

void ReplicaSum::start(const ExecSpace& exec, int bucket) {
  DELTAPIPE_ASSERT(started_ < buckets_.size() && buckets_[started_].id == bucket,
                   fmt::format("bucket {} is not number {} of the step", bucket, started_));
  ready_ = chunks_until_[started_++];
  poll(exec);
}

void ReplicaSum::poll(const ExecSpace& exec) {
  if (gathered_ == ready_) return;
  const ActivityScope activity(progress_.account(), Activity::replicas);
  advance(exec);
}

/// Never waits, so that replicas whose buffers are full for each other cannot block each other.
void ReplicaSum::advance(const ExecSpace& exec) {
  const ExactArithmetic exact;  // the same bits, whoever calls
  while (can_scatter()) scatter(exec, scattered_++);
  while (can_reduce()) reduce(exec, reduced_++);
  while (can_gather()) gather(exec, gathered_++);
}

/// The replica that is behind all others never waits for a buffer: they have received all earlier
/// chunks.
void ReplicaSum::finish(const ExecSpace& exec) {
  DELTAPIPE_ASSERT(std::exchange(started_, 0) == buckets_.size(),
                   "a bucket of gradients was not summed");
  if (chunks_.empty()) return;
  ReplicaSum* const self = this;
  complete(std::span(&self, 1), exec, progress_);
  ready_ = scattered_ = reduced_ = gathered_ = 0;
  ++step_;
  has_summed_ = true;
}

/// The message is the oldest chunk's.
std::string ReplicaSum::missing_message() const {
  if (is_complete() || can_scatter() || can_reduce() || can_gather()) return {};
  const std::size_t oldest = gathered_;
  for (const auto& peer : peers_) {
    if (oldest == reduced_ && !peer->receive_part.has_message())
      return peer->receive_part.name_of_message();
    if (oldest < reduced_ && part_of(oldest, peer->replica).size > 0 &&
        !peer->receive_sum.has_message())
      return peer->receive_sum.name_of_message();
  }
  return fmt::format("a buffer for {} of stage {}", what_, stage_);
}

bool ReplicaSum::can_scatter() const {
  if (scattered_ == ready_) return false;
  return std::all_of(peers_.begin(), peers_.end(), [&](const auto& peer) {
    return part_of(scattered_, peer->replica).size == 0 || peer->send_part.has_free_buffer();
  });
}

bool ReplicaSum::can_reduce() const {
  if (reduced_ == scattered_) return false;
  return part_of(reduced_, replica_).size == 0 ||
         std::all_of(peers_.begin(), peers_.end(), [](const auto& peer) {
           return peer->receive_part.has_message() && peer->send_sum.has_free_buffer();
         });
}

bool ReplicaSum::can_gather() const {
  if (gathered_ == reduced_) return false;
  return std::all_of(peers_.begin(), peers_.end(), [&](const auto& peer) {
    return part_of(gathered_, peer->replica).size == 0 || peer->receive_sum.has_message();
  });
}

std::uint8_t* ReplicaSum::memory_of(const HostBytes& host, const DeviceBytes& device) const {
  return on_device_ ? device.data() : host.data();
}

/// The payload's kernels must be complete.
void ReplicaSum::send(const ExecSpace& exec, SendChannel& channel,
                      const SendChannel::Buffer& buffer, MessageHeader header, std::size_t bytes) {
  if (on_device_) {
    checksum_.queue(exec, buffer.device_payload, bytes);
    exec.fence();
    header.payload_checksum = checksum_.value();
  }
  channel.send(buffer, header, bytes);
}

/// Waits for a message and queues its decoding. The message is released after a fence.
ReplicaSum::Decoding ReplicaSum::decode(const ExecSpace& exec, ReceiveChannel& channel,
                                        const MessageHeader& expected,
                                        const VectorRef<float>& values, bool adds) const {
  Decoding decoding{&channel, channel.receive(expected)};
  const ReceiveChannel::Received& message = decoding.message;
  const std::size_t bytes = codec().payload_bytes(values.extent(0));
  check_payload_size(message.header, bytes);
  if (on_device_) {
    checksum_.queue(exec, message.device_payload, bytes);
    exec.fence();
    check_payload_checksum(message.header, checksum_.value());
  }
  codec().decode(exec, memory_of(message.payload, message.device_payload), values, adds);
  return decoding;
}

void ReplicaSum::scatter(const ExecSpace& exec, std::size_t chunk) {
  std::vector<SendChannel::Buffer> buffers;
  for (const auto& peer : peers_) {
    const VectorRef<const float> values = values_of(chunk, peer->replica);
    if (values.extent(0) == 0) continue;
    const SendChannel::Buffer& buffer = buffers.emplace_back(peer->send_part.acquire());
    codec().encode(exec, values, place_of(chunk, peer->replica),
                   memory_of(buffer.payload, buffer.device_payload));
  }
  exec.fence();
  std::size_t next = 0;
  for (const auto& peer : peers_) {
    const std::size_t size = part_of(chunk, peer->replica).size;
    if (size > 0)
      send(exec, peer->send_part, buffers[next++], header(kReplicaGradients, chunk, peer->replica),
           codec().payload_bytes(size));
  }
}

void ReplicaSum::reduce(const ExecSpace& exec, std::size_t chunk) {
  const VectorRef<float> own = values_of(chunk, replica_);
  if (own.extent(0) == 0) return;
  const VectorRef<float> sum(sum_.data(), own.extent(0));
  const MessageHeader expected = header(kReplicaGradients, chunk, replica_);
  std::vector<Decoding> decodings;
  for (int r = 0; r < replicas_; ++r) {  // the order of the additions
    if (r == replica_) {
      r == 0 ? Kokkos::deep_copy(exec, sum, own)
             : add_values<float>("deltapipe::ReplicaSum::add", exec, own, sum);
      continue;
    }
    Peer& peer = *peers_[static_cast<std::size_t>((r - replica_ + replicas_) % replicas_ - 1)];
    decodings.push_back(decode(exec, peer.receive_part, expected, sum, r > 0));
  }
  // One payload for all: encoding changes the errors.
  const std::size_t bytes = codec().payload_bytes(own.extent(0));
  std::vector<SendChannel::Buffer> buffers;
  for (const auto& peer : peers_) buffers.push_back(peer->send_sum.acquire());
  std::uint8_t* const payload = memory_of(buffers[0].payload, buffers[0].device_payload);
  codec().encode(exec, sum, place_of(chunk, replica_), payload);
  codec().decode(exec, payload, own, false);
  for (std::size_t i = 1; i < buffers.size(); ++i) copy(exec, buffers[0], buffers[i], bytes);
  exec.fence();
  for (const Decoding& decoding : decodings) decoding.channel->release(decoding.message);
  for (std::size_t i = 0; i < buffers.size(); ++i)
    send(exec, peers_[i]->send_sum, buffers[i], header(kReplicaSums, chunk, replica_), bytes);
}

void ReplicaSum::gather(const ExecSpace& exec, std::size_t chunk) {
  std::vector<Decoding> decodings;
  for (const auto& peer : peers_) {
    const VectorRef<float> values = values_of(chunk, peer->replica);
    if (values.extent(0) > 0)
      decodings.push_back(decode(exec, peer->receive_sum,
                                 header(kReplicaSums, chunk, peer->replica), values, false));
  }
  exec.fence();
  for (const Decoding& decoding : decodings) decoding.channel->release(decoding.message);
}

std::vector<StatePart> ReplicaSum::state(const ExecSpace& exec) {
  if (!codec_ || !codec_->errors()) return {};
  return codec_->errors()->state(exec, kReplicaErrorsPart + std::to_string(stage_));
}

void ReplicaSum::reset(const ExecSpace& exec) {
  if (codec_ && codec_->errors()) codec_->errors()->reset(exec);
}

SumStatistics ReplicaSum::take_statistics(const ExecSpace& exec) {
  SumStatistics statistics;
  if (std::exchange(has_summed_, false) && measures_ && codec_ && codec_->errors() && !is_warmup_)
    statistics = codec_->errors()->statistics(exec);
  for (const auto& peer : peers_) {
    statistics.bytes +=
        peer->send_part.take_statistics().bytes + peer->send_sum.take_statistics().bytes;
    peer->receive_part.take_statistics();
    peer->receive_sum.take_statistics();
  }
  return statistics;
}

void complete(std::span<ReplicaSum* const> sums, const ExecSpace& exec, ProgressThread& progress) {
  const auto are_complete = [&] { return std::ranges::all_of(sums, &ReplicaSum::is_complete); };
  if (are_complete()) return;
  const ActivityScope waiting(progress.account(), Activity::replicas);
  const TimePoint begin = Clock::now();
  const auto missing = [&]() -> std::string {
    std::string name;
    for (const ReplicaSum* sum : sums) {
      if (sum->is_complete()) continue;
      const std::string message = sum->missing_message();
      if (message.empty()) return {};
      if (name.empty()) name = message;
    }
    return name;
  };
  while (!are_complete()) {
    progress.wait_while(missing);
    for (ReplicaSum* sum : sums) sum->poll(exec);
  }
  TraceRecorder::instance().record(TraceCategory::wait, "compute", "wait for sums over replicas",
                                   begin, Clock::now());
}

}  // namespace deltapipe
