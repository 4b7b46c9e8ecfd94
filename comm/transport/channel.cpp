// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transport/channel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "comm/transport/mpi_check.hpp"
#include "core/base/error.hpp"
#include "core/base/pieces.hpp"

namespace deltapipe {
namespace {

// Buffers are aligned to 64 bytes. With this offset of the header the payload is aligned as well.
constexpr std::size_t kHeaderOffset = (64 - sizeof(MessageHeader) % 64) % 64;
constexpr std::size_t kPayloadOffset = kHeaderOffset + sizeof(MessageHeader);
static_assert(kPayloadOffset % 64 == 0);

// First pieces use one MPI tag. The other pieces of message n use the tag 1 + n % 127 after it:
// with at most 127 buffers, pieces of two messages with the same tag are never awaited at once.
constexpr int kMostBuffers = kTagsPerChannel - 1;
static_assert(kMostMessageBuffers <= kMostBuffers);

int first_tag(int tag) {
  return tag * kTagsPerChannel;
}
int rest_tag(int tag, std::uint64_t sequence) {
  return tag * kTagsPerChannel + 1 + static_cast<int>(sequence % kMostBuffers);
}

// Time by which messages over an emulated link are passed to MPI before they arrive. They wait at
// the receiver until then, so that a late poll of MPI has no effect.
constexpr std::chrono::milliseconds kHandover{2};

std::size_t message_bytes(std::size_t payload_bytes) {
  return sizeof(MessageHeader) + payload_bytes;
}

void check_tag(int tag) {
  int* largest = nullptr;
  int found = 0;
  DELTAPIPE_MPI(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &largest, &found));
  const int limit = found ? *largest : 32767;
  if (tag < 0 || tag > (limit - (kTagsPerChannel - 1)) / kTagsPerChannel) {
    throw UserError(Mistake{.what = "the MPI library has too few tags for this many boundaries",
                            .value = fmt::format("channel {}, largest MPI tag {}", tag, limit),
                            .remedy = "use fewer stages"});
  }
}

void check_options(const ChannelOptions& options) {
  DELTAPIPE_ASSERT(options.buffers >= 1 && options.buffers <= kMostBuffers,
                   fmt::format("{} buffers", options.buffers));
  DELTAPIPE_ASSERT(
      options.piece_bytes >= sizeof(MessageHeader) && options.piece_bytes <= kLargestMessagePiece,
      fmt::format("{} bytes a piece", options.piece_bytes));
  DELTAPIPE_ASSERT(
      options.max_payload_bytes <= std::numeric_limits<std::size_t>::max() / 2 - kPayloadOffset,
      fmt::format("{} bytes of payload", options.max_payload_bytes));
}

bool is_on_device(const ChannelOptions& options) {
  return options.payload_memory == PayloadMemory::device;
}

/// Returns the largest size of the first piece that MPI may receive. For payloads in device memory
/// only headers are expected. There is still room for the first piece of an end with payloads in
/// the host's memory, which is then refused, because Open MPI writes past the end of a receive that
/// is too short.
std::size_t largest_first_piece(const ChannelOptions& options) {
  return std::min(is_on_device(options) ? ChannelOptions{}.piece_bytes : options.piece_bytes,
                  message_bytes(options.max_payload_bytes));
}

/// Returns the host's part of a buffer.
std::size_t host_bytes(const ChannelOptions& options) {
  return is_on_device(options) ? kHeaderOffset + largest_first_piece(options)
                               : kPayloadOffset + options.max_payload_bytes;
}
std::size_t device_bytes(const ChannelOptions& options) {
  return is_on_device(options) ? options.max_payload_bytes : 0;
}

MessageMemory allocate(const ChannelOptions& options) {
  try {
    MessageMemory memory;
    memory.host = HostBytes(uninitialized("deltapipe::Channel::buffer"), host_bytes(options));
    if (is_on_device(options))
      memory.device =
          DeviceBytes(uninitialized("deltapipe::Channel::payload"), device_bytes(options));
    return memory;
  } catch (const std::exception&) {
    throw UserError(Mistake{.what = "no memory for a message buffer of " + options.name,
                            .value = fmt::format("{} bytes", options.max_payload_bytes),
                            .remedy = "use smaller micro-batches or more memory"});
  }
}

/// Sets the payload of `message` to the first payload_bytes, in the memory that holds it.
template <class Message>
void show_payload(const ChannelOptions& options, const MessageMemory& memory,
                  std::size_t payload_bytes, Message& message) {
  const std::size_t begin = is_on_device(options) ? 0 : kPayloadOffset;
  const auto range = std::pair<std::size_t, std::size_t>(begin, begin + payload_bytes);
  if (is_on_device(options))
    message.device_payload = Kokkos::subview(memory.device, range);
  else
    message.payload = Kokkos::subview(memory.host, range);
}

/// Returns the size of the first piece, including the header. A payload in device memory follows in
/// separate pieces.
std::size_t first_piece(const ChannelOptions& options) {
  return is_on_device(options) ? sizeof(MessageHeader) : options.piece_bytes;
}

/// Returns the world ranks of the caller and of `peer` in `comm`.
std::pair<std::uint32_t, std::uint32_t> world_ranks(MPI_Comm comm, int peer) {
  MPI_Group group = MPI_GROUP_NULL;
  MPI_Group world = MPI_GROUP_NULL;
  int ranks[2] = {0, peer};
  int translated[2] = {0, 0};
  DELTAPIPE_MPI(MPI_Comm_rank(comm, &ranks[0]));
  DELTAPIPE_MPI(MPI_Comm_group(comm, &group));
  DELTAPIPE_MPI(MPI_Comm_group(MPI_COMM_WORLD, &world));
  DELTAPIPE_MPI(MPI_Group_translate_ranks(group, 2, ranks, world, translated));
  DELTAPIPE_MPI(MPI_Group_free(&group));
  DELTAPIPE_MPI(MPI_Group_free(&world));
  return {static_cast<std::uint32_t>(translated[0]), static_cast<std::uint32_t>(translated[1])};
}

std::string between(const std::string& name, std::uint32_t source, std::uint32_t target) {
  return fmt::format("{}, message from rank {} to rank {}", name, source, target);
}

/// Converts a time of the common clock to a rank's clock; 0 becomes an empty time.
TimePoint local_time(std::int64_t common_ns, std::chrono::nanoseconds clock_offset) {
  if (common_ns == 0) return {};
  return TimePoint(std::chrono::duration_cast<Clock::duration>(std::chrono::nanoseconds(common_ns) -
                                                               clock_offset));
}

}  // namespace

