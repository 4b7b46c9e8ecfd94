// SPDX-License-Identifier: BSD-3-Clause
// Files of a Hugging Face directory that training does not change.
#pragma once

#include <string>
#include <vector>

#include "app/deck/settings.hpp"
#include "core/base/image_shape.hpp"

namespace deltapipe {

struct KeptFile {
  std::string name;  ///< in the directory of the trained model
  std::string bytes;
};

/// The files that the trained model's directory gets unchanged: those of the tokenizer, unless the
/// run trains it, and of model.path all others but weights, hidden files, subdirectories and states
/// of trainings. Links are followed. Files above 16 MiB are left out with a warning. Throws
/// UserError for a file that cannot be read. For decks of images, preprocessor_config.json is that
/// of the deck and of the model's images.
std::vector<KeptFile> read_kept_files(const Settings& settings, const ImageShape& image,
                                      std::vector<std::string>& warnings);

/// The same for the tokenizer alone.
std::vector<KeptFile> read_tokenizer_copies(const Settings& settings);

/// Writes them into a directory, which is made if missing.
void write_kept_files(const std::vector<KeptFile>& files, const std::string& directory);

}  // namespace deltapipe
