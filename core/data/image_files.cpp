// SPDX-License-Identifier: BSD-3-Clause
#include "core/data/image_files.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <span>
#include <string_view>

#include "core/base/error.hpp"
#include "core/data/text_lines.hpp"
#include "core/files/input_file.hpp"

namespace deltapipe {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kIdxImages = 0x803, kIdxLabels = 0x801;  // unsigned bytes; 3 dimensions, 1
constexpr std::string_view kImagesName = "images-idx3", kLabelsName = "labels-idx1";
constexpr ImageShape kCifarShape = {32, 32, 3};
constexpr std::uint64_t kCifarPixels = 3072;
constexpr std::uint32_t kMostSide = 1 << 14;
constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 30;
/// Deflate's largest ratio, which zlib's documentation gives as 1032:1.
constexpr std::uint64_t kDeflateRatio = 1032;
constexpr const char* kDownload = "download the file again";

/// The bytes of a file, which may be compressed by gzip.
class ByteStream {
 public:
  explicit ByteStream(const std::string& path)
      : path_(path), file_size_(ReadOnlyFile(path).size()) {
    stream_ = gzopen(path.c_str(), "rb");
    if (stream_ == nullptr)
      refuse_line(path, "cannot be opened", "", "check the file's permissions");
    (void)gzbuffer(stream_, 1 << 20);
  }
  ~ByteStream() { (void)gzclose(stream_); }
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;

  /// Fills all of `bytes`.
  void read(std::span<std::uint8_t> bytes) {
    constexpr std::size_t kPiece = std::size_t{1} << 30;
    for (std::size_t done = 0; done < bytes.size();) {
      const std::size_t piece = std::min(kPiece, bytes.size() - done);
      const int got = gzread(stream_, bytes.data() + done, static_cast<unsigned>(piece));
      if (got < 0) refuse_line(path_, "is damaged", message(), kDownload);
      if (got == 0)
        refuse_line(path_, "ends before the images and labels that it announces", "", kDownload);
      done += static_cast<std::size_t>(got);
    }
  }
  void expect_end() {
    std::uint8_t more = 0;
    const int got = gzread(stream_, &more, 1);
    if (got > 0)
      refuse_line(path_, "has more bytes than the images or labels that it announces", "",
                  kDownload);
    int error = Z_OK;
    const std::string text = gzerror(stream_, &error);
    if (error != Z_OK) refuse_line(path_, "is damaged at its end", text, kDownload);
  }
  /// Refuses sizes that the file cannot hold before memory is allocated for them.
  void expect_room(std::uint64_t bytes) const {
    const std::uint64_t ratio = gzdirect(stream_) != 0 ? 1 : kDeflateRatio;
    if (bytes > kMostBytes || bytes > ratio * (file_size_ + 1))
      refuse_line(path_, "announces more bytes than it can hold", std::to_string(bytes), kDownload);
  }
  std::uint32_t big_endian() {
    std::array<std::uint8_t, 4> b{};
    read(b);
    return std::uint32_t{b[0]} << 24 | std::uint32_t{b[1]} << 16 | std::uint32_t{b[2]} << 8 | b[3];
  }

 private:
  std::string message() const {
    int error = 0;
    return gzerror(stream_, &error);
  }