MemoryLedger channel_memory(const ChannelOptions& options) {
  const auto buffers = static_cast<std::uint64_t>(options.buffers);
  MemoryLedger ledger;
  ledger.add_host(MemoryUse::messages, buffers * host_bytes(options));
  ledger.add<DeviceBytes>(MemoryUse::messages, buffers * device_bytes(options));
  return ledger;
}

std::uint8_t* MessageMemory::at(std::size_t offset) const {
  const bool is_payload = offset >= sizeof(MessageHeader);
  if (is_payload && device.data() != nullptr) return device.data() + offset - sizeof(MessageHeader);
  return host.data() + kHeaderOffset + offset;
}

SendChannel::SendChannel(ProgressThread& progress, MPI_Comm comm, int peer, int tag,
                         ChannelOptions options, std::shared_ptr<EmulatedLink> link)
    : progress_(progress), comm_(comm), peer_(peer), tag_(tag), options_(std::move(options)) {
  if (link && link->emulates()) link_ = std::move(link);
  check_options(options_);
  {
    const auto lock = progress_.lock_mpi();
    check_tag(tag_);
    std::tie(source_rank_, target_rank_) = world_ranks(comm_, peer_);
  }
  buffers_.resize(static_cast<std::size_t>(options_.buffers));
  for (MessageBuffer& message : buffers_)
    message.memory = std::make_shared<const MessageMemory>(allocate(options_));
}

bool SendChannel::arrived(const MessageBuffer& message) const {
  return progress_.done(message.ticket) && Clock::now() >= message.arrival;
}

