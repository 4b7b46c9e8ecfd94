// SPDX-License-Identifier: BSD-3-Clause
#include "core/files/hdf5.hpp"

#include <mutex>
#include <utility>

#include "core/base/error.hpp"
#include "core/files/hdf5_calls.hpp"
#include "core/files/input_file.hpp"

namespace deltapipe::hdf5 {

using namespace detail;

namespace {

std::recursive_mutex& library_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

/// Prevents HDF5 from closing files at exit: the handles do that, and a file that failed to close
/// (full disk) would produce the same error repeatedly.
void start_library() {
  static const bool started = [] {
    H5dont_atexit();
    return H5open() >= 0;
  }();
  DELTAPIPE_ASSERT(started, "the HDF5 library does not start");
}

void silence_this_thread() {
  // In thread-safe builds of HDF5 every thread has a separate error stack.
  static thread_local const bool silent = H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr) >= 0;
  DELTAPIPE_ASSERT(silent, "HDF5's error printing cannot be switched off");
}

herr_t take_innermost(unsigned index, const H5E_error2_t* error, void* text) {
  if (index == 0 && error->desc != nullptr) *static_cast<std::string*>(text) = error->desc;
  return 0;
}

/// HDF5 wraps the system's message: "..., errno = 28, error message = 'No space left', buf = ...".
std::string shorten(const std::string& description) {
  const std::string key = "error message = '";
  const std::size_t begin = description.find(key);
  if (begin == std::string::npos) return description;
  const std::size_t end = description.find('\'', begin + key.size());
  return description.substr(
      begin + key.size(), end == std::string::npos ? std::string::npos : end - begin - key.size());
}

std::string remedy_of(const std::string& reason) {
  const auto has = [&](const char* part) { return reason.find(part) != std::string::npos; };
  if (has("No space") || has("quota") || has("too large")) {
    return "free disk space or choose another place";
  }
  if (has("signature") || has("truncated")) return "this is not a (complete) HDF5 file";
  if (has("lock") || has("temporarily unavailable")) {
    return "another program has the file open, or the file system has no locks "
           "(then set HDF5_USE_FILE_LOCKING=FALSE)";
  }
  if (has("No such file")) return "check the path";
  if (has("Permission") || has("Read-only")) {
    return "check the permissions, or choose another place";
  }
  return "";
}

Handle file_access(const std::string& path) {
  Handle access =
      take(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "cannot create an access property list", path);
  // Closing the file also closes everything that was opened from it.
  check(H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG), "cannot set the close degree", path);
  return access;
}

std::shared_ptr<FileState> new_state(const std::string& path, bool writable) {
  return std::make_shared<FileState>(FileState{path, writable, false});
}

Handle open_existing(const std::string& path, unsigned mode) {
  const ReadOnlyFile regular(path);  // HDF5 would wait for the other end of a named pipe
  const Handle access = file_access(path);
  return take(H5Fopen(path.c_str(), mode, access.get()), H5Fclose, "cannot be opened", path);
}

}  // namespace

Lock::Lock() {
  library_mutex().lock();
  try {
    start_library();
    silence_this_thread();
  } catch (...) {
    library_mutex().unlock();
    throw;
  }
}

Lock::~Lock() {
  library_mutex().unlock();
}

Handle::Handle(Handle&& other) noexcept
    : id_(std::exchange(other.id_, -1)), close_(std::exchange(other.close_, nullptr)) {}

Handle& Handle::operator=(Handle&& other) noexcept {
  if (this != &other) {
    close();
    id_ = std::exchange(other.id_, -1);
    close_ = std::exchange(other.close_, nullptr);
  }
  return *this;
}

Handle::~Handle() {
  close();
}

bool Handle::close() {
  if (id_ < 0) return true;
  const Lock lock;
  const hid_t id = std::exchange(id_, -1);
  // Closing a file also closes its objects (file_access); their identifiers are then stale.
  if (H5Iis_valid(id) <= 0) return true;
  return close_(id) >= 0;
}

void throw_failure(const std::string& what, const std::string& file) {
  std::string reason;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take_innermost, &reason);
  H5Eclear2(H5E_DEFAULT);
  reason = shorten(reason);
  throw UserError({.what = reason.empty() ? what : what + ": " + reason,
                   .file = file,
                   .remedy = remedy_of(reason)});
}

Object& Object::operator=(Object&& other) noexcept {
  if (this != &other) {
    finish();
    handle_ = std::move(other.handle_);
    state_ = std::move(other.state_);
  }
  return *this;
}

void Object::fail_writing(const std::string& what) {
  state_->broken = true;
  throw_failure(what, state_->path);
}

