// SPDX-License-Identifier: BSD-3-Clause
// The table of a sample's fields. Data sets fill them, and the ends of models interpret them.
// Everything between moves fields without knowing their meaning.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/parallel/views.hpp"

namespace deltapipe {

/// Names of kFieldKinds, in its order.
enum class Field { tokens, segments, values, next_tokens, label, count };
inline constexpr std::size_t kFields = static_cast<std::size_t>(Field::count);

/// Elements of integer fields are 32 bits wide, those of other fields are floats.
struct FieldKind {
  const char* name;
  bool is_integer;
  bool is_input;  ///< for the first stage, else for the last one
};
/// To add a kind of inputs or targets, add a Field and a line here.
inline constexpr std::array<FieldKind, kFields> kFieldKinds = {{
    {"tokens", true, true},        // [T] ids
    {"segments", true, true},      // [T] index of the text that a token belongs to
    {"values", false, true},       // [any] a vector, or an image as [H, W, C]
    {"next_tokens", true, false},  // [T] ids; -1: no target
    {"label", true, false},        // [1] class
}};
constexpr const FieldKind& kind_of(Field field) {
  return kFieldKinds[static_cast<std::size_t>(field)];
}

/// Elements of each field of a sample, indexed by Field; 0: samples do not have the field.
struct FieldSizes {
  std::array<int, kFields> elements{};

  constexpr int operator[](Field field) const { return elements[static_cast<std::size_t>(field)]; }
  constexpr int& operator[](Field field) { return elements[static_cast<std::size_t>(field)]; }
  bool operator==(const FieldSizes&) const = default;
};
/// Returns the fields of a text of T tokens with the next tokens as targets.
constexpr FieldSizes fields_of_text(int tokens) {
  FieldSizes sizes;
  sizes[Field::tokens] = sizes[Field::next_tokens] = tokens;
  return sizes;
}

/// Calls f(field) for all fields that samples of these sizes have.
template <class F>
void for_each_field(const FieldSizes& sizes, const F& f) {
  for (std::size_t i = 0; i < kFields; ++i)
    if (sizes.elements[i] > 0) f(static_cast<Field>(i));
}

/// The fields of one sample on the host. Spans of fields that nobody needs are empty.
class SampleSpans {
 public:
  std::span<std::int32_t> integers(Field field) const {
    return integers_[static_cast<std::size_t>(field)];
  }
  std::span<float> reals(Field field) const { return reals_[static_cast<std::size_t>(field)]; }
  void set(Field field, std::span<std::int32_t> elements) {
    integers_[static_cast<std::size_t>(field)] = elements;
  }
  void set(Field field, std::span<float> elements) {
    reals_[static_cast<std::size_t>(field)] = elements;
  }

 private:
  std::array<std::span<std::int32_t>, kFields> integers_;
  std::array<std::span<float>, kFields> reals_;
};

/// The fields of a micro-batch where kernels run: the elements of its samples, one after another.
class BatchFields {
 public:
  VectorRef<const std::int32_t> integers(Field field) const {
    return integers_[static_cast<std::size_t>(field)];
  }
  VectorRef<const float> reals(Field field) const {
    return reals_[static_cast<std::size_t>(field)];
  }
  void set(Field field, const VectorRef<const std::int32_t>& elements) {
    integers_[static_cast<std::size_t>(field)] = elements;
  }
  void set(Field field, const VectorRef<const float>& elements) {
    reals_[static_cast<std::size_t>(field)] = elements;
  }

 private:
  std::array<VectorRef<const std::int32_t>, kFields> integers_;
  std::array<VectorRef<const float>, kFields> reals_;
};

}  // namespace deltapipe
