// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transport/message.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <cstdio>
#include <cstring>

#include "core/base/error.hpp"

namespace deltapipe {
namespace {

const char* const kSameBuild = "start the same deltapipe build on every rank";
const char* const kSameDeck = "start every rank with the same deck and build";
const char* const kSameData = "give every rank the same data files and seed";
const char* const kSameState =
    "the ends remember different visits: restart all ranks from one checkpoint, and check that "
    "cache.directory is not shared with another run";
const char* const kNetwork = "the network or a machine's memory damages data; check both";

const char* memory_name(PayloadMemory memory) {
  return memory == PayloadMemory::device ? "the device's" : "the host's";
}

std::string rank_name(std::uint32_t rank) {
  return fmt::format("rank {}", rank);
}

std::string place(const MessageHeader& header) {
  if (header.kind == kReplicaGradients || header.kind == kReplicaSums)
    return fmt::format("{} of step {}, chunk {}, stage {}", message_name(header.kind), header.step,
                       header.micro_batch, header.boundary);
  return fmt::format("{} of step {}, micro-batch {}, boundary {} {}", name_of(header.kind),
                     header.step, header.micro_batch, header.boundary, name_of(header.direction));
}

[[noreturn]] void differ(const MessageHeader& expected, const char* field,
                         const std::string& awaited, const std::string& arrived,
                         const char* remedy) {
  const std::string source = rank_name(expected.source_rank),
                    target = rank_name(expected.target_rank);
  throw UserError(Mistake{
      .what =
          fmt::format("{} waits for the {} from {}, but another message arrived: {} is {} on {} "
                      "and {} in the message from {}",
                      target, place(expected), source, field, awaited, target, arrived, source),
      .remedy = remedy});
}

void same(const MessageHeader& expected, const char* field, std::uint64_t awaited,
          std::uint64_t arrived, const char* remedy) {
  if (awaited != arrived) {
    differ(expected, field, std::to_string(awaited), std::to_string(arrived), remedy);
  }
}

void same_hash(const MessageHeader& expected, const char* field, std::uint64_t awaited,
               std::uint64_t arrived, const char* remedy) {
  if (awaited != arrived) {
    differ(expected, field, hexadecimal(awaited), hexadecimal(arrived), remedy);
  }
}

}  // namespace

const char* message_name(CrossingKind kind) {
  if (kind == kReplicaGradients) return "gradients of a replica";
  if (kind == kReplicaSums) return "sum over replicas";
  return name_of(kind);
}

std::string hexadecimal(std::uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

std::uint64_t checksum(const void* bytes, std::size_t size) {
  return XXH3_64bits(bytes, size);
}

std::uint32_t sample_hash(std::span<const std::uint64_t> ids) {
  return static_cast<std::uint32_t>(checksum(ids.data(), ids.size_bytes()));
}

MessageHeader header_of(const Crossing& crossing, std::uint32_t codec_id,
                        std::uint32_t state_hash) {
  MessageHeader header;
  header.kind = crossing.kind;
  header.direction = crossing.direction();
  header.step = crossing.step;
  header.micro_batch = crossing.micro_batch;
  header.boundary = crossing.boundary;
  header.sample_hash = sample_hash(crossing.sample_ids);
  header.state_hash = state_hash;
  header.sample_count = static_cast<std::uint32_t>(crossing.samples());
  header.codec_id = codec_id;
  return header;
}

void seal(MessageHeader& header) {
  header.header_checksum = checksum(&header, offsetof(MessageHeader, header_checksum));
}

MessageHeader read_header(const void* bytes, std::size_t received_bytes,
                          const MessageHeader& expected) {
  if (received_bytes < sizeof(MessageHeader)) {
    differ(expected, "the header's size", fmt::format("{} bytes", sizeof(MessageHeader)),
           fmt::format("{} bytes", received_bytes), kSameBuild);
  }
  MessageHeader header;
  std::memcpy(&header, bytes, sizeof header);
  same_hash(expected, "the message's first word", MessageHeader::kMagic, header.magic, kSameBuild);
  same(expected, "the message format's version", MessageHeader::kVersion, header.version,
       kSameBuild);
  same_hash(expected, "the header's checksum",
            checksum(&header, offsetof(MessageHeader, header_checksum)), header.header_checksum,
            kNetwork);
  return header;
}

void check(const MessageHeader& received, const MessageHeader& expected) {
  if (received.payload_memory != expected.payload_memory) {
    differ(expected, "the memory of its payload", memory_name(expected.payload_memory),
           memory_name(received.payload_memory), kSameDeck);
  }
  same(expected, "the sending rank", expected.source_rank, received.source_rank, kSameDeck);
  same(expected, "the receiving rank", expected.target_rank, received.target_rank, kSameDeck);
  if (received.kind != expected.kind) {
    differ(expected, "its kind", message_name(expected.kind), message_name(received.kind),
           kSameDeck);
  }
  if (received.direction != expected.direction) {
    differ(expected, "its direction", name_of(expected.direction), name_of(received.direction),
           kSameDeck);
  }
  same(expected, "the boundary", expected.boundary, received.boundary, kSameDeck);
  same(expected, "the step", expected.step, received.step, kSameDeck);
  same(expected, "the micro-batch", expected.micro_batch, received.micro_batch, kSameDeck);
  same(expected, "the message's number", expected.sequence, received.sequence, kSameDeck);
  same(expected, "the number of samples", expected.sample_count, received.sample_count, kSameData);
  same_hash(expected, "the hash of the sample ids", expected.sample_hash, received.sample_hash,
            kSameData);
  same_hash(expected, "the codec", expected.codec_id, received.codec_id, kSameDeck);
  same_hash(expected, "the hash of the samples' visits and of the codec's maps",
            expected.state_hash, received.state_hash, kSameState);
}

void check_payload_size(const MessageHeader& header, std::size_t payload_bytes) {
  same(header, "the payload's size", header.payload_bytes, payload_bytes, kSameBuild);
}

void check_payload_checksum(const MessageHeader& header, std::uint64_t checksum_of_payload) {
  same_hash(header, "the payload's checksum", checksum_of_payload, header.payload_checksum,
            kNetwork);
}

}  // namespace deltapipe