void SendChannel::reclaim(MessageBuffer& message) {
  const OperationTimes times = progress_.times(message.ticket);
  const TimePoint begin = link_ ? message.link_start : times.started;
  const TimePoint end = std::max(times.finished, message.arrival);
  transfers_.add(begin, end);
  progress_.account().transfer(begin, end);
  TraceRecorder::instance().record(TraceCategory::wire, options_.name + " send", "transfer", begin,
                                   end);
  message.ticket.reset();
}

void SendChannel::wait(MessageBuffer& message) {
  if (!arrived(message)) {
    std::optional<ActivityScope> waiting;
    if (!options_.waits_are_callers) waiting.emplace(progress_.account(), Activity::wire_exposed);
    const TimePoint begin = Clock::now();
    progress_.wait(message.ticket);
    std::this_thread::sleep_until(message.arrival);
    const TimePoint end = Clock::now();
    TraceRecorder::instance().record(TraceCategory::wait, "compute",
                                     "wait for a buffer, " + options_.name, begin, end);
  } else {
    progress_.wait(message.ticket);
  }
  reclaim(message);
}

void SendChannel::reclaim_arrived() {
  for (; !in_flight_.empty() && arrived(buffers_[in_flight_.front()]); in_flight_.pop_front())
    wait(buffers_[in_flight_.front()]);
}

bool SendChannel::has_free_buffer() {
  reclaim_arrived();
  return std::any_of(buffers_.begin(), buffers_.end(), is_free);
}

SendChannel::Buffer SendChannel::acquire() {
  reclaim_arrived();
  auto message = std::find_if(buffers_.begin(), buffers_.end(), is_free);
  if (message == buffers_.end()) {
    DELTAPIPE_ASSERT(!in_flight_.empty(), options_.name + ": all send buffers are lent");
    wait(buffers_[in_flight_.front()]);
    in_flight_.pop_front();
    message = std::find_if(buffers_.begin(), buffers_.end(), is_free);
  }
  message->lent = true;
  Buffer buffer;
  buffer.index = static_cast<int>(message - buffers_.begin());
  show_payload(options_, *message->memory, options_.max_payload_bytes, buffer);
  return buffer;
}

void SendChannel::send(const Buffer& buffer, MessageHeader header, std::size_t payload_bytes) {
  DELTAPIPE_ASSERT(buffer.index >= 0 && buffer.index < options_.buffers &&
                       buffers_[static_cast<std::size_t>(buffer.index)].lent,
                   options_.name + ": the buffer was not acquired");
  DELTAPIPE_ASSERT(payload_bytes <= options_.max_payload_bytes,
                   fmt::format("{}: {} bytes", options_.name, payload_bytes));
  MessageBuffer& message = buffers_[static_cast<std::size_t>(buffer.index)];
  header.source_rank = source_rank_;
  header.target_rank = target_rank_;
  header.sequence = sequence_++;
  header.payload_bytes = payload_bytes;
  header.payload_memory = options_.payload_memory;
  if (!is_on_device(options_))
    header.payload_checksum = checksum(message.memory->at(sizeof header), payload_bytes);
  const std::size_t bytes = message_bytes(payload_bytes);
  const TimePoint sent = Clock::now();
  header.sent_ns = nanoseconds_of(sent) + progress_.clock_offset().count();

  OperationPlan plan;
  plan.name = between(options_.name, source_rank_, target_rank_);
  TimePoint link_start{};
  if (link_) {
    const EmulatedLink::Passage passage = link_->book(sent, bytes);
    link_start = passage.start;
    plan.not_before = passage.arrival - kHandover;
    message.arrival = passage.arrival;
    header.arrival_ns = nanoseconds_of(passage.arrival) + progress_.clock_offset().count();
  }
  message.link_start = link_start;
  plan.start = [memory = message.memory, header, bytes, link_start, comm = comm_, peer = peer_,
                tag = tag_, first = std::min(bytes, first_piece(options_)),
                piece = options_.piece_bytes,
                offset = progress_.clock_offset()](RequestList& requests) mutable {
    const TimePoint started = link_start == TimePoint{} ? Clock::now() : link_start;
    header.started_ns = nanoseconds_of(started) + offset.count();
    seal(header);
    std::memcpy(memory->at(0), &header, sizeof header);
    const auto send_piece = [&](std::size_t begin, std::size_t size, int its_tag) {
      DELTAPIPE_MPI(MPI_Isend(memory->at(begin), static_cast<int>(size), MPI_BYTE, peer, its_tag,
                              comm, add_request(requests)));
    };
    send_piece(0, first, first_tag(tag));
    for_pieces(first, bytes, piece, [&](std::size_t begin, std::size_t size) {
      send_piece(begin, size, rest_tag(tag, header.sequence));
    });
  };
  message.ticket = progress_.submit(std::move(plan));
  message.lent = false;
  in_flight_.push_back(buffer.index);
  statistics_.bytes += bytes;
}

