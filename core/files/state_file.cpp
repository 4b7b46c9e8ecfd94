// SPDX-License-Identifier: BSD-3-Clause
#include "core/files/state_file.hpp"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "core/base/error.hpp"

namespace deltapipe {

namespace {

constexpr const char* kKind = "deltapipe state";
constexpr const char* kWholeCopy = "read an undamaged copy or an earlier state";
constexpr int kFormatVersion = 1;
/// Rows go to and from the file in pieces of this size, or one by one if they are larger.
constexpr std::uint64_t kPieceBytes = 1 << 20;

hdf5::ElementType element_type(StateType type) {
  constexpr hdf5::ElementType kTypes[] = {hdf5::ElementType::u8,  hdf5::ElementType::i32,
                                          hdf5::ElementType::u32, hdf5::ElementType::i64,
                                          hdf5::ElementType::u64, hdf5::ElementType::f32,
                                          hdf5::ElementType::f64};
  return kTypes[static_cast<std::size_t>(type)];
}

std::optional<StateType> state_type(hdf5::ElementType type) {
  for (const StateType known : {StateType::u8, StateType::i32, StateType::u32, StateType::i64,
                                StateType::u64, StateType::f32, StateType::f64})
    if (element_type(known) == type) return known;
  return std::nullopt;
}

std::uint64_t bytes_of_row(const StateItem& item) {
  return item.shape[0] == 0 ? 0 : item.bytes() / item.shape[0];
}

}  // namespace

/// Computes XXH3 of bytes that arrive in pieces.
class StateChecksum {
 public:
  StateChecksum() : state_(XXH3_createState()) {
    if (state_ == nullptr) throw std::bad_alloc();
    reset();
  }
  ~StateChecksum() { XXH3_freeState(state_); }
  StateChecksum(const StateChecksum&) = delete;
  StateChecksum& operator=(const StateChecksum&) = delete;

  void reset() { XXH3_64bits_reset(state_); }
  void add(const void* bytes, std::uint64_t count) { XXH3_64bits_update(state_, bytes, count); }
  std::uint64_t value() const { return XXH3_64bits_digest(state_); }

 private:
  XXH3_state_t* state_;
};

StateFileWriter::StateFileWriter(const std::string& path)
    : file_(hdf5::File::create(path, {.checksummed = true})),
      checksum_(std::make_unique<StateChecksum>()) {
  file_.write_fixed_attribute("kind", kKind);
  file_.write_attribute("format_version", kFormatVersion);
}

StateFileWriter::~StateFileWriter() = default;

void StateFileWriter::close() {
  file_.write_attribute("complete", 1);
  file_.close();
}

void StateFileWriter::open_part(const std::string& name) {
  part_.emplace(file_.create_group(name));
}

void StateFileWriter::close_part() {
  part_.reset();
}

void StateFileWriter::open_item(const StateItem& item) {
  item_ = item;
  dataset_.emplace(part_->create_dataset(item.name, element_type(item.type), item.shape,
                                         {.chunk = {}, .fill = false}));
  row_bytes_ = bytes_of_row(item);
  rows_written_ = 0;
  buffer_.clear();
  checksum_->reset();
}

void StateFileWriter::write(const void* elements, std::uint64_t bytes) {
  const auto* from = static_cast<const std::uint8_t*>(elements);
  checksum_->add(from, bytes);
  const std::uint64_t room = std::max(row_bytes_, kPieceBytes);
  // Whole rows need no buffer.
  while (buffer_.empty() && bytes >= room) {
    const std::uint64_t rows = room / row_bytes_;
    dataset_->write_elements(rows_written_, rows, element_type(item_.type), from);
    rows_written_ += rows;
    from += rows * row_bytes_;
    bytes -= rows * row_bytes_;
  }
  while (bytes > 0) {
    const std::uint64_t count = std::min(bytes, room + row_bytes_ - buffer_.size());
    buffer_.insert(buffer_.end(), from, from + count);
    from += count;
    bytes -= count;
    if (buffer_.size() >= room) write_whole_rows();
  }
}

void StateFileWriter::write_whole_rows() {
  const std::uint64_t rows = buffer_.size() / row_bytes_;
  if (rows == 0) return;
  dataset_->write_elements(rows_written_, rows, element_type(item_.type), buffer_.data());
  rows_written_ += rows;
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(rows * row_bytes_));
}

void StateFileWriter::close_item() {
  if (!buffer_.empty()) write_whole_rows();
  dataset_->write_attribute("checksum", checksum_->value());
  dataset_.reset();
}

StateFileReader::StateFileReader(const std::string& path)
    : file_(hdf5::File::open_read_only(path)), checksum_(std::make_unique<StateChecksum>()) {
  const auto refuse_file = [&](const std::string& wrong) {
    throw UserError(
        {.what = wrong, .file = path, .remedy = "name a file that a run has completed"});
  };
  if (file_.find_plain_attribute("kind") != kKind) refuse_file("is not the state of a run");
  if (file_.find_plain_attribute("format_version") != std::to_string(kFormatVersion))
    refuse_file("is the state of another version of the program");
  if (file_.find_plain_attribute("complete") != "1")
    refuse_file("is an incomplete state: its run ended while it was written");
}

StateFileReader::~StateFileReader() = default;

std::vector<std::string> StateFileReader::part_names() {
  return file_.names();
}

void StateFileReader::open_part(const std::string& name) {
  part_.emplace(file_.open_group(name));
}

void StateFileReader::close_part() {
  part_.reset();
}

std::vector<std::string> StateFileReader::item_names() {
  return part_->names();
}

StateItem StateFileReader::item(const std::string& name) {
  const hdf5::Dataset dataset = part_->open_dataset(name);
  const std::optional<StateType> type = state_type(dataset.element_type());
  if (!type) refuse(name, "has a type that no state uses", "");
  return {name, *type, dataset.shape()};
}

void StateFileReader::open_item(const StateItem& item) {
  item_ = item;
  dataset_.emplace(part_->open_dataset(item.name));
  if (item.bytes() > 0) dataset_->expect_stored();
  row_bytes_ = bytes_of_row(item);
  rows_read_ = 0;
  buffer_.clear();
  taken_ = 0;
  checksum_->reset();
}

void StateFileReader::read_rows() {
  const std::uint64_t rows =
      std::min(item_.shape[0] - rows_read_, std::max<std::uint64_t>(1, kPieceBytes / row_bytes_));
  buffer_.resize(rows * row_bytes_);
  dataset_->read_elements(rows_read_, rows, element_type(item_.type), buffer_.data());
  checksum_->add(buffer_.data(), buffer_.size());
  rows_read_ += rows;
  taken_ = 0;
}

void StateFileReader::read(void* elements, std::uint64_t bytes) {
  auto* to = static_cast<std::uint8_t*>(elements);
  while (bytes > 0) {
    if (taken_ == buffer_.size()) read_rows();
    const std::uint64_t count = std::min<std::uint64_t>(bytes, buffer_.size() - taken_);
    std::memcpy(to, buffer_.data() + taken_, count);
    to += count;
    taken_ += count;
    bytes -= count;
  }
}

void StateFileReader::close_item() {
  if (dataset_->find_plain_attribute("checksum") != std::to_string(checksum_->value()))
    refuse(item_.name, "is damaged", "another checksum than it was written with", kWholeCopy);
  dataset_.reset();
}

}  // namespace deltapipe
