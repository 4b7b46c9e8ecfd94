// SPDX-License-Identifier: BSD-3-Clause
// Boundary codecs: what crosses a stage boundary, as bytes.
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

/// The largest micro-batch that a codec is made for, and the end.
struct CodecShape {
  int max_samples = 1;  ///< B
  int tokens = 1;       ///< T
  int channels = 1;     ///< C
  /// A codec of one end holds what that end uses: the sender's only encodes, the receiver's only
  /// decodes. None: it does both.
  std::optional<BoundarySide> side = {};
  /// Places of the T rows in the samples' images. With places, records of samples move with the
  /// views of the images (Crossing::views).
  RowGrid grid = {};

  bool encodes() const { return side != BoundarySide::receiver; }
  bool decodes() const { return side != BoundarySide::sender; }
  bool operator==(const CodecShape&) const = default;
};

/// Sums over the valid elements of what was encoded.
struct CodecStatistics {
  double error2 = 0;           ///< sum (x - x_hat)^2, x_hat being what the receiver sees
  double signal2 = 0;          ///< sum x^2
  std::uint64_t elements = 0;  ///< elements that error2 and signal2 cover
  /// Inputs that are NaN or infinite, or that the format turns into infinities; never in error2 and
  /// signal2.
  std::uint64_t nonfinite = 0;

  /// sqrt(error2 / signal2); 0 for no signal.
  double relative_rms_error() const;
  CodecStatistics& operator+=(const CodecStatistics& other);
};

/// Turns activations into payload bytes and back. One object serves one end of one boundary and
/// direction; calls are asynchronous on their execution space instance, but that a length which
/// depends on the data is waited for, and an object's calls must run one after another (same
/// instance, or fences between). Codecs with memory change the crossing's records: the shared part
/// in encode and decode alike, so that afterwards both ends hold the same bits of it.
class Codec {
 public:
  virtual ~Codec() = default;

  /// Hash of all that both ends must agree on: settings, shape and payload format.
  virtual std::uint32_t id() const = 0;
  /// Hash of the state that decides how the crossing's payload is read and that both ends must have
  /// in common: visits of samples with a shared memory, warm-up. Before encode or decode.
  virtual std::uint32_t state_hash(const Crossing& crossing) const = 0;
  /// Bytes of the largest payload.
  virtual std::size_t max_payload_bytes() const = 0;
  /// Most bytes that this crossing's payload takes; all of them unless the length depends on the
  /// data.
  virtual std::size_t payload_bytes(const Crossing& crossing) const = 0;
  /// Bytes that each end keeps of a sample; 0: the codec has no memory.
  virtual RecordLayout record() const { return {}; }

  /// Bytes that the codec itself holds: tables, sums and partial scales.
  virtual std::size_t memory_bytes() const = 0;

  /// Shares positions with the codec of the other direction at this end of the boundary; before the
  /// first crossing. Codecs that send no positions have no use for them.
  virtual void share(std::shared_ptr<ForwardMasks>) {}

  /// Values of the crossing's valid tokens that travel in codes with steps of a fraction of the
  /// RMS, which set_rms_step sets.
  virtual std::uint64_t values_in_rms_steps(const Crossing&) const { return 0; }
  /// The fraction from the next encode on, instead of the settings' rms_step: kLeastRmsStep to
  /// kLargestRmsStep. For senders; a receiver takes the steps that travel.
  virtual void set_rms_step(double) {}

  /// True if encode waits for its kernels: the payload's length depends on the data.
  virtual bool waits() const { return false; }

  /// Writes the payload and returns its length in bytes. The buffer has room for
  /// payload_bytes(crossing); records are the sender's. Padding rows of x_BTC are not read.
  virtual std::size_t encode(const ExecSpace& exec, const Crossing& crossing, Activations x_BTC,
                             const MemoryRecords& records, DeviceBytes payload) = 0;
  /// Sets the valid rows of x_BTC to what the sender encoded, as it is after quantisation, and
  /// all other rows to zero; records are the receiver's. Throws UserError, before it changes
  /// anything, when payload_bytes is not the length of such a payload.
  virtual void decode(const ExecSpace& exec, const Crossing& crossing, DeviceBytes payload,
                      std::size_t payload_bytes, const MemoryRecords& records,
                      Activations x_BTC) = 0;

  /// True after an encode of values that the receiver cannot get: NaN, infinities, and numbers that
  /// leave the range of the format or of the memory. What travels and what is kept is finite all
  /// the same, so that a caller who does not ask never knows. After a fence of the encode's
  /// instance; take_statistics() resets it.
  virtual bool lost_values() const = 0;

  /// Makes encode sum error2 and signal2, which costs another pass over the rows. Off at first.
  virtual void measure_errors(bool on) = 0;
  /// Sums since the last call; waits for the encodes.
  virtual CodecStatistics take_statistics(const ExecSpace& exec) = 0;
};

/// Throws UserError when a setting is out of range. The storage is that of AQ-SGD's
/// memories and of error feedback. With settings.warmup_epochs > 0 the codec sends fp32 while
/// crossing.epoch is below it; codecs whose ends share a memory set m(s) := a(s) at each of those
/// visits, and errors are zero after them. What error feedback keeps is kept in bf16 for fp16.
std::unique_ptr<Codec> make_codec(const CodecSettings& settings, const CodecShape& shape,
                                  MemoryStorage storage);

/// For Codec::share of the codecs of activations and of their gradients at one end of a boundary,
/// with up to `slots` micro-batches between their forward and their backward crossing. The codec of
/// gradients counts its memory. Null where gradients do not follow the activations' positions.
std::shared_ptr<ForwardMasks> make_forward_masks(const CodecSettings& forward,
                                                 const CodecSettings& backward,
                                                 const CodecShape& shape, int slots);

}  // namespace deltapipe