  std::string path_;
  std::uint64_t file_size_;
  gzFile stream_ = nullptr;
};

DataFormat format_of(const std::string& file, DataFormat asked) {
  if (asked != DataFormat::automatic) return asked;
  const std::string name = fs::path(file).filename().string();
  if (name.find("-idx") != std::string::npos) return DataFormat::idx;
  if (name.ends_with(".bin")) {
    const std::uint64_t size = ReadOnlyFile(file).size();
    if (size > 0 && size % (1 + kCifarPixels) == 0) return DataFormat::cifar10;
    if (size > 0 && size % (2 + kCifarPixels) == 0) return DataFormat::cifar100;
    refuse_line(file, "the file size matches neither CIFAR-10 nor CIFAR-100",
                fmt::format("{} bytes", size), kDownload);
  }
  refuse_line(file, "the name of the data file does not identify its format", name,
              "set data.format to idx, cifar10 or cifar100, or name a directory of PNG and JPEG "
              "files");
}

struct IdxHeader {
  ImageShape shape;
  std::uint64_t images;
};

IdxHeader read_idx_header(const std::string& file, ByteStream& stream) {
  const std::uint32_t magic = stream.big_endian();
  if (magic != kIdxImages)
    refuse_line(file, "this is not an IDX file of images with 8 bits a pixel",
                fmt::format("magic number {}", magic), "name the file of images in data.train");
  const std::uint64_t images = stream.big_endian();
  const std::uint32_t height = stream.big_endian(), width = stream.big_endian();
  if (images == 0 || height == 0 || width == 0 || height > kMostSide || width > kMostSide)
    refuse_line(file, "the header has sizes that cannot be used",
                fmt::format("{} x {} x {}", images, height, width), kDownload);
  stream.expect_room(images * height * width);
  return {{static_cast<int>(height), static_cast<int>(width), 1}, images};
}

/// Returns the path of an IDX file's labels, which may be missing.
std::string labels_file(const std::string& file) {
  const fs::path path(file);
  std::string name = path.filename().string();
  const std::size_t place = name.find(kImagesName);
  if (place == std::string::npos)
    refuse_line(file, "the file's name does not tell where its labels are", name,
                "name IDX files ...images-idx3-ubyte, with ...labels-idx1-ubyte next to them");
  name.replace(place, kImagesName.size(), kLabelsName);
  const fs::path labels = path.parent_path() / name;
  std::error_code ignored;
  if (fs::exists(labels, ignored)) return labels.string();
  // One of the two may be compressed.
  const fs::path other = name.ends_with(".gz")
                             ? path.parent_path() / name.substr(0, name.size() - 3)
                             : path.parent_path() / (name + ".gz");
  return fs::exists(other, ignored) ? other.string() : labels.string();
}

bool has_labels(const std::string& images_file) {
  std::error_code ignored;
  const bool is_named =
      fs::path(images_file).filename().string().find(kImagesName) != std::string::npos;
  return is_named && fs::exists(labels_file(images_file), ignored);
}

/// Reads the labels of a file of images.
std::vector<std::uint8_t> read_idx_labels(const std::string& images_file, std::uint64_t images) {
  const std::string file = labels_file(images_file);
  std::error_code ignored;
  if (!fs::exists(file, ignored))
    refuse_line(images_file, "the file of the labels is missing", file, "put it there");
  ByteStream stream(file);
  if (const std::uint32_t magic = stream.big_endian(); magic != kIdxLabels)
    refuse_line(file, "this is not an IDX file of labels", fmt::format("magic number {}", magic),
                kDownload);
  if (const std::uint64_t count = stream.big_endian(); count != images)
    refuse_line(file, "images and labels differ in number", fmt::format("{} and {}", images, count),
                "use the labels that belong to the images");
  std::vector<std::uint8_t> labels(images);
  stream.read(labels);
  stream.expect_end();
  return labels;
}

void add_idx(const std::string& file, bool labelled, LabelledImages& all) {
  ByteStream stream(file);
  const IdxHeader header = read_idx_header(file, stream);
  const std::size_t first = all.pixels_NHWC.size();
  all.pixels_NHWC.resize(first + header.images * header.shape.values());
  stream.read(std::span(all.pixels_NHWC).subspan(first));
  stream.expect_end();
  if (!labelled) {
    all.label_N.resize(all.label_N.size() + header.images, -1);
    return;
  }
  const std::vector<std::uint8_t> labels = read_idx_labels(file, header.images);
  all.label_N.insert(all.label_N.end(), labels.begin(), labels.end());
}

std::uint64_t cifar_record(DataFormat format) {
  DELTAPIPE_ASSERT(classes_of(format) > 0, name_of(format));
  return (format == DataFormat::cifar10 ? 1 : 2) + kCifarPixels;
}

std::uint64_t cifar_images(const std::string& file, DataFormat format) {
  const std::uint64_t size = ReadOnlyFile(file).size(), record = cifar_record(format);
  if (size == 0 || size % record != 0)
    refuse_line(file, "the file size is not a multiple of the record size",
                fmt::format("{} bytes, {} a record", size, record), kDownload);
  return size / record;
}

void add_cifar(const std::string& file, DataFormat format, LabelledImages& all) {
  const std::uint64_t images = cifar_images(file, format), record = cifar_record(format);
  const int classes = classes_of(format);
  const ReadOnlyFile input(file);
  std::vector<std::uint8_t> bytes(record);
  all.pixels_NHWC.reserve(all.pixels_NHWC.size() + images * kCifarPixels);
  for (std::uint64_t i = 0; i < images; ++i) {
    input.read_at(i * record, std::as_writable_bytes(std::span(bytes)));
    const std::uint8_t label = bytes[record - kCifarPixels - 1];
    if (label >= classes)
      refuse_line(file, fmt::format("image {} has a label outside the classes", i),
                  std::to_string(label),
                  "set data.format to cifar10 or cifar100, or download the file again");
    all.label_N.push_back(label);
    const std::uint8_t* const planes = bytes.data() + record - kCifarPixels;  // [C, H, W]
    for (std::size_t place = 0; place < kCifarPixels / 3; ++place)
      for (std::size_t c = 0; c < 3; ++c)
        all.pixels_NHWC.push_back(planes[c * (kCifarPixels / 3) + place]);
  }
}

}  // namespace

ImageFileInfo image_file_info(const std::string& file, DataFormat format) {
  const DataFormat known = format_of(file, format);
  if (known != DataFormat::idx) return {kCifarShape, cifar_images(file, known), known};
  ByteStream stream(file);
  const IdxHeader header = read_idx_header(file, stream);
  return {header.shape, header.images, known};
}

int image_file_classes(const std::string& file, const ImageFileInfo& info) {
  if (info.format != DataFormat::idx) return classes_of(info.format);
  return std::ranges::max(read_idx_labels(file, info.images)) + 1;
}

LabelledImages read_image_files(const std::vector<std::string>& files, DataFormat format,
                                bool labels_optional) {
  LabelledImages all;
  for (const std::string& file : files) {
    const ImageFileInfo info = image_file_info(file, format);
    if (all.size() > 0 && info.shape != all.shape)
      refuse_line(file, "the images differ in size from those of " + files.front(),
                  text_of(info.shape) + " and " + text_of(all.shape),
                  "use files with images of one size");
    if (all.size() > 0 && info.format != all.format)
      refuse_line(file, "the file has another format than " + files.front(),
                  fmt::format("{} and {}", name_of(info.format), name_of(all.format)),
                  "use files of one format, which have the same classes");
    all.shape = info.shape;
    all.format = info.format;
    if (info.format == DataFormat::idx) {
      add_idx(file, !labels_optional || has_labels(file), all);
    } else {
      add_cifar(file, info.format, all);
    }
  }
  return all;
}

}  // namespace deltapipe
