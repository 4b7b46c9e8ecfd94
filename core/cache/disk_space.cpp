// SPDX-License-Identifier: BSD-3-Clause
#include "core/cache/disk_space.hpp"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <cerrno>

#include "core/base/error.hpp"
#include "core/files/system_error.hpp"

namespace deltapipe {

void check_disk_space(const std::string& directory, std::uint64_t bytes, const std::string& file) {
  struct statvfs status {};
  if (::statvfs(directory.c_str(), &status) != 0)
    throw UserError(
        {.what = "the directory for cache files cannot be used: " + system_message(errno),
         .file = directory,
         .remedy = "create it or set cache.directory"});
  const std::uint64_t free_bytes = std::uint64_t{status.f_bavail} * status.f_frsize;
  if (free_bytes >= bytes) return;
  throw UserError({.what = fmt::format(
                       "too little disk space: the activation cache needs {} bytes, {} are free",
                       bytes, free_bytes),
                   .file = file,
                   .remedy = "free space, set cache.directory to a larger disk or choose a smaller "
                             "cache.storage"});
}

}  // namespace deltapipe
