// SPDX-License-Identifier: BSD-3-Clause
#include "core/files/system_error.hpp"

#include <cerrno>
#include <system_error>

#include "core/base/error.hpp"

namespace deltapipe {

namespace {

std::string remedy_of(int error) {
  if (is_no_space(error)) return "free disk space or choose another place";
  switch (error) {
    case ENOENT:
      return "check the path";
    case EACCES:
    case EPERM:
    case EROFS:
      return "check the permissions, or choose another place";
    case EISDIR:
      return "name a file, not a directory";
    case ELOOP:
      return "put the file itself there";
    default:
      return "";
  }
}

}  // namespace

std::string system_message(int error) {
  return error == ELOOP ? "it is a symbolic link that is not followed"
                        : std::generic_category().message(error);
}

void throw_system_error(const std::string& action, const std::string& path, int error) {
  throw UserError(
      {.what = action + ": " + system_message(error), .file = path, .remedy = remedy_of(error)});
}

bool is_no_space(int error) {
  return error == ENOSPC || error == EDQUOT || error == EFBIG;
}

}  // namespace deltapipe