void SendChannel::flush() {
  for (; !in_flight_.empty(); in_flight_.pop_front()) wait(buffers_[in_flight_.front()]);
}

ChannelStatistics SendChannel::take_statistics() {
  reclaim_arrived();
  statistics_.wire_seconds = std::exchange(transfers_, {}).seconds();
  return std::exchange(statistics_, {});
}

/// Buffer that the progress thread writes until the ticket is done, and the compute thread after
/// it.
struct ReceiveChannel::MessageBuffer {
  MessageMemory memory;
  Ticket ticket;
  std::size_t received = 0;
  TimePoint passed{};  ///< through the emulated wire of this rank
};

ReceiveChannel::ReceiveChannel(ProgressThread& progress, MPI_Comm comm, int peer, int tag,
                               ChannelOptions options)
    : progress_(progress), comm_(comm), peer_(peer), tag_(tag), options_(std::move(options)) {
  check_options(options_);
  {
    const auto lock = progress_.lock_mpi();
    check_tag(tag_);
    std::tie(target_rank_, source_rank_) = world_ranks(comm_, peer_);
  }
  for (int i = 0; i < options_.buffers; ++i) {
    buffers_.push_back(std::make_shared<MessageBuffer>());
    buffers_.back()->memory = allocate(options_);
  }
  for (int i = 0; i < options_.buffers; ++i) post(i);
}

ReceiveChannel::~ReceiveChannel() {
  for (const int i : posted_) progress_.cancel(buffers_[static_cast<std::size_t>(i)]->ticket);
}

void ReceiveChannel::post(int index) {
  const std::shared_ptr<MessageBuffer> message = buffers_[static_cast<std::size_t>(index)];
  message->received = 0;
  message->passed = {};
  OperationPlan plan;
  plan.name = between(options_.name, source_rank_, target_rank_);
  plan.passive = true;
  const std::size_t largest = message_bytes(options_.max_payload_bytes);
  plan.start = [message, comm = comm_, peer = peer_, tag = tag_,
                first = largest_first_piece(options_)](RequestList& requests) {
    DELTAPIPE_MPI(MPI_Irecv(message->memory.at(0), static_cast<int>(first), MPI_BYTE, peer,
                            first_tag(tag), comm, add_request(requests)));
  };
  plan.completed = [message, largest, comm = comm_, peer = peer_, tag = tag_, number = posts_,
                    first = first_piece(options_), piece = options_.piece_bytes,
                    memory = options_.payload_memory, wire = progress_.wire(),
                    progress = &progress_](const MPI_Status& status, RequestList& requests) {
    int count = 0;
    DELTAPIPE_MPI(MPI_Get_count(&status, MPI_BYTE, &count));
    const bool is_first = message->received == 0;
    message->received += static_cast<std::size_t>(count);
    if (!is_first || message->received < sizeof(MessageHeader)) return;
    // Only a valid header counts; receive() reports the error otherwise.
    MessageHeader header;
    std::memcpy(&header, message->memory.at(0), sizeof header);
    MessageHeader sealed = header;
    seal(sealed);
    if (sealed.header_checksum != header.header_checksum) return;
    if (header.payload_memory != memory) return;
    if (header.payload_bytes > largest - sizeof header) return;
    if (wire) {
      const TimePoint started = local_time(header.started_ns, progress->clock_offset());
      message->passed =
          wire.in->book(started + wire.in->latency(), message_bytes(header.payload_bytes)).end;
    }
    if (message->received != first) return;
    for_pieces(
        first, message_bytes(header.payload_bytes), piece,
        [&](std::size_t begin, std::size_t size) {
          DELTAPIPE_MPI(MPI_Irecv(message->memory.at(begin), static_cast<int>(size), MPI_BYTE, peer,
                                  rest_tag(tag, number), comm, add_request(requests)));
        });
  };
  ++posts_;
  message->ticket = progress_.submit(std::move(plan));
  posted_.push_back(index);
}