bool Object::finish() noexcept {
  if (!handle_.is_open()) return true;
  const Lock lock;
  const H5I_type_t kind = H5Iget_type(id());
  if (state_->writable && kind == H5I_FILE) state_->broken = H5Fflush(id(), H5F_SCOPE_GLOBAL) < 0;
  if (state_->writable && kind == H5I_DATASET && !state_->broken) {
    state_->broken = H5Dflush(id()) < 0;
  }
  if (state_->broken) {
    handle_.abandon();
    return false;
  }
  return handle_.close();
}

bool Location::exists(const std::string& name) const {
  const Lock lock;
  const htri_t found = H5Lexists(id(), name.c_str(), H5P_DEFAULT);
  if (found < 0) throw_failure("cannot look for '" + name + "'", file_name());
  return found > 0;
}

std::vector<std::string> Location::names() const {
  const Lock lock;
  std::vector<std::string> found;
  const auto add = [](hid_t, const char* name, const H5L_info_t*, void* list) -> herr_t {
    static_cast<std::vector<std::string>*>(list)->emplace_back(name);
    return 0;
  };
  check(H5Literate(id(), H5_INDEX_NAME, H5_ITER_INC, nullptr, add, &found),
        "cannot list the contents", file_name());
  return found;
}

Group Location::create_group(const std::string& name) {
  const Lock lock;
  Handle group(H5Gcreate2(id(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose);
  if (!group.is_open()) fail_writing("cannot create " + quoted("group", name));
  return Group(std::move(group), state_);
}

Group Location::open_group(const std::string& name) const {
  const Lock lock;
  const std::string what = "cannot open " + quoted("group", name);
  check_links(id(), name, what, file_name());
  return Group(take(H5Gopen2(id(), name.c_str(), H5P_DEFAULT), H5Gclose, what, file_name()),
               state_);
}

File File::create(const std::string& path, const FileOptions& options) {
  const Lock lock;
  const std::string& shown = options.shown_path.empty() ? path : options.shown_path;
  const Handle access = file_access(shown);
  const std::string what = "cannot be created";
  if (options.checksummed)
    check(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110), what, shown);
  if (options.alignment > 1)
    check(H5Pset_alignment(access.get(), options.alignment, options.alignment), what, shown);
  const Handle creation = take(H5Pcreate(H5P_FILE_CREATE), H5Pclose, what, shown);
  constexpr unsigned kMost = 64;  // most attributes in the object's header
  if (options.attributes_first)
    check(H5Pset_attr_phase_change(creation.get(), kMost, kMost), what, shown);
  const unsigned mode = options.replace ? H5F_ACC_TRUNC : H5F_ACC_EXCL;
  return File(
      take(H5Fcreate(path.c_str(), mode, creation.get(), access.get()), H5Fclose, what, shown),
      new_state(shown, true));
}

File File::open_read_only(const std::string& path) {
  const Lock lock;
  return File(open_existing(path, H5F_ACC_RDONLY), new_state(path, false));
}

File File::open_read_write(const std::string& path) {
  const Lock lock;
  return File(open_existing(path, H5F_ACC_RDWR), new_state(path, true));
}

File File::open_unshared(const std::string& path, const std::string& shown_path) {
  const Lock lock;
  const Handle access = file_access(shown_path);
#if H5_VERSION_GE(1, 12, 1) || (H5_VERSION_GE(1, 10, 7) && !H5_VERSION_GE(1, 12, 0))
  check(H5Pset_file_locking(access.get(), false, true), "cannot be written", shown_path);
#endif
  return File(take(H5Fopen(path.c_str(), H5F_ACC_RDWR, access.get()), H5Fclose, "cannot be written",
                   shown_path),
              new_state(shown_path, true));
}

File File::create_in_memory(const std::string& name) {
  const Lock lock;
  const Handle access = file_access(name);
  constexpr std::size_t growth_bytes = std::size_t{1} << 20;
  check(H5Pset_fapl_core(access.get(), growth_bytes, false), "cannot be created in memory", name);
  return File(take(H5Fcreate(name.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get()), H5Fclose,
                   "cannot be created in memory", name),
              new_state(name, true));
}

void File::flush() {
  const Lock lock;
  if (H5Fflush(id(), H5F_SCOPE_GLOBAL) < 0) fail_writing("cannot be written");
  state_->broken = false;
}

void File::close() {
  const Lock lock;
  if (!finish()) throw_failure("cannot be written", file_name());
}

std::vector<std::byte> File::image() {
  const Lock lock;
  flush();
  const std::string what = "has no image";
  const ssize_t size = H5Fget_file_image(id(), nullptr, 0);
  if (size < 0) throw_failure(what, file_name());
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  if (H5Fget_file_image(id(), bytes.data(), bytes.size()) < 0) throw_failure(what, file_name());
  return bytes;
}

}  // namespace deltapipe::hdf5
