// SPDX-License-Identifier: BSD-3-Clause
#include "app/checkpoint/checkpoint_files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <new>
#include <system_error>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/number_text.hpp"
#include "core/files/descriptor.hpp"
#include "core/files/json.hpp"
#include "core/files/replacement.hpp"
#include "core/files/system_error.hpp"

namespace deltapipe {

namespace fs = std::filesystem;

namespace {

constexpr const char* kMarker = "complete.json";
constexpr const char* kFormat = "deltapipe checkpoint";
constexpr const char* kChecksum = "xxh3";
constexpr int kFormatVersion = 3;
constexpr std::string_view kPrefix = "step-";
constexpr std::size_t kDigits = 9;
constexpr std::uint64_t kLargestMarker = std::uint64_t{64} << 20;
constexpr const char* kOtherCheckpoint = "start from another checkpoint";

[[noreturn]] void refuse(const std::string& file, const std::string& what,
                         const std::string& value = {}) {
  throw UserError({.what = what, .file = file, .value = value, .remedy = kOtherCheckpoint});
}

/// Opens a file to read from. Does not wait for the other end of a named pipe.
FileDescriptor open_regular(const std::string& path) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) throw_system_error("cannot be opened", path, errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode))
    refuse(path, "is not a regular file");
  return file;
}

void sync(int descriptor, const std::string& path) {
  if (::fsync(descriptor) != 0) throw_system_error("cannot be flushed to the disk", path, errno);
}

CheckpointFile describe(const FileDescriptor& file, const std::string& path,
                        const std::string& name, const std::function<void()>& look = {}) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hash(XXH3_createState(),
                                                                      XXH3_freeState);
  if (hash == nullptr) throw std::bad_alloc();
  XXH3_64bits_reset(hash.get());
  std::vector<char> piece(std::size_t{1} << 20);
  CheckpointFile found{name, 0, 0};
  for (;;) {
    const ssize_t count =
        ::pread(file.get(), piece.data(), piece.size(), static_cast<off_t>(found.bytes));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_system_error("cannot be read", path, errno);
    if (count == 0) break;
    XXH3_64bits_update(hash.get(), piece.data(), static_cast<std::size_t>(count));
    found.bytes += static_cast<std::uint64_t>(count);
    if (look) look();
  }
  found.hash = XXH3_64bits_digest(hash.get());
  return found;
}

/// Members of the marker. Each must be present and of its kind.
class Members {
 public:
  Members(const Json& object, std::string file) : object_(object), file_(std::move(file)) {
    if (!object_.is_object()) refuse(file_, "is no marker of a checkpoint");
  }
  template <class T>
  T get(const char* name) const {
    const auto member = object_.find(name);
    if (member == object_.end()) refuse(file_, fmt::format("lacks '{}'", name));
    bool fits = false;
    if constexpr (std::is_same_v<T, std::string>)
      fits = member->is_string();
    else if constexpr (std::is_same_v<T, bool>)
      fits = member->is_boolean();
    else if constexpr (std::is_same_v<T, double>)
      fits = member->is_number();
    else
      fits = member->is_number_unsigned() &&
             member->template get<std::uint64_t>() <= std::uint64_t{std::numeric_limits<T>::max()};
    if (!fits) refuse(file_, fmt::format("has a wrong '{}'", name), shown(*member));
    return member->template get<T>();
  }
  std::uint64_t get_hash(const char* name) const {
    const std::string text = get<std::string>(name);
    if (text.size() != 16 || text.find_first_not_of("0123456789abcdef") != std::string::npos)
      refuse(file_, fmt::format("has a wrong '{}'", name), text);
    return std::stoull(text, nullptr, 16);
  }
  const Json& list(const char* name) const {
    const auto member = object_.find(name);
    if (member == object_.end() || !member->is_array())
      refuse(file_, fmt::format("has no list '{}'", name));
    return *member;
  }
  const std::string& file() const { return file_; }

 private:
  const Json& object_;
  std::string file_;
};

std::string hash_of(const std::string& text) {
  return hex_digits(XXH3_64bits(text.data(), text.size()));
}

