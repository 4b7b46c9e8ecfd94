// SPDX-License-Identifier: BSD-3-Clause
// One direction of one boundary as a stream of checked messages between two ranks. Buffers are
// allocated once. MPI runs on the progress thread.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "comm/transport/emulated_link.hpp"
#include "comm/transport/message.hpp"
#include "comm/transport/progress_thread.hpp"
#include "core/base/observe/memory_ledger.hpp"
#include "core/base/observe/time_account.hpp"
#include "core/base/parallel/views.hpp"

namespace deltapipe {

/// Number of MPI tags for a channel's messages and their pieces. A channel's first tag is its
/// number times this.
inline constexpr int kTagsPerChannel = 128;
inline constexpr std::size_t kLargestMessagePiece = std::size_t{1} << 30;

/// Options on which both ends of a channel must agree, and options of each end.
struct ChannelOptions {
  std::size_t max_payload_bytes = 0;
  int buffers = 2;  ///< 1 ... 127; a sender waits for a free one, a receiver posts all
  /// Size of the pieces of messages, at most 1 GiB; the same at both ends. Below the eager limit of
  /// MPI over TCP (Open MPI: 64 KiB) messages follow each other through a slow link. Larger pieces
  /// share the link, so that the first of two arrives as late as the second. Each also waits for an
  /// acknowledgement that queues behind messages in the other direction.
  std::size_t piece_bytes = 60 * 1024;
  std::string name;  ///< name in traces, such as "boundary 0 forward"
  /// Memory in which MPI reads and writes payloads; the same at both ends. For payloads in device
  /// memory the channel checks only the size. The code that encodes and decodes them computes and
  /// checks the checksum.
  PayloadMemory payload_memory = PayloadMemory::host;
  /// True: waits for messages and buffers count as the caller's activity (TimeAccount).
  bool waits_are_callers = false;
};

/// Returns the memory of a channel's buffers at one end.
MemoryLedger channel_memory(const ChannelOptions& options);

/// Statistics since the last take_statistics().
struct ChannelStatistics {
  std::uint64_t bytes = 0;  ///< bytes on the wire, including headers
  double wire_seconds = 0;  ///< time with at least one message in transit
};

/// Memory of a message. Threads share it by std::shared_ptr: Kokkos counts the references to a View
/// atomically only if it was built for several threads.
struct MessageMemory {
  HostBytes host;      ///< header, and a payload in the host's memory
  DeviceBytes device;  ///< a payload in device memory

  /// Returns byte `offset` of the message. Header and payload are contiguous if both are in the
  /// host's memory.
  std::uint8_t* at(std::size_t offset) const;
};

class SendChannel {
 public:
  /// A free buffer. One of its two payloads is max_payload_bytes long.
  struct Buffer {
    int index = -1;
    HostBytes payload;
    DeviceBytes device_payload;
  };

  /// `peer` is a rank of `comm`. `tag` distinguishes channels between the same two ranks; it covers
  /// the MPI tags 128 * tag ... 128 * tag + 127. Local. The channel must not outlive `progress`.
  /// Throws UserError when the buffers exceed the limits of MPI or the memory. Other channels of
  /// this rank may use the same link; all their calls must then come from one thread.
  SendChannel(ProgressThread& progress, MPI_Comm comm, int peer, int tag, ChannelOptions options,
              std::shared_ptr<EmulatedLink> link = nullptr);
  SendChannel(const SendChannel&) = delete;
  SendChannel& operator=(const SendChannel&) = delete;

  /// Waits until a buffer is free.
  Buffer acquire();
  /// Returns true if acquire() would not wait.
  bool has_free_buffer();
  /// Sends the first payload_bytes of the buffer and returns at once. Fills in ranks, sequence,
  /// sizes, checksums and times of the header. It does not fill in the checksum of a payload in
  /// device memory, on which no work may be queued any more. With an emulated link the buffer stays
  /// in use until the message arrives: 1 + latency / transfer time buffers keep a link busy.
  void send(const Buffer& buffer, MessageHeader header, std::size_t payload_bytes);
  /// Waits until all messages have left.
  void flush();

  /// Returns the statistics. Transfers that are still under way count in the next ones, but their
  /// bytes count in these.
  ChannelStatistics take_statistics();

 private:
  struct MessageBuffer {
    std::shared_ptr<const MessageMemory> memory;
    Ticket ticket;
    TimePoint link_start{};
    TimePoint arrival{};  ///< given by the emulated link
    bool lent = false;
  };

  static bool is_free(const MessageBuffer& message) { return !message.lent && !message.ticket; }
  bool arrived(const MessageBuffer& message) const;
  void reclaim(MessageBuffer& message);
  void wait(MessageBuffer& message);
  void reclaim_arrived();

  ProgressThread& progress_;
  MPI_Comm comm_;
  int peer_;
  int tag_;
  ChannelOptions options_;
  std::shared_ptr<EmulatedLink> link_;  ///< null: not emulated
  std::uint32_t source_rank_;
  std::uint32_t target_rank_;
  std::uint64_t sequence_ = 0;
  std::vector<MessageBuffer> buffers_;
  std::deque<int> in_flight_;
  ChannelStatistics statistics_;
  IntervalSet transfers_;  ///< not yet in statistics_
};

class ReceiveChannel {
 public:
  /// A message, valid until release(). One of its two payloads is as long as what was sent.
  struct Received {
    int index = -1;
    MessageHeader header;
    HostBytes payload;
    DeviceBytes device_payload;
  };

  /// Builds the channel as SendChannel does and posts receives for all buffers. Messages pass
  /// progress.wire() if that is emulated.
  ReceiveChannel(ProgressThread& progress, MPI_Comm comm, int peer, int tag,
                 ChannelOptions options);
  /// Cancels the posted receives.
  ~ReceiveChannel();
  ReceiveChannel(const ReceiveChannel&) = delete;
  ReceiveChannel& operator=(const ReceiveChannel&) = delete;

  /// Sleeps until the next message has arrived and checks it against `expected`, in which the
  /// caller sets the first group. Throws UserError that names both ranks if it is another message,
  /// truncated or damaged. At most `buffers` messages can be held at a time.
  Received receive(MessageHeader expected);
  /// Returns true if receive() would not wait.
  bool has_message() const;
  /// Returns the name of a message, as errors have it.
  std::string name_of_message() const;
  /// Returns the buffer, on which no work may be queued any more, and posts it for a later message.
  void release(const Received& received);

  ChannelStatistics take_statistics();

 private:
  struct MessageBuffer;

  void post(int index);
  /// Converts a time of the common clock to this rank's clock.
  TimePoint local(std::int64_t common_ns) const;
  TimePoint arrival_of(const MessageBuffer& message) const;

  ProgressThread& progress_;
  MPI_Comm comm_;
  int peer_;
  int tag_;
  ChannelOptions options_;
  std::uint32_t source_rank_;
  std::uint32_t target_rank_;
  std::uint64_t sequence_ = 0;
  std::vector<std::shared_ptr<MessageBuffer>> buffers_;
  std::deque<int> posted_;  ///< in the order in which messages fill them
  std::uint64_t posts_ = 0;
  ChannelStatistics statistics_;
  IntervalSet transfers_;  ///< not yet in statistics_
};

}  // namespace deltapipe
