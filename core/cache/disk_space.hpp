// SPDX-License-Identifier: BSD-3-Clause
// Free space on disk.
#pragma once

#include <cstdint>
#include <string>

namespace deltapipe {

/// Throws UserError when less than `bytes` are free for this user in the file system of
/// `directory`, which must exist. `file`, which needs the space, appears in the message.
void check_disk_space(const std::string& directory, std::uint64_t bytes, const std::string& file);

}  // namespace deltapipe
