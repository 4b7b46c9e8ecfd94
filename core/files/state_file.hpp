// SPDX-License-Identifier: BSD-3-Clause
// State as an HDF5 file: a group per part, a dataset per item with its XXH3 checksum (64 bits), and
// root attributes `kind`, `format_version` and, last, `complete`. Text is stored as bytes. Reading
// compares content with its checksum. To replace a file, write another one and rename it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/state/state.hpp"
#include "core/files/hdf5.hpp"

namespace deltapipe {

class StateChecksum;

class StateFileWriter final : public StateWriter {
 public:
  /// Replaces an existing file. This and all other functions throw the UserErrors of hdf5::File.
  explicit StateFileWriter(const std::string& path);
  ~StateFileWriter() override;
  /// Must be called after the last part; only then is the file a complete state.
  void close();

 protected:
  void open_part(const std::string& name) override;
  void close_part() override;
  void open_item(const StateItem& item) override;
  void write(const void* elements, std::uint64_t bytes) override;
  void close_item() override;

 private:
  void write_whole_rows();

  hdf5::File file_;
  std::optional<hdf5::Group> part_;
  std::optional<hdf5::Dataset> dataset_;
  StateItem item_;
  std::uint64_t row_bytes_ = 0, rows_written_ = 0;
  std::vector<std::uint8_t> buffer_;  ///< bytes that are not written yet
  std::unique_ptr<StateChecksum> checksum_;
};

class StateFileReader final : public StateReader {
 public:
  /// UserError if the file is missing, not HDF5, not a state, or was never completed.
  explicit StateFileReader(const std::string& path);
  ~StateFileReader() override;

  std::vector<std::string> part_names() override;

 protected:
  std::string file_name() const override { return file_.file_name(); }
  void open_part(const std::string& name) override;
  void close_part() override;
  std::vector<std::string> item_names() override;
  StateItem item(const std::string& name) override;
  void open_item(const StateItem& item) override;
  void read(void* elements, std::uint64_t bytes) override;
  void close_item() override;

 private:
  void read_rows();

  hdf5::File file_;
  std::optional<hdf5::Group> part_;
  std::optional<hdf5::Dataset> dataset_;
  StateItem item_;
  std::uint64_t row_bytes_ = 0, rows_read_ = 0;
  std::vector<std::uint8_t> buffer_;
  std::size_t taken_ = 0;  ///< bytes of the buffer that were read
  std::unique_ptr<StateChecksum> checksum_;
};

}  // namespace deltapipe