TimePoint ReceiveChannel::local(std::int64_t common_ns) const {
  return local_time(common_ns, progress_.clock_offset());
}

/// Returns the time at which the received message has passed the emulated links.
TimePoint ReceiveChannel::arrival_of(const MessageBuffer& message) const {
  MessageHeader header;
  std::memcpy(&header, message.memory.at(0), sizeof header);
  return std::max(local(header.arrival_ns), message.passed);
}

std::string ReceiveChannel::name_of_message() const {
  return between(options_.name, source_rank_, target_rank_);
}

bool ReceiveChannel::has_message() const {
  if (posted_.empty()) return false;
  const MessageBuffer& message = *buffers_[static_cast<std::size_t>(posted_.front())];
  return progress_.done(message.ticket) && arrival_of(message) <= Clock::now();
}

ReceiveChannel::Received ReceiveChannel::receive(MessageHeader expected) {
  DELTAPIPE_ASSERT(!posted_.empty(), options_.name + ": all received messages are still held");
  const int index = posted_.front();
  MessageBuffer& message = *buffers_[static_cast<std::size_t>(index)];
  const TimePoint called = Clock::now();
  const bool was_done = progress_.done(message.ticket);
  progress_.wait(message.ticket);
  expected.source_rank = source_rank_;
  expected.target_rank = target_rank_;
  expected.sequence = sequence_;
  expected.payload_memory = options_.payload_memory;
  const MessageHeader header = read_header(message.memory.at(0), message.received, expected);
  check(header, expected);
  check_payload_size(header, message.received - sizeof header);
  if (!is_on_device(options_))
    check_payload_checksum(header,
                           checksum(message.memory.at(sizeof header), header.payload_bytes));

  const TimePoint arrival = arrival_of(message);
  if (!was_done || arrival > called) {
    std::this_thread::sleep_until(arrival);
    const TimePoint end = Clock::now();
    if (!options_.waits_are_callers) progress_.account().waited(called, local(header.sent_ns), end);
    TraceRecorder::instance().record(TraceCategory::wait, "compute",
                                     "wait for a message, " + options_.name, called, end);
  }
  posted_.pop_front();
  ++sequence_;
  statistics_.bytes += message.received;
  const TimePoint begin = local(header.started_ns);
  const TimePoint end = std::max(progress_.times(message.ticket).finished, arrival);
  transfers_.add(begin, end);
  progress_.account().transfer(begin, end);
  TraceRecorder::instance().record(
      TraceCategory::wire, options_.name,
      fmt::format("{} {}", message_name(header.kind), header.micro_batch), begin, end);
  Received received;
  received.index = index;
  received.header = header;
  show_payload(options_, message.memory, header.payload_bytes, received);
  return received;
}

void ReceiveChannel::release(const Received& received) {
  DELTAPIPE_ASSERT(received.index >= 0 && received.index < options_.buffers &&
                       std::find(posted_.begin(), posted_.end(), received.index) == posted_.end(),
                   options_.name + ": the message is not held");
  post(received.index);
}

ChannelStatistics ReceiveChannel::take_statistics() {
  statistics_.wire_seconds = std::exchange(transfers_, {}).seconds();
  return std::exchange(statistics_, {});
}

}  // namespace deltapipe
