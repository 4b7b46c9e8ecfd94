// SPDX-License-Identifier: BSD-3-Clause
// One direction of one boundary as a stream of checked messages between two ranks. Buffers are
// allocated once; MPI runs on the progress thread.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "comm/transport/emulated_link.hpp"
#include "comm/transport/link_settings.hpp"
#include "comm/transport/message.hpp"
#include "comm/transport/progress_thread.hpp"
#include "core/base/observe/memory_ledger.hpp"
#include "core/base/observe/time_account.hpp"
#include "core/base/parallel/views.hpp"

namespace deltapipe {

/// MPI tags of a channel's messages and their pieces: those from its number times this on.
inline constexpr int kTagsPerChannel = 128;
inline constexpr std::size_t kLargestMessagePiece = std::size_t{1} << 30;

/// Settings that both ends of a channel must share, and those of each end.
struct ChannelOptions {
  std::size_t max_payload_bytes = 0;
  int buffers =
      2;  ///< buffers at this end, 1 ... 127; a sender waits for one, a receiver posts all
  /// Messages travel in pieces of this size, at most 1 GiB; the same at both ends. Below the eager
  /// limit of MPI over TCP (Open MPI: 64 KiB) messages follow each other through a slow link;
  /// larger pieces share it, so that the first of two arrives as late as the second, and each waits
  /// for an acknowledgement that queues behind what goes the other way.
  std::size_t piece_bytes = 60 * 1024;
  std::string name;  ///< in traces: "boundary 0 forward"
  /// Where MPI reads and writes payloads; the same at both ends. Of those in device memory the
  /// channel checks the size, and who encodes and decodes them makes and checks the checksum.
  PayloadMemory payload_memory = PayloadMemory::host;
};

/// Memory of a channel's buffers at one end.
MemoryLedger channel_memory(const ChannelOptions& options);

/// Since the last take_statistics().
struct ChannelStatistics {
  std::uint64_t bytes = 0;  ///< on the wire, headers included
  std::uint64_t messages = 0;
  double wire_seconds = 0;       ///< at least one message was travelling
  double link_busy_seconds = 0;  ///< senders with an emulated link: bytes / bandwidth
};

/// Memory of a message.
struct MessageMemory {
  HostBytes host;      ///< header, and what is in the host's memory of the payload
  DeviceBytes device;  ///< or the payload

  /// Byte `offset` of the message. Payload and header are in one piece where both are the host's.
  std::uint8_t* at(std::size_t offset) const;
};

class SendChannel {
 public:
  /// A free buffer; its payload, in one of the two, is max_payload_bytes long.
  struct Buffer {
    int index = -1;
    HostBytes payload;
    DeviceBytes device_payload;
  };

  /// `peer` is a rank of `comm`; `tag` tells channels between the same two ranks apart (it stands
  /// for the MPI tags 128 * tag ... 128 * tag + 127). Local. The channel must not outlive
  /// `progress`. Throws UserError when the buffers are beyond what MPI or memory can take.
  SendChannel(ProgressThread& progress, MPI_Comm comm, int peer, int tag, ChannelOptions options,
              LinkSettings link = {});
  /// The same over a link that other channels of this rank use as well; all calls of channels that
  /// share a link come from one thread.
  SendChannel(ProgressThread& progress, MPI_Comm comm, int peer, int tag, ChannelOptions options,
              std::shared_ptr<EmulatedLink> link);
  SendChannel(const SendChannel&) = delete;
  SendChannel& operator=(const SendChannel&) = delete;

  /// Waits until a buffer is free.
  Buffer acquire();
  /// Sends the first payload_bytes of the buffer and returns at once. Ranks, sequence, sizes,
  /// checksums and times of the header are filled in here, but for the checksum of a payload in
  /// device memory, on which nothing may be queued any more. With an emulated link the buffer stays
  /// in use until the message arrives: a link kept full needs 1 + latency / transfer time buffers.
  void send(const Buffer& buffer, MessageHeader header, std::size_t payload_bytes);
  /// Waits until all messages left.
  void flush();

  /// Transfers still under way count in the next statistics, their bytes in these.
  ChannelStatistics take_statistics();

 private:
  struct MessageBuffer {
    MessageMemory memory;
    Ticket ticket;
    TimePoint link_start{};
    TimePoint arrival{};  ///< by the emulated link
    bool lent = false;
  };

  bool arrived(const MessageBuffer& message) const;
  void reclaim(MessageBuffer& message);
  void wait(MessageBuffer& message);
  void reclaim_arrived();

  ProgressThread& progress_;
  MPI_Comm comm_;
  int peer_;
  int tag_;
  ChannelOptions options_;
  std::shared_ptr<EmulatedLink> link_;
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
  /// A message; its payload, in one of the two, is as long as what was sent and valid until
  /// release().
  struct Received {
    int index = -1;
    MessageHeader header;
    HostBytes payload;
    DeviceBytes device_payload;
  };

  /// As SendChannel; posts receives for all buffers at once. Messages pass progress.wire() when
  /// that is emulated.
  ReceiveChannel(ProgressThread& progress, MPI_Comm comm, int peer, int tag,
                 ChannelOptions options);
  /// Cancels the posted receives.
  ~ReceiveChannel();
  ReceiveChannel(const ReceiveChannel&) = delete;
  ReceiveChannel& operator=(const ReceiveChannel&) = delete;

  /// Sleeps until the next message is here and checks it against `expected` (the caller
  /// fills its first group). Throws UserError that names both ranks when it is another message,
  /// truncated or damaged. At most `buffers` messages can be held at a time.
  Received receive(MessageHeader expected);
  /// Gives the buffer back, on which nothing may be queued any more, and posts it for a later
  /// message.
  void release(const Received& received);

  ChannelStatistics take_statistics();

 private:
  struct MessageBuffer;

  void post(int index);
  /// A moment of the common clock on this rank's.
  TimePoint local(std::int64_t common_ns) const;

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
