// SPDX-License-Identifier: BSD-3-Clause
#include "core/data/image_directory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <exception>
#include <filesystem>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>

#include "core/base/error.hpp"
#include "core/base/number_text.hpp"
#include "core/base/observe/machine_memory.hpp"
#include "core/base/parallel/helper_thread.hpp"
#include "core/base/parallel/host_team.hpp"
#include "core/base/printable.hpp"
#include "core/base/utf8.hpp"
#include "core/data/image_resize.hpp"
#include "core/data/text_lines.hpp"

namespace deltapipe {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostClasses = std::numeric_limits<std::int16_t>::max();
constexpr const char* kLayout = "give each class a sub-directory with its PNG and JPEG files";

std::string suffix_of(const fs::path& path) {
  std::string suffix = path.extension().string();
  for (char& c : suffix)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return suffix;
}

bool is_one_of(const std::string& suffix, std::initializer_list<const char*> suffixes) {
  return std::ranges::find(suffixes, suffix) != suffixes.end();
}

struct Entries {
  std::vector<std::string> directories, files;  ///< names, sorted
};

/// Returns what is in a directory; links count as what they lead to.
Entries entries_of(const fs::path& directory) {
  Entries entries;
  std::error_code error, ignored;
  fs::directory_iterator entry(directory, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error))
    (entry->is_directory(ignored) ? entries.directories : entries.files)
        .push_back(entry->path().filename().string());
  if (error)
    refuse_line(directory.string(), "the directory cannot be read", error.message(),
                "check the directory's name and permissions");
  std::ranges::sort(entries.directories);
  std::ranges::sort(entries.files);
  return entries;
}

class Lister {
 public:
  explicit Lister(ImageList& list) : list_(list) {}

  void ignore(const std::string& path) {
    if (list_.ignored++ == 0) list_.first_ignored = path;
  }

  /// Adds a file if it is an image. `name`: its path without the directory of the data.
  void take(const fs::path& path, const fs::path& name, std::int16_t label) {
    const std::string suffix = suffix_of(path);
    const bool hidden = path.filename().string().starts_with('.');  // such as ._a.png of macOS
    if (!hidden && is_one_of(suffix, {".png", ".jpg", ".jpeg"})) {
      list_.files.push_back(path.string());
      list_.names.push_back(name.string());
      list_.label_N.push_back(label);
      return;
    }
    if (!hidden && is_one_of(suffix, {".apng", ".avif", ".bmp", ".gif", ".heic", ".heif", ".jp2",
                                      ".jpe", ".jxl", ".pgm", ".ppm", ".tif", ".tiff", ".webp"}))
      refuse_line(path.string(), "images of this kind are not read", suffix,
                  "convert it to PNG or JPEG, or remove it");
    ignore(path.string());
  }

  /// Adds the images of a class.
  void take_all(const fs::path& directory, const fs::path& name, std::int16_t label) {
    // Links may lead to a directory above.
    constexpr std::size_t kMostDepth = 16;
    std::error_code error;
    const fs::path real = fs::canonical(directory, error);
    if (std::ranges::find(above_, real) != above_.end() || above_.size() >= kMostDepth)
      refuse_line(directory.string(), "directories of images are nested too deeply", "",
                  "remove links to directories above");
    above_.push_back(real);
    const Entries entries = entries_of(directory);
    for (const std::string& file : entries.files) take(directory / file, name / file, label);
    for (const std::string& inner : entries.directories) {
      if (inner.starts_with('.'))
        ignore((directory / inner).string());
      else
        take_all(directory / inner, name / inner, label);
    }
    above_.pop_back();
  }

 private:
  ImageList& list_;
  std::vector<fs::path> above_;
};

bool is_class(const std::string& directory) {
  return !directory.starts_with('.');
}

/// Labels have 16 bits.
void require_countable(const std::string& directory, std::size_t classes) {
  if (classes > kMostClasses)
    refuse_line(directory, "there are too many classes", std::to_string(classes),
                fmt::format("use at most {}", kMostClasses));
}

std::int16_t class_of(const std::string& directory, const std::string& name,
                      const std::vector<std::string>& classes) {
  if (classes.empty()) return -1;
  const auto named = std::ranges::find(classes, name);
  if (named != classes.end()) return static_cast<std::int16_t>(named - classes.begin());
  // Names that are numbers are not positions.
  const bool are_numbers = std::ranges::any_of(
      classes, [](const std::string& c) { return whole_number(c).has_value(); });
  const std::optional<std::int64_t> number = whole_number(name);
  if (number && !are_numbers && *number >= 0 && *number < static_cast<std::int64_t>(classes.size()))
    return static_cast<std::int16_t>(*number);
  refuse_line(directory,
              fmt::format("the sub-directory is not one of the model's {} classes", classes.size()),
              printable(name, 60),
              "use names such as " + printable(classes.front(), 60) +
                  ", or a model of the directory's classes");
}

void list_directory(const std::string& directory, const std::vector<std::string>& classes,
                    bool labels_optional, ImageList& list) {
  Lister lister(list);
  const Entries entries = entries_of(directory);
  const bool flat = std::ranges::none_of(entries.directories, is_class);
  if (flat && !labels_optional) refuse_line(directory, "the directory has no classes", "", kLayout);
  const std::size_t before = list.size();
  if (flat) {
    for (const std::string& file : entries.files) lister.take(fs::path(directory) / file, file, -1);
    if (list.size() == before)
      refuse_line(directory, "the directory has no images", "",
                  "give it files with the suffix .png, .jpg or .jpeg");
    return;
  }
  // Beside classes there are lists and descriptions.
  for (const std::string& file : entries.files)
    lister.ignore((fs::path(directory) / file).string());
  for (const std::string& name : entries.directories) {
    const fs::path path = fs::path(directory) / name;
    if (!is_class(name)) {
      lister.ignore(path.string());
      continue;
    }
    const std::size_t first = list.size();
    lister.take_all(path, name, class_of(directory, name, classes));
    if (list.size() == first)
      refuse_line(path.string(), "the directory of a class has no images", "",
                  "give it files with the suffix .png, .jpg or .jpeg, or remove it");
  }
}

