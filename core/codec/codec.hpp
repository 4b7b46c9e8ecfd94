// SPDX-License-Identifier: BSD-3-Clause
// Boundary codecs: the bytes in which values cross a stage boundary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "core/base/parallel/views.hpp"
#include "core/base/row_grid.hpp"
#include "core/codec/crossing.hpp"
#include "core/codec/settings.hpp"
#include "core/codec/wire/records.hpp"

namespace deltapipe {

class ForwardMasks;

/// B*T rows of C channels; row b*T + t is token t of sample b.
using Activations = Matrix<float>;

/// Largest micro-batch of a codec, and the end that the codec serves.
struct CodecShape {
  int max_samples = 1;  ///< B
  int tokens = 1;       ///< T
  int channels = 1;     ///< C
  /// The end that the codec serves. A sender's codec only encodes, a receiver's only decodes, and
  /// both hold only what they use. Without a value, the codec does both.
  std::optional<BoundarySide> side = {};
  /// Places of the T rows in the samples' images. If rows have places, the samples' records move
  /// with the views of the images (Crossing::views).
  RowGrid grid = {};

  bool encodes() const { return side != BoundarySide::receiver; }
  bool decodes() const { return side != BoundarySide::sender; }
  bool operator==(const CodecShape&) const = default;
};

/// Sums over the valid elements that were encoded.
struct CodecStatistics {
  double error2 = 0;           ///< sum (x - x_hat)^2; x_hat is what the receiver sees
  double signal2 = 0;          ///< sum x^2
  std::uint64_t elements = 0;  ///< number of elements in error2 and signal2
  /// Number of inputs that are NaN or infinite, or that the format turns into infinities. They are
  /// not part of error2 and signal2.
  std::uint64_t nonfinite = 0;

  CodecStatistics& operator+=(const CodecStatistics& other);
};

/// Converts activations to payload bytes and back. One object serves one end of one boundary and
/// direction. Calls are asynchronous on their execution space instance, except that they wait for a
/// length that depends on the data. Calls of one object must run one after another (same instance,
/// or fences between them). Codecs with memory change the crossing's records. encode and decode
/// change the shared part alike, so that both ends hold the same bits of it afterwards.
class Codec {
 public:
  virtual ~Codec() = default;

  /// Returns a hash of all that both ends must agree on: settings, shape and payload format.
  virtual std::uint32_t id() const = 0;
  /// Returns a hash of the state that determines how the crossing's payload is read and that both
  /// ends must share: visits of samples with a shared memory, warm-up. Call it before encode or
  /// decode.
  virtual std::uint32_t state_hash(const Crossing& crossing) const = 0;
  /// Returns the number of bytes of the largest payload.
  virtual std::size_t max_payload_bytes() const = 0;
  /// Returns the largest number of bytes of this crossing's payload; the exact number unless it
  /// depends on the data.
  virtual std::size_t payload_bytes(const Crossing& crossing) const = 0;
  /// Returns the bytes that each end keeps per sample; 0 if the codec has no memory.
  virtual RecordLayout record() const { return {}; }

  /// Returns the bytes that the codec itself holds: tables, sums and partial scales.
  virtual std::size_t memory_bytes() const = 0;

  /// Shares positions with the codec of the other direction at this end of the boundary. Must be
  /// called before the first crossing. Codecs that send no positions ignore it.
  virtual void share(std::shared_ptr<ForwardMasks>) {}

  /// Returns the number of values of the crossing's valid tokens that are sent as codes in steps of
  /// a fraction of the RMS. set_rms_step sets this fraction.
  virtual std::uint64_t values_in_rms_steps(const Crossing&) const { return 0; }
  /// Sets the fraction for all later encodes, kLeastRmsStep to kLargestRmsStep, in place of the
  /// settings' rms_step. For senders: a receiver uses the steps in the payload.
  virtual void set_rms_step(double) {}

  /// Returns true if encode waits for its kernels, because the payload's length depends on the
  /// data.
  virtual bool waits() const { return false; }

  /// Writes the payload and returns its length in bytes. The buffer must have room for
  /// payload_bytes(crossing), and `records` must be the sender's. Padding rows of x_BTC are not
  /// read.
  virtual std::size_t encode(const ExecSpace& exec, const Crossing& crossing, Activations x_BTC,
                             const MemoryRecords& records, DeviceBytes payload) = 0;
  /// Sets the valid rows of x_BTC to the values that were sent, after quantisation, and all other
  /// rows to zero; `records` must be the receiver's. Throws UserError, before it changes anything,
  /// if payload_bytes is not the length of such a payload.
  virtual void decode(const ExecSpace& exec, const Crossing& crossing, DeviceBytes payload,
                      std::size_t payload_bytes, const MemoryRecords& records,
                      Activations x_BTC) = 0;

  /// Returns true after an encode of values that the receiver cannot get: NaN, infinities, and
  /// numbers outside the range of the format or of the memory. Everything sent or kept is finite
  /// nevertheless, so that a caller that does not ask never notices. Requires a fence of the
  /// encode's instance. take_statistics() resets it.
  virtual bool lost_values() const = 0;

  /// Makes encode sum error2 and signal2, which costs another pass over the rows. Off by default.
  virtual void measure_errors(bool on) = 0;
  /// Returns the sums since the last call; waits for the encodes.
  virtual CodecStatistics take_statistics(const ExecSpace& exec) = 0;
};

/// Makes a codec. Throws UserError if a setting is out of range. `storage` is the precision of
/// AQ-SGD's memories and of the records of error feedback; these use bf16 in place of fp16. With
/// settings.warmup_epochs > 0, the codec sends fp32 while crossing.epoch is below it. Codecs whose
/// ends share a memory set m(s) := a(s) at each of these visits, and errors are zero after them.
std::unique_ptr<Codec> make_codec(const CodecSettings& settings, const CodecShape& shape,
                                  MemoryStorage storage);

/// Makes the masks for Codec::share of the codecs of activations and of their gradients at one end
/// of a boundary, with up to `slots` micro-batches between their forward and their backward
/// crossing. The codec of gradients counts their memory. Returns null if gradients do not follow
/// the activations' positions.
std::shared_ptr<ForwardMasks> make_forward_masks(const CodecSettings& forward,
                                                 const CodecSettings& backward,
                                                 const CodecShape& shape, int slots);

}  // namespace deltapipe
