// SPDX-License-Identifier: BSD-3-Clause
#include "core/codec/crossing.hpp"

namespace deltapipe {

const char* name_of(CrossingKind kind) {
  switch (kind) {
    case CrossingKind::activation:
      return "activation";
    case CrossingKind::gradient:
      return "gradient";
    case CrossingKind::tied_rows:
      return "tied rows";
    case CrossingKind::tied_gradients:
      return "tied gradients";
    case CrossingKind::common_gradients:
      return "common gradients";
    case CrossingKind::common_values:
      return "common values";
  }
  return "message of unknown kind";
}

const char* name_of(Direction direction) {
  switch (direction) {
    case Direction::forward:
      return "forward";
    case Direction::backward:
      return "backward";
  }
  return "unknown";
}

Direction direction_of(CrossingKind kind) {
  const bool backward = kind == CrossingKind::gradient || kind == CrossingKind::tied_rows ||
                        kind == CrossingKind::common_gradients;
  return backward ? Direction::backward : Direction::forward;
}

}  // namespace deltapipe
