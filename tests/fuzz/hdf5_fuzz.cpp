// SPDX-License-Identifier: BSD-3-Clause
// HDF5 files of tokens. The file's own structure is left to the HDF5 library, which in version 1.10
// does not survive damaged files; what is made up is all that a sound file can say: datasets of any
// rank, extent, type, layout and filter, written or not, groups and links in their place, damaged
// elements.
#include <fuzzer/FuzzedDataProvider.h>
#include <hdf5.h>

#include <algorithm>

#include "core/data/corpus.hpp"
#include "core/files/hdf5.hpp"
#include "support.hpp"

using namespace deltapipe;

namespace {

struct Ignore : TokenSink {
  std::uint64_t tokens = 0;
  void append(std::span<const std::int32_t> ids) override { tokens += ids.size(); }
  void end_document() override {}
};

const Tokenizer& tokenizer() {
  static const auto loaded = Tokenizer::load(DELTAPIPE_FIXTURES "/tokenizer");
  return *loaded;
}

hsize_t extent_from(FuzzedDataProvider& input) {
  return input.ConsumeBool() ? input.ConsumeIntegralInRange<hsize_t>(0, 300)
                             : input.ConsumeIntegralInRange<hsize_t>(0, hsize_t{1} << 45);
}

/// The elements that a small written dataset has.
std::vector<std::int64_t> elements_from(FuzzedDataProvider& input, std::size_t count) {
  std::vector<std::int64_t> values(count);
  for (std::int64_t& value : values) {
    value = input.ConsumeBool() ? input.ConsumeIntegralInRange<std::int64_t>(0, 3000)
                                : input.ConsumeIntegral<std::int64_t>();
  }
  return values;
}

void make_dataset(FuzzedDataProvider& input, hid_t file, const char* name) {
  static const std::vector<hid_t> types = {H5T_STD_I8LE,   H5T_STD_U16LE,   H5T_STD_I32LE,
                                           H5T_STD_I64LE,  H5T_STD_U64LE,   H5T_STD_I64BE,
                                           H5T_IEEE_F32LE, H5T_STD_REF_OBJ, H5T_C_S1};
  const int rank = input.ConsumeBool() ? 1 : input.ConsumeIntegralInRange(0, 32);
  std::vector<hsize_t> extent(static_cast<std::size_t>(rank)), chunk;
  for (hsize_t& size : extent) size = extent_from(input);
  const hid_t type = input.PickValueInArray({0, 1, 2, 3, 4, 5, 6, 7, 8});
  const hdf5::Handle space(
      rank == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(rank, extent.data(), extent.data()),
      H5Sclose);
  if (!space.is_open()) return;
  const hdf5::Handle options(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  if (input.ConsumeBool()) {
    for (const hsize_t size : extent) {
      chunk.push_back(input.ConsumeIntegralInRange<hsize_t>(1, std::max<hsize_t>(size, 1)));
    }
    if (rank > 0) H5Pset_chunk(options.get(), rank, chunk.data());
    if (input.ConsumeBool()) H5Pset_deflate(options.get(), 1);
    if (input.ConsumeBool()) H5Pset_shuffle(options.get());
    if (input.ConsumeBool()) H5Pset_fletcher32(options.get());
  } else if (input.ConsumeBool()) {
    H5Pset_layout(options.get(), H5D_COMPACT);
  } else if (input.ConsumeBool()) {
    // Elements are written to it.
    H5Pset_external(options.get(), (fuzz::scratch() / "elements").c_str(), 0, H5F_UNLIMITED);
  } else if (input.ConsumeBool() && rank > 0) {
    H5Pset_virtual(options.get(), space.get(), "other.h5", "tokens", space.get());
  }
  const hdf5::Handle dataset(H5Dcreate2(file, name, types[static_cast<std::size_t>(type)],
                                        space.get(), H5P_DEFAULT, options.get(), H5P_DEFAULT),
                             H5Dclose);
  std::uint64_t count = 1;
  for (const hsize_t size : extent)
    count = size > 300 ? 301 : std::min<std::uint64_t>(301, count * size);
  std::uint64_t chunk_count = 1;
  for (const hsize_t size : chunk)
    chunk_count = std::min<std::uint64_t>(1 << 20, chunk_count * size);
  if (!dataset.is_open() || count > 300 || chunk_count >= 1 << 20 || input.ConsumeBool()) return;
  if (type > 5) return;
  const std::vector<std::int64_t> values = elements_from(input, count);
  H5Dwrite(dataset.get(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
}

void make_object(FuzzedDataProvider& input, hid_t file, const char* name) {
  switch (input.ConsumeIntegralInRange(0, 9)) {
    case 0:
      H5Lcreate_soft("/x", file, name, H5P_DEFAULT, H5P_DEFAULT);
      return;
    case 1:
      H5Lcreate_soft(name, file, name, H5P_DEFAULT, H5P_DEFAULT);
      return;
    case 2:
      H5Lcreate_external("other.h5", "/", file, name, H5P_DEFAULT, H5P_DEFAULT);
      return;
    case 3:
      H5Gclose(H5Gcreate2(file, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
      return;
    case 4:
      return;
    default:
      make_dataset(input, file, name);
  }
}

/// Attributes of a token file's origin, in any type and number.
void make_attribute(FuzzedDataProvider& input, hid_t file, const char* name) {
  static const std::vector<hid_t> types = {H5T_STD_I8LE,   H5T_STD_I64LE, H5T_STD_U64BE,
                                           H5T_IEEE_F64LE, H5T_C_S1,      H5T_STD_REF_OBJ};
  const hdf5::Handle type(H5Tcopy(types[input.ConsumeIntegralInRange<std::size_t>(0, 5)]),
                          H5Tclose);
  if (H5Tget_class(type.get()) == H5T_STRING) {
    H5Tset_size(type.get(), input.ConsumeIntegralInRange<std::size_t>(1, 100));
  }
  const hsize_t count = input.ConsumeIntegralInRange<hsize_t>(0, 3);
  const hdf5::Handle space(
      input.ConsumeBool() ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, &count, nullptr), H5Sclose);
  const hdf5::Handle attribute(
      H5Acreate2(file, name, type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  if (!attribute.is_open()) return;
  std::vector<std::uint8_t> bytes(512);
  for (std::size_t i = 0; i < bytes.size() && input.remaining_bytes() > 0; i += 1 + i) {
    bytes[i] = input.ConsumeIntegral<std::uint8_t>();
  }
  H5Awrite(attribute.get(), type.get(), bytes.data());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  const std::string path = (fuzz::scratch() / "a.h5").string();
  {
    const hdf5::Lock lock;
    const hdf5::Handle file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT),
                            H5Fclose);
    make_object(input, file.get(), "tokens");
    make_object(input, file.get(), "document_offsets");
    for (const char* name : {"vocabulary_size", "end_of_text", "tokenizer"}) {
      if (input.ConsumeBool()) make_attribute(input, file.get(), name);
    }
  }
  Ignore sink;
  fuzz::takes([&] { read_tokens(path, {}, tokenizer(), sink); });
  // No more than was written or, in a compact dataset, lies in the file as fill values.
  fuzz::expect(sink.tokens <= std::max<std::uintmax_t>(300, std::filesystem::file_size(path)));
  return 0;
}
