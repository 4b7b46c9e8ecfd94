// SPDX-License-Identifier: BSD-3-Clause
#include "models/bert/bert_config.hpp"

#include <catch2/catch.hpp>
#include <string>

#include "core/base/error.hpp"
#include "models/config_file.hpp"
#include "tests/unit/core/files/files_support.hpp"

using namespace deltapipe;
using deltapipe::testing::message_of;
using deltapipe::testing::TemporaryDirectory;
using deltapipe::testing::write_bytes;

TEST_CASE("The dropout of a BERT's classifier is its own or that of its layers",
          "[files][config]") {
  const TemporaryDirectory directory;
  const auto read = [&](const std::string& key) {
    write_bytes(directory / "config.json",
                R"({"model_type": "bert", "hidden_dropout_prob": 0.25)" + key + "}");
    return BertConfig::read(read_config_file(directory.path()));
  };
  CHECK(read("").head_dropout() == 0.25);
  CHECK(read(R"(, "classifier_dropout": null)").head_dropout() == 0.25);
  CHECK(read(R"(, "classifier_dropout": 0)").head_dropout() == 0);
  CHECK(read(R"(, "classifier_dropout": 0.5)").head_dropout() == 0.5);
  for (const std::string wrong : {"-0.1", "1", "\"0\""})
    CHECK_THAT(message_of<UserError>([&] { read(", \"classifier_dropout\": " + wrong); }),
               Catch::Matchers::Contains("'classifier_dropout' must be"));
}
