// SPDX-License-Identifier: BSD-3-Clause
// What every message says about itself, and how the two ends compare notes (design section 4).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "core/codec/crossing.hpp"

namespace deltapipe {

/// "0x1f", for hashes in messages.
std::string hexadecimal(std::uint64_t value);

/// In whose memory MPI finds the payload of a message. The numbers are those of the wire.
enum class PayloadMemory : std::uint8_t {
  host = 0,   ///< behind the header
  device = 1  ///< from its first byte on, where kernels reach it; the header is in the host's
};

/// First bytes of every message, little-endian, followed by the payload. The first group describes
/// the crossing (header_of), at the receiver as the expectation; the rest is the channels'.
struct MessageHeader {
  std::uint32_t magic = kMagic;
  std::uint8_t version = kVersion;
  PayloadMemory payload_memory = PayloadMemory::host;  ///< at both ends
  CrossingKind kind = CrossingKind::activation;
  Direction direction = Direction::forward;
  std::uint64_t step = 0;
  std::uint32_t micro_batch = 0;
  std::uint32_t boundary = 0;
  std::uint32_t sample_hash = 0;  ///< sample_hash() of the samples' ids
  std::uint32_t state_hash = 0;   ///< Codec::state_hash() of what encoded the payload
  std::uint32_t sample_count = 0;
  std::uint32_t codec_id = 0;  ///< Codec::id() of what encoded the payload

  std::uint32_t source_rank = 0;  ///< in MPI_COMM_WORLD
  std::uint32_t target_rank = 0;  ///< in MPI_COMM_WORLD
  std::uint64_t sequence = 0;     ///< messages that went before it through the channel
  std::uint64_t payload_bytes = 0;
  std::uint64_t payload_checksum = 0;  ///< XXH3-64; in device memory hash_bytes()
  std::int64_t sent_ns = 0;            ///< the sender handed it over, on the clock of rank 0
  std::int64_t started_ns = 0;         ///< start of the transfer, on the same clock
  std::int64_t arrival_ns = 0;  ///< by an emulated link, on the same clock; 0: when it is here
  std::uint64_t header_checksum = 0;  ///< XXH3-64 of the bytes before it

  static constexpr std::uint32_t kMagic = 0x4d50'4c44;  // "DLPM"
  static constexpr std::uint8_t kVersion = 3;
};

static_assert(std::endian::native == std::endian::little, "headers travel little-endian");
static_assert(sizeof(MessageHeader) == 104 && std::is_trivially_copyable_v<MessageHeader>);
static_assert(std::has_unique_object_representations_v<MessageHeader>, "no padding on the wire");

/// 32 bits of the XXH3-64 of the ids in their order.
std::uint32_t sample_hash(std::span<const std::uint64_t> ids);

/// The header of a crossing's message, as far as both ends know it, with Codec::id() and
/// Codec::state_hash() of the codec.
MessageHeader header_of(const Crossing& crossing, std::uint32_t codec_id,
                        std::uint32_t state_hash = 0);

std::uint64_t checksum(const void* bytes, std::size_t size);
/// Sets header_checksum; all other fields must be final.
void seal(MessageHeader& header);

/// Bytes read as a header; checks magic, version and header checksum and throws UserError that
/// names both ranks. `received_bytes` is the size of the whole message.
MessageHeader read_header(const void* bytes, std::size_t received_bytes,
                          const MessageHeader& expected);

/// Compares what arrived with what was awaited, field by field; throws UserError that names both
/// ranks, the field and both values. Does not look at payload sizes, checksums and times.
void check(const MessageHeader& received, const MessageHeader& expected);

/// Check the payload against its header; throw UserError naming both ranks.
void check_payload_size(const MessageHeader& header, std::size_t payload_bytes);
void check_payload_checksum(const MessageHeader& header, std::uint64_t checksum_of_payload);

}  // namespace deltapipe
