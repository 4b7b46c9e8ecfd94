// SPDX-License-Identifier: BSD-3-Clause
#include "app/preflight/message_sizes.hpp"

namespace deltapipe {

WireBytes& WireBytes::operator+=(const WireBytes& other) {
  payload += other.payload;
  headers += other.headers;
  fp32 += other.fp32;
  messages += other.messages;
  return *this;
}

bool has_fixed_length(const CodecSettings& codec) {
  return !sends_positions(codec) && !(is_entropy_coded(codec) && sends_codes(codec));
}

}  // namespace deltapipe
