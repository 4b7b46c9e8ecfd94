// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/row_grid.hpp"

#include <cmath>

namespace deltapipe {

RowView row_view(const RowGrid& grid, int dy, int dx) {
  const auto places = [&](int pixels) {
    return static_cast<int>(std::lround(static_cast<double>(pixels) / grid.stride));
  };
  return {places(dy), places(dx)};
}

}  // namespace deltapipe