int threads_to_read() {
  constexpr int kMostThreads = 64;
  const double quota = cpu_quota();
  const int cores = process_core_count();
  const int asked = threads_of_environment();
  const int share = quota > 0 ? std::min(cores, static_cast<int>(std::ceil(quota))) : cores;
  return std::clamp(asked > 0 ? asked : share, 1, kMostThreads);
}

/// Calls work(i) for all i in [0, count), on several threads. Rethrows the exception of the lowest
/// i.
template <class Work>
void for_all(std::size_t count, const Work& work) {
  std::atomic<std::size_t> next = 0, end = count;
  std::mutex mutex;
  std::exception_ptr problem;
  const auto run = [&] {
    for (std::size_t i = next++; i < end; i = next++) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (i < end) problem = std::current_exception();
        end = std::min<std::size_t>(end, i);
      }
    }
  };
  std::vector<std::thread> threads;
  try {
    const std::size_t wanted = std::min<std::size_t>(threads_to_read(), count);
    for (std::size_t i = 1; i < wanted; ++i)
      threads.push_back(start_helper_thread("reading images", run));
  } catch (const UserError&) {
    // The system cannot start more threads; fewer suffice.
  }
  run();
  for (std::thread& thread : threads) thread.join();
  if (problem) std::rethrow_exception(problem);
}

void require_memory(std::uint64_t images, const ImageShape& shape) {
  const std::uint64_t bytes = images * shape.values(), available = machine_memory().available;
  if (available == 0 || bytes <= available) return;
  throw UserError({.what = "the images do not fit into the memory that is available",
                   .value = fmt::format("{} of {}: {} MiB of {}", images, text_of(shape),
                                        bytes >> 20, available >> 20),
                   .remedy = "set data.max_train_samples and data.max_validation_samples, or a "
                             "smaller data.images.size",
                   .keys = {"data.max_train_samples", "data.images.size"}});
}

}  // namespace

std::vector<std::string> directory_classes(const std::string& directory) {
  std::vector<std::string> classes = entries_of(directory).directories;
  std::erase_if(classes, [](const std::string& name) { return !is_class(name); });
  if (classes.empty()) refuse_line(directory, "the directory has no classes", "", kLayout);
  require_countable(directory, classes.size());
  for (const std::string& name : classes)
    if (first_invalid_utf8(name) < name.size())
      refuse_line(directory, "the name of a class is not UTF-8", printable(name, 60),
                  "rename the sub-directory");
  return classes;
}

ImageList list_image_directories(const std::vector<std::string>& directories,
                                 const std::vector<std::string>& classes, bool labels_optional) {
  ImageList list;
  require_countable(directories.front(), classes.size());
  for (const std::string& directory : directories) {
    const std::size_t first = list.size();
    list_directory(directory, classes, labels_optional, list);
    for (std::size_t i = first; i < list.size(); ++i) {
      std::string& name = list.names[i];
      if (directories.size() > 1) name = (fs::path(directory) / name).string();
      name = printable(name);
    }
  }
  if (list.size() > std::numeric_limits<std::uint32_t>::max())
    refuse_line(directories.front(), "there are too many images", std::to_string(list.size()),
                "use fewer than 2^32");
  return list;
}

ImageShape common_size(const ImageList& list) {
  std::vector<ImageHeader> headers(list.size());
  for_all(list.size(), [&](std::size_t i) { headers[i] = read_image_header(list.files[i]); });
  const auto size_of = [](const ImageHeader& header) {
    return fmt::format("{} x {}", header.height, header.width);
  };
  const ImageHeader& first = headers.front();
  for (std::size_t i = 1; i < headers.size(); ++i)
    if (headers[i].height != first.height || headers[i].width != first.width)
      throw UserError({.what = "the images differ in size from " + list.files.front() +
                               ", and neither the model nor the deck names a size",
                       .file = list.files[i],
                       .value = size_of(headers[i]) + " and " + size_of(first),
                       .remedy = "set data.images.size, such as data.images.size = 224",
                       .keys = {"data.images.size"}});
  return {first.height, first.width, 3};
}

LabelledImages read_listed_images(const ImageList& list, std::span<const std::uint32_t> index,
                                  const ImageShape& shape, ImageFit fit) {
  if (shape.channels != 1 && shape.channels != 3)
    throw UserError({.what = "images of directories have 1 or 3 channels",
                     .value = text_of(shape),
                     .remedy = "use a model with num_channels 1 or 3",
                     .keys = {"model.path"}});
  require_memory(index.size(), shape);
  LabelledImages all;
  all.format = DataFormat::directory;
  all.shape = shape;
  all.pixels_NHWC.resize(index.size() * shape.values());
  for (const std::uint32_t i : index) {
    all.label_N.push_back(list.label_N[i]);
    all.name_N.push_back(list.names[i]);
  }
  for_all(index.size(), [&](std::size_t i) {
    const Image image = read_image(list.files[index[i]], shape.channels);
    const ResizePlan plan = plan_resize(image.shape.height, image.shape.width, shape, fit);
    const Image small = resized(image, plan, shape.height, shape.width);
    std::ranges::copy(small.pixels_HWC,
                      all.pixels_NHWC.begin() + static_cast<std::ptrdiff_t>(i * shape.values()));
  });
  return all;
}

}  // namespace deltapipe