/// The marker's text without its own checksum, whose digits do not depend on who wrote it.
std::string text_of(Json json) {
  json.erase(kChecksum);
  return json.dump(1, ' ', false, Json::error_handler_t::replace);
}

/// A name in the checkpoint's own directory.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name.front() != '.' && name.find('/') == std::string::npos;
}

std::vector<int> partition_of(const Members& members) {
  std::vector<int> partition;
  for (const Json& blocks : members.list("partition")) {
    if (!blocks.is_number_unsigned() || blocks.get<std::uint64_t>() > 1'000'000)
      refuse(members.file(), "has a wrong 'partition'");
    partition.push_back(blocks.get<int>());
  }
  return partition;
}

std::vector<CheckpointFile> files_of(const Members& members) {
  std::vector<CheckpointFile> files;
  for (const Json& entry : members.list("files")) {
    const Members file(entry, members.file());
    files.push_back(
        {file.get<std::string>("name"), file.get<std::uint64_t>("bytes"), file.get_hash("xxh3")});
    if (!is_plain_name(files.back().name))
      refuse(members.file(), "names a file elsewhere", files.back().name);
  }
  return files;
}

}  // namespace

const CheckpointFile& CheckpointMarker::file(const std::string& name) const {
  for (const CheckpointFile& file : files)
    if (file.name == name) return file;
  refuse(name, fmt::format("is no file of the checkpoint of step {}", step));
}

std::uint64_t CheckpointMarker::bytes() const {
  std::uint64_t sum = 0;
  for (const CheckpointFile& file : files) sum += file.bytes;
  return sum;
}

std::string checkpoint_name(std::uint64_t step) {
  return fmt::format("{}{:0{}}", kPrefix, step, kDigits);
}

std::string rank_file_name(int rank) {
  return fmt::format("rank-{}.h5", rank);
}

std::string unfinished_checkpoint(const std::string& directory, const std::string& run_id,
                                  std::uint64_t step) {
  const std::string name = fmt::format("{}/{}", run_id, step);
  return directory + "/.deltapipe-partial-" + hex_digits(XXH3_64bits(name.data(), name.size()));
}

