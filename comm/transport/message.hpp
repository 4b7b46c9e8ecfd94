// SPDX-License-Identifier: BSD-3-Clause
// Header of every message, and its comparison at the receiver (design section 4).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "core/codec/crossing.hpp"

namespace deltapipe {

/// Returns a text such as "0x1f", for hashes in messages.
std::string hexadecimal(std::uint64_t value);

/// Kinds of messages that cross no boundary: a replica's part of a sum over replicas, and the sum.
inline constexpr CrossingKind kReplicaGradients{5}, kReplicaSums{6};
/// Returns the name of a message's kind.
const char* message_name(CrossingKind kind);

/// Memory in which MPI accesses the payload of a message. The values are sent on the wire.
enum class PayloadMemory : std::uint8_t {
  host = 0,   ///< after the header
  device = 1  ///< separate, in memory that kernels reach; the header is in the host's
};

/// First bytes of every message, little-endian; the payload follows. The first group describes the
/// crossing (header_of); at the receiver it is the expectation. The channels set the rest.
struct MessageHeader {
  std::uint32_t magic = kMagic;
  std::uint8_t version = kVersion;
  PayloadMemory payload_memory = PayloadMemory::host;  ///< the same at both ends
  CrossingKind kind = CrossingKind::activation;
  Direction direction = Direction::forward;
  std::uint64_t step = 0;
  std::uint32_t micro_batch = 0;
  std::uint32_t boundary = 0;
  std::uint32_t sample_hash = 0;  ///< sample_hash() of the samples' ids
  std::uint32_t state_hash = 0;   ///< Codec::state_hash() of the codec that encoded the payload
  std::uint32_t sample_count = 0;
  std::uint32_t codec_id = 0;  ///< Codec::id() of the codec that encoded the payload

  std::uint32_t source_rank = 0;  ///< in MPI_COMM_WORLD
  std::uint32_t target_rank = 0;  ///< in MPI_COMM_WORLD
  std::uint64_t sequence = 0;     ///< number of earlier messages through the channel
  std::uint64_t payload_bytes = 0;
  std::uint64_t payload_checksum = 0;  ///< XXH3-64; hash_bytes() in device memory
  std::int64_t sent_ns = 0;     ///< time at which the sender submitted it, on the clock of rank 0
  std::int64_t started_ns = 0;  ///< start of the transfer, on the same clock
  /// Time given by an emulated link, on the same clock; 0: real arrival.
  std::int64_t arrival_ns = 0;
  std::uint64_t header_checksum = 0;  ///< XXH3-64 of the preceding bytes

  static constexpr std::uint32_t kMagic = 0x4d50'4c44;  // "DLPM"
  static constexpr std::uint8_t kVersion = 3;
};

static_assert(std::endian::native == std::endian::little, "headers travel little-endian");
static_assert(sizeof(MessageHeader) == 104 && std::is_trivially_copyable_v<MessageHeader>);
static_assert(std::has_unique_object_representations_v<MessageHeader>, "no padding on the wire");

/// Returns 32 bits of the XXH3-64 of the ids in their order.
std::uint32_t sample_hash(std::span<const std::uint64_t> ids);

/// Returns the part of a crossing's header that both ends know, with Codec::id() and
/// Codec::state_hash() of the codec.
MessageHeader header_of(const Crossing& crossing, std::uint32_t codec_id,
                        std::uint32_t state_hash = 0);

std::uint64_t checksum(const void* bytes, std::size_t size);
/// Sets header_checksum; all other fields must be final.
void seal(MessageHeader& header);

/// Reads bytes as a header and checks magic, version and header checksum. Throws UserError that
/// names both ranks. `received_bytes` is the size of the whole message.
MessageHeader read_header(const void* bytes, std::size_t received_bytes,
                          const MessageHeader& expected);

/// Compares the received header with the expected one, field by field. Throws UserError that names
/// both ranks, the field and both values. Does not compare payload sizes, checksums and times.
void check(const MessageHeader& received, const MessageHeader& expected);

/// Check the payload against its header; throw UserError that names both ranks.
void check_payload_size(const MessageHeader& header, std::size_t payload_bytes);
void check_payload_checksum(const MessageHeader& header, std::uint64_t checksum_of_payload);

}  // namespace deltapipe
