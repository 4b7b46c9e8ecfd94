// SPDX-License-Identifier: BSD-3-Clause
#include "core/data/image_resize.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/base/error.hpp"

namespace deltapipe {

namespace {

constexpr int kWeightBits = 22;  // as Pillow: sums of bytes times weights fit into 32 bits

/// Returns a product that no sum is fused with: all machines have the same weights.
double product(double a, double b) {
  const volatile double result = a * b;
  return result;
}

/// The weights of the pixels of a row (or column) from which those of a resized one are computed.
class Weights {
 public:
  /// For `count` of the `resized` pixels, from `first` on, that `size` pixels become.
  Weights(int size, int resized, int first, int count) {
    const double scale = static_cast<double>(size) / resized;
    const double filter = std::max(scale, 1.0);
    most_ = static_cast<int>(std::ceil(filter)) * 2 + 1;
    weight_.resize(static_cast<std::size_t>(count) * static_cast<std::size_t>(most_));
    std::vector<double> weights(static_cast<std::size_t>(most_));
    for (int i = 0; i < count; ++i) {
      const double centre = product(first + i + 0.5, scale);
      const int begin = std::max(0, static_cast<int>(centre - filter + 0.5));
      const int end = std::min(size, static_cast<int>(centre + filter + 0.5));
      double sum = 0;
      for (int k = 0; k < end - begin; ++k) {
        const double distance = std::abs(product(k + begin - centre + 0.5, 1 / filter));
        weights[k] = distance < 1 ? 1 - distance : 0;
        sum += weights[k];
      }
      range_.push_back({begin, end - begin});
      std::int32_t* const target = weight_.data() + static_cast<std::size_t>(i * most_);
      for (int k = 0; k < end - begin; ++k)
        target[k] = static_cast<std::int32_t>(0.5 + weights[k] / sum * (1 << kWeightBits));
    }
  }

  struct Range {
    int begin, count;
  };
  Range range(int i) const { return range_[static_cast<std::size_t>(i)]; }
  const std::int32_t* weights(int i) const {
    return weight_.data() + static_cast<std::size_t>(i) * static_cast<std::size_t>(most_);
  }

 private:
  int most_;
  std::vector<Range> range_;
  std::vector<std::int32_t> weight_;
};

std::uint8_t byte_of(std::int32_t sum) {
  return static_cast<std::uint8_t>(std::clamp(sum >> kWeightBits, 0, 255));
}

constexpr std::int32_t kHalf = 1 << (kWeightBits - 1);

/// Resizes rows to the part [left, left + width) of `resized` pixels.
template <int channels>
Image resize_rows(const Image& image, int resized, int left, int width) {
  const Weights weights(image.shape.width, resized, left, width);
  Image result{{image.shape.height, width, channels}, {}};
  result.pixels_HWC.resize(result.shape.values());
  const std::size_t pitch = static_cast<std::size_t>(image.shape.width) * channels;
  std::uint8_t* target = result.pixels_HWC.data();
  for (int y = 0; y < image.shape.height; ++y) {
    const std::uint8_t* const row = image.pixels_HWC.data() + static_cast<std::size_t>(y) * pitch;
    for (int x = 0; x < width; ++x) {
      const Weights::Range range = weights.range(x);
      const std::int32_t* const weight = weights.weights(x);
      const std::uint8_t* pixel = row + static_cast<std::size_t>(range.begin) * channels;
      std::int32_t sums[channels];
      std::fill_n(sums, channels, kHalf);
      for (int k = 0; k < range.count; ++k)
        for (int c = 0; c < channels; ++c) sums[c] += *pixel++ * weight[k];
      for (int c = 0; c < channels; ++c) *target++ = byte_of(sums[c]);
    }
  }
  return result;
}

/// Resizes columns to the part [top, top + height) of `resized` pixels.
Image resize_columns(const Image& image, int resized, int top, int height) {
  const Weights weights(image.shape.height, resized, top, height);
  Image result{{height, image.shape.width, image.shape.channels}, {}};
  result.pixels_HWC.resize(result.shape.values());
  const std::size_t pitch =
      static_cast<std::size_t>(image.shape.width) * static_cast<std::size_t>(image.shape.channels);
  std::vector<std::int32_t> sums(pitch);
  std::uint8_t* target = result.pixels_HWC.data();
  for (int y = 0; y < height; ++y) {
    const Weights::Range range = weights.range(y);
    const std::int32_t* const weight = weights.weights(y);
    std::ranges::fill(sums, kHalf);
    for (int k = 0; k < range.count; ++k) {
      const std::uint8_t* const row =
          image.pixels_HWC.data() + static_cast<std::size_t>(range.begin + k) * pitch;
      for (std::size_t i = 0; i < pitch; ++i) sums[i] += row[i] * weight[k];
    }
    for (std::size_t i = 0; i < pitch; ++i) *target++ = byte_of(sums[i]);
  }
  return result;
}

Image part_of(const Image& image, int top, int left, int height, int width) {
  Image result{{height, width, image.shape.channels}, {}};
  const auto channels = static_cast<std::size_t>(image.shape.channels);
  for (int y = top; y < top + height; ++y) {
    const auto first =
        image.pixels_HWC.begin() +
        static_cast<std::ptrdiff_t>(
            (static_cast<std::size_t>(y) * static_cast<std::size_t>(image.shape.width) +
             static_cast<std::size_t>(left)) *
            channels);
    result.pixels_HWC.insert(result.pixels_HWC.end(), first,
                             first + static_cast<std::ptrdiff_t>(width) * image.shape.channels);
  }
  return result;
}

/// Rounds halves to even numbers, as Python's round().
int half_of(int difference) {
  return difference / 2 + (difference % 4 == 3 ? 1 : 0);
}

}  // namespace

ResizePlan plan_resize(int height, int width, const ImageShape& target, ImageFit fit) {
  if (fit == ImageFit::stretch) return {target.height, target.width, 0, 0};
  const std::int64_t by_height = std::int64_t{target.height} * width;
  const std::int64_t by_width = std::int64_t{target.width} * height;
  ResizePlan plan{target.height, target.width, 0, 0};
  if (by_height >= by_width)
    plan.width = static_cast<int>(by_height / height);
  else
    plan.height = static_cast<int>(by_width / width);
  plan.top = half_of(plan.height - target.height);
  plan.left = half_of(plan.width - target.width);
  return plan;
}

Image resized(const Image& image, const ResizePlan& plan, int height, int width) {
  const ImageShape& shape = image.shape;
  DELTAPIPE_ASSERT(shape.channels == 1 || shape.channels == 3, text_of(shape));
  DELTAPIPE_ASSERT(plan.top + height <= plan.height && plan.left + width <= plan.width,
                   text_of(shape));
  const bool rows = plan.width != shape.width, columns = plan.height != shape.height;
  if (!rows && !columns) return part_of(image, plan.top, plan.left, height, width);
  Image result;
  if (rows)
    result = shape.channels == 1 ? resize_rows<1>(image, plan.width, plan.left, width)
                                 : resize_rows<3>(image, plan.width, plan.left, width);
  else
    result = part_of(image, 0, plan.left, shape.height, width);
  if (columns) return resize_columns(result, plan.height, plan.top, height);
  return part_of(result, plan.top, 0, height, width);
}

}  // namespace deltapipe