std::vector<std::uint64_t> checkpoint_steps(const std::string& directory) {
  std::vector<std::uint64_t> steps;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(kPrefix) || name.size() > kPrefix.size() + 19) continue;
    const std::string digits = name.substr(kPrefix.size());
    if (digits.empty() || digits.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::uint64_t step = std::stoull(digits);
    if (checkpoint_name(step) == name) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

CheckpointMarker read_marker(const std::string& checkpoint) {
  const std::string path = checkpoint + "/" + kMarker;
  const Json json = read_json_file(path, kLargestMarker);
  const Members members(json, path);
  if (members.get<std::string>("format") != kFormat) refuse(path, "is no marker of a checkpoint");
  if (members.get<std::uint64_t>("format_version") != kFormatVersion)
    refuse(path, "is of another version of the program",
           fmt::format("format_version {}", members.get<std::uint64_t>("format_version")));
  if (members.get<std::string>(kChecksum) != hash_of(text_of(json)))
    refuse(path, "is damaged: it has another checksum than it was written with");
  CheckpointMarker marker;
  marker.step = members.get<std::uint64_t>("step");
  marker.run_id = members.get<std::string>("run_id");
  marker.output_directory = members.get<std::string>("output_directory");
  marker.milestone = members.get<bool>("milestone");
  marker.with_memories = members.get<bool>("with_memories");
  marker.stages = static_cast<int>(members.get<std::uint16_t>("stages"));
  marker.replicas = static_cast<int>(members.get<std::uint16_t>("replicas"));
  if (json.contains("stages_per_rank"))  // others know of one
    marker.stages_per_rank = static_cast<int>(members.get<std::uint16_t>("stages_per_rank"));
  marker.partition = partition_of(members);
  marker.deltapipe_version = members.get<std::string>("deltapipe_version");
  marker.source_revision = members.get<std::string>("source_revision");
  marker.deck = members.get<std::string>("deck");
  marker.train_fingerprint = members.get_hash("train_fingerprint");
  marker.validation_fingerprint = members.get_hash("validation_fingerprint");
  marker.blocked_seconds = members.get<double>("blocked_seconds");
  marker.seconds = members.get<double>("seconds");
  marker.files = files_of(members);
  if (marker.stages < 1 || marker.replicas < 1 || marker.stages_per_rank < 1 ||
      marker.stages % marker.stages_per_rank != 0 ||
      marker.partition.size() != static_cast<std::size_t>(marker.stages))
    refuse(path, "has an invalid layout");
  if (fs::path(checkpoint).filename() != checkpoint_name(marker.step))
    refuse(path, "is of another step than the directory's name says", std::to_string(marker.step));
  return marker;
}

std::optional<CheckpointMarker> find_marker(const std::string& directory, std::uint64_t step) try {
  return read_marker(directory + "/" + checkpoint_name(step));
} catch (const UserError&) {
  return std::nullopt;
}

CheckpointFile secure_file(const std::string& directory, const std::string& name) {
  const std::string path = directory + "/" + name;
  const FileDescriptor file = open_regular(path);
  sync(file.get(), path);
  return describe(file, path, name);
}

namespace {

void check_size(const FileDescriptor& open, const std::string& path, const CheckpointFile& file) {
  struct stat status {};
  if (::fstat(open.get(), &status) != 0) throw_system_error("cannot be read", path, errno);
  if (static_cast<std::uint64_t>(status.st_size) != file.bytes)
    refuse(path, "has another size than it was written with",
           fmt::format("{} bytes, not {}", status.st_size, file.bytes));
}

}  // namespace

void check_file_size(const std::string& checkpoint, const CheckpointFile& file) {
  const std::string path = checkpoint + "/" + file.name;
  check_size(open_regular(path), path, file);
}

void check_file(const std::string& checkpoint, const CheckpointFile& file,
                const std::function<void()>& look) {
  const std::string path = checkpoint + "/" + file.name;
  const FileDescriptor open = open_regular(path);
  check_size(open, path, file);
  const CheckpointFile found = describe(open, path, file.name, look);
  if (found.hash != file.hash)
    refuse(path, "is damaged: it has another checksum than it was written with",
           hex_digits(found.hash) + ", not " + hex_digits(file.hash));
}

void complete_checkpoint(const std::string& directory, const std::string& unfinished,
                         const CheckpointMarker& marker) {
  Json files = Json::array();
  for (const CheckpointFile& file : marker.files)
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh3", hex_digits(file.hash)}});
  Json json = {{"format", kFormat},
               {"format_version", kFormatVersion},
               {"step", marker.step},
               {"run_id", marker.run_id},
               {"output_directory", marker.output_directory},
               {"milestone", marker.milestone},
               {"with_memories", marker.with_memories},
               {"stages", marker.stages},
               {"replicas", marker.replicas},
               {"stages_per_rank", marker.stages_per_rank},
               {"partition", marker.partition},
               {"deltapipe_version", marker.deltapipe_version},
               {"source_revision", marker.source_revision},
               {"deck", marker.deck},
               {"train_fingerprint", hex_digits(marker.train_fingerprint)},
               {"validation_fingerprint", hex_digits(marker.validation_fingerprint)},
               {"blocked_seconds", marker.blocked_seconds},
               {"seconds", marker.seconds},
               {"files", files}};
  // As it will be read: what is no UTF-8 is replaced in text_of().
  json = Json::parse(text_of(json));
  json[kChecksum] = hash_of(text_of(json));
  write_file_atomically(unfinished + "/" + kMarker, json.dump(1) + "\n");
  sync_directory(unfinished);
  const std::string target = directory + "/" + checkpoint_name(marker.step);
  (void)remove_checkpoint(directory, marker.step);  // if it stays, the new one cannot get its name
  if (::rename(unfinished.c_str(), target.c_str()) != 0)
    throw_system_error("a checkpoint cannot get its name", target, errno);
  sync_directory(directory);
}

std::string remove_checkpoint(const std::string& directory, std::uint64_t step) {
  std::string path = directory + "/" + checkpoint_name(step);
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) return {};
  // Half a checkpoint never has the name of one.
  std::string aside = temporary_name_in(directory);
  if (::rename(path.c_str(), aside.c_str()) != 0) return path;
  fs::remove_all(aside, error);
  return error ? aside : std::string();
}

}  // namespace deltapipe
