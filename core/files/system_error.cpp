#include "core/files/system_error.hpp"

#include <cerrno>
#include <system_error>

#include "core/error.hpp"

namespace deltapipe {

namespace {

std::string remedy_of(int error) {
  switch (error) {
    case ENOENT:
      return "check the path";
    case EACCES:
    case EPERM:
    case EROFS:
      return "check the permissions, or choose another place";
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return "free disk space or choose another place";
    case EISDIR:
      return "name a file, not a directory";
    default:
      return "";
  }
}

}  // namespace

void throw_system_error(const std::string& action, const std::string& path, int error) {
  throw UserError({.what = action + ": " + std::generic_category().message(error),
                   .file = path,
                   .remedy = remedy_of(error)});
}

}  // namespace deltapipe
