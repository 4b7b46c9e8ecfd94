// SPDX-License-Identifier: BSD-3-Clause
// Directories of classes with PNG and JPEG files.
#include "core/data/image_directory.hpp"

#include <catch2/catch.hpp>
#include <filesystem>

#include "core/data/image_resize.hpp"
#include "core/data/images.hpp"
#include "tests/unit/core/data/image_support.hpp"
#include "tests/unit/core/files/files_support.hpp"

using namespace deltapipe;
using namespace deltapipe::testing;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

const std::string kFixtures = DELTAPIPE_FIXTURES "/image_files";

struct Tree {
  Tree() {
    settings.kind = DataKind::images;
    settings.validation_fraction = 0;
    settings.images = {.mean = {0}, .deviation = {1.0 / 255}};
    settings.train = {directory / "train"};
  }
  /// Copies a fixture to a place below the directory.
  void put(const std::string& fixture, const std::string& place) const {
    fs::create_directories(fs::path(directory / place).parent_path());
    fs::copy_file(kFixtures + "/" + fixture, directory / place);
  }
  void text(const std::string& place) const {
    fs::create_directories(fs::path(directory / place).parent_path());
    write_bytes(directory / place, "text");
  }
  /// Two classes with images of 19 x 23.
  void put_classes() const {
    put("rgb.png", "train/cat/2.png");
    put("rgb.jpg", "train/cat/10.JPG");
    put("grey.jpg", "train/ant/deep/x.jpeg");
    put("grey.png", "train/ant/y.png");
  }
  DataSplit load(const ImageShape& shape) const {
    return load_images(settings, shape, {"ant", "cat"}, 1);
  }
  std::string message(const ImageShape& shape = {19, 23, 3}) const {
    return message_of<UserError>([&] { load(shape); });
  }

  TemporaryDirectory directory;
  DataSettings settings;
};

void check_pixels(const ImageSample& sample, const std::vector<std::uint8_t>& pixels) {
  REQUIRE(sample.values.size() == pixels.size());
  for (std::size_t i = 0; i < pixels.size(); ++i)
    REQUIRE(sample.values[i] == Approx(pixels[i]).margin(1e-3));
}

}  // namespace

TEST_CASE("Sub-directories are classes, in order of their names", "[data][images]") {
  Tree tree;
  tree.put_classes();
  CHECK(image_classes(tree.settings) == std::vector<std::string>{"ant", "cat"});
  CHECK(image_shape(tree.settings) == ImageShape{19, 23, 3});
  const DataSplit split = tree.load({19, 23, 3});
  REQUIRE(split.train->size() == 4);
  // Files of a directory precede its directories.
  const std::vector<std::string> files = {"ant/y.png", "ant/deep/x.jpeg", "cat/10.JPG",
                                          "cat/2.png"};
  const std::vector<std::string> sources = {"grey.png", "grey.jpg", "rgb.jpg", "rgb.png"};
  for (std::uint64_t id = 0; id < 4; ++id) {
    CHECK(split.train->file(id) == files[id]);
    const ImageSample sample = read_image_sample(*split.train, id);
    CHECK(sample.label == (id < 2 ? 0 : 1));
    check_pixels(sample, read_image(kFixtures + "/" + sources[id], 3).pixels_HWC);
  }
  CHECK_THAT(split.notes.front(), Contains("2 classes with 2 to 2 images of 19 x 23 x 3"));
  CHECK(split.notes.size() == 1);
  // A model of grey images gets grey images.
  check_pixels(read_image_sample(*tree.load({19, 23, 1}).train, 3),
               read_image(kFixtures + "/rgb.png", 1).pixels_HWC);
}

TEST_CASE("The order of a file system is not that of images", "[data][images]") {
  Tree tree;
  std::vector<std::string> names;
  for (int i = 0; i < 40; ++i) {
    names.push_back("c" + std::to_string(i * 7 % 40) + "/a.png");
    tree.put("rgb.png", "train/" + names.back());
  }
  std::ranges::sort(names);
  CHECK(list_image_directories(tree.settings.train, {}, false).names == names);
}

TEST_CASE("Names of images in several directories tell which", "[data][images]") {
  Tree tree;
  tree.put("rgb.png", "one/c/a.png");
  tree.put("rgb.png", "two/c/a\xff.png");
  const std::string one = tree.directory / "one", two = tree.directory / "two";
  CHECK(list_image_directories({one, two}, {}, false).names ==
        std::vector<std::string>{one + "/c/a.png", two + "/c/a\\xFF.png"});
  CHECK(list_image_directories({two}, {}, false).names == std::vector<std::string>{"c/a\\xFF.png"});
}

TEST_CASE("Files that are not images are counted", "[data][images]") {
  Tree tree;
  tree.put_classes();
  tree.text("train/README.txt");
  tree.text("train/cat/Thumbs.db");
  tree.text("train/cat/._2.png");
  tree.text("train/.cache/x.png");
  tree.text("train/ant/.cache/x.gif");
  const DataSplit split = tree.load({19, 23, 3});
  CHECK(split.train->size() == 4);
  CHECK_THAT(split.notes.back(), Contains("among the images that are ignored: 5, the first is") &&
                                     Contains("train/README.txt"));
}

TEST_CASE("Images of all sizes get the size of the model or the deck", "[data][images]") {
  Tree tree;
  tree.put_classes();
  tree.put("source.png", "train/cat/a.png");
  CHECK_THAT(message_of<UserError>([&] { image_shape(tree.settings); }),
             Contains("train/cat/a.png: the images differ in size from ") &&
                 Contains("(got 61 x 61 and 19 x 23); set data.images.size"));
  const Image source = read_image(kFixtures + "/source.png", 3);
  for (const ImageFit fit : {ImageFit::crop, ImageFit::stretch}) {
    tree.settings.images.fit = fit;
    const DataSplit split = tree.load({16, 20, 3});
    const ResizePlan plan = plan_resize(61, 61, {16, 20, 3}, fit);
    check_pixels(read_image_sample(*split.train, 4), resized(source, plan, 16, 20).pixels_HWC);
  }
  tree.settings.images.size = {16};
  CHECK(image_shape(tree.settings) == ImageShape{16, 16, 3});
  CHECK(tree.load({16, 16, 3}).train->size() == 5);
  CHECK_THAT(tree.message({16, 20, 3}), Contains("data.images.size is not the size of the model's "
                                                 "images (got 16 x 16 and 16 x 20 x 3)"));
  tree.settings.images.size = {16, 20};
  CHECK(image_shape(tree.settings) == ImageShape{16, 20, 3});
}

TEST_CASE("A part of a directory is held out, and limits leave files unread", "[data][images]") {
  Tree tree;
  for (int i = 10; i < 30; ++i) {
    tree.put("rgb.png", "train/ant/" + std::to_string(i) + ".png");
    tree.put("grey.png", "train/cat/" + std::to_string(i) + ".png");
  }
  tree.settings.validation_fraction = 0.25;
  const DataSplit split = tree.load({19, 23, 3});
  CHECK(split.train->size() == 30);
  CHECK(split.validation->size() == 10);
  int cats = 0;
  for (std::uint64_t id = 0; id < 10; ++id) cats += read_image_sample(*split.validation, id).label;
  CHECK(cats > 0);
  CHECK(cats < 10);
  CHECK(split.train->fingerprint() == tree.load({19, 23, 3}).train->fingerprint());
  CHECK(split.train->fingerprint() != tree.load({19, 22, 3}).train->fingerprint());
  // Damage is reported for the first file in their order, whichever thread finds it.
  for (const char* name : {"train/cat/14.png", "train/cat/15.png", "train/cat/29.png"})
    write_bytes(tree.directory / name, "broken");
  tree.settings.validation_fraction = 0;
  CHECK_THAT(tree.message(), Contains("train/cat/14.png: the file is not a PNG or JPEG image"));
  tree.settings.max_train_samples = 20;
  CHECK(tree.load({19, 23, 3}).train->size() == 20);
}

TEST_CASE("Validation is a directory with some of the classes", "[data][images]") {
  Tree tree;
  tree.put_classes();
  tree.put("rgb.png", "validation/cat/2.png");
  tree.settings.validation = {tree.directory / "validation"};
  const DataSplit split = tree.load({19, 23, 3});
  REQUIRE(split.validation->size() == 1);
  CHECK(read_image_sample(*split.validation, 0).label == 1);
  tree.put("rgb.png", "validation/1/2.png");  // a class by its number
  CHECK(read_image_sample(*tree.load({19, 23, 3}).validation, 0).label == 1);
  tree.put("rgb.png", "validation/dog/2.png");
  CHECK_THAT(tree.message(), Contains("not one of the model's 2 classes (got dog); use names such "
                                      "as ant"));
}

TEST_CASE("Several directories are one set, links included", "[data][images]") {
  Tree tree;
  tree.put_classes();
  tree.put("rgb.png", "other/bee/a.png");
  fs::create_directory_symlink(tree.directory / "train/cat", tree.directory / "other/cat");
  tree.settings.train.push_back(tree.directory / "other");
  const std::vector<std::string> classes = image_classes(tree.settings);
  CHECK(classes == std::vector<std::string>{"ant", "bee", "cat"});
  const DataSplit split = load_images(tree.settings, {19, 23, 3}, classes, 1);
  REQUIRE(split.train->size() == 7);
  CHECK(read_image_sample(*split.train, 4).label == 1);
  CHECK(split.train->file(6) == tree.directory / "other/cat/2.png");
}

TEST_CASE("Images to predict may lack classes", "[data][images]") {
  Tree tree;
  tree.put("rgb.png", "new/b.png");
  tree.put("rgb.jpg", "new/a.jpg");
  tree.settings.train.clear();
  tree.settings.validation = {tree.directory / "new"};
  CHECK_THAT(tree.message(), Contains("the directory has no classes"));
  tree.settings.labels_optional = true;
  CHECK(image_shape(tree.settings) == ImageShape{19, 23, 3});
  const DataSplit split = tree.load({19, 23, 3});
  REQUIRE(split.validation->size() == 2);
  CHECK(split.validation->file(0) == "a.jpg");
  CHECK(read_image_sample(*split.validation, 0).label == -1);
  CHECK(split.notes.empty());
  // Labelled ones are labelled.
  tree.put_classes();
  tree.settings.validation = {tree.directory / "train"};
  CHECK(image_shape(tree.settings) == ImageShape{19, 23, 3});
  CHECK(read_image_sample(*tree.load({19, 23, 3}).validation, 3).label == 1);
}

TEST_CASE("Labels of more than 256 classes are part of a fingerprint", "[data][images]") {
  Tree tree;
  std::vector<std::string> classes;
  for (int c = 0; c < 300; ++c) classes.push_back("c" + std::to_string(1000 + c));
  const auto fingerprint = [&](const std::string& name) {
    fs::remove_all(tree.directory / "train");
    tree.put("rgb.png", "train/" + name + "/a.png");
    const DataSplit split = load_images(tree.settings, {19, 23, 3}, classes, 1);
    CHECK(read_image_sample(*split.train, 0).label == std::stoi(name.substr(1)) - 1000);
    return split.train->fingerprint();
  };
  CHECK(fingerprint("c1000") != fingerprint("c1256"));
}

TEST_CASE("Directories that cannot be used are refused", "[data][images]") {
  Tree tree;
  tree.put_classes();
  REQUIRE(tree.message().empty());
  SECTION("no images") {
    fs::create_directories(tree.directory / "train/empty");
    CHECK_THAT(message_of<UserError>([&] {
                 load_images(tree.settings, {19, 23, 3}, {"ant", "cat", "empty"}, 1);
               }),
               Contains("train/empty: the directory of a class has no images"));
    tree.settings.train = {tree.directory / "train/empty"};
    CHECK_THAT(message_of<UserError>([&] { image_classes(tree.settings); }),
               Contains("train/empty: the directory has no classes"));
    tree.settings.train.clear();
    tree.settings.validation = {tree.directory / "train/empty"};
    tree.settings.labels_optional = true;
    CHECK_THAT(tree.message(), Contains("train/empty: the directory has no images"));
  }
  SECTION("other images") {
    const std::string suffix = GENERATE(".gif", ".WEBP", ".tiff", ".bmp", ".apng");
    tree.text("train/cat/x" + suffix);
    CHECK_THAT(tree.message(), Contains("cat/x" + suffix + ": images of this kind are not read") &&
                                   Contains("convert it"));
  }
  SECTION("one class") {
    fs::remove_all(tree.directory / "train/cat");
    CHECK_THAT(message_of<UserError>([&] { image_classes(tree.settings); }),
               Contains("fewer than two classes"));
  }
  SECTION("a name that is not text") {
    fs::create_directories(tree.directory / "train/\xff");
    CHECK_THAT(message_of<UserError>([&] { image_classes(tree.settings); }),
               Contains("not UTF-8 (got \\xFF)"));
  }
  SECTION("a loop") {
    fs::create_directory_symlink(tree.directory / "train", tree.directory / "train/cat/loop");
    CHECK_THAT(tree.message(), Contains("nested too deeply"));
  }
  SECTION("a link to nothing") {
    fs::create_symlink(tree.directory / "nothing.png", tree.directory / "train/cat/z.png");
    CHECK_THAT(tree.message(), Contains("train/cat/z.png: cannot be read"));
  }
  SECTION("formats") {
    tree.text("a-images-idx3-ubyte");
    const std::string file = tree.directory / "a-images-idx3-ubyte";
    tree.settings.train.push_back(file);
    CHECK_THAT(tree.message(), Contains("another format than"));
    tree.settings.train = {file};
    tree.settings.images.size = {19, 23};
    CHECK_THAT(tree.message(), Contains("data.images.size is for directories"));
    tree.settings.images.size.clear();
    tree.settings.format = DataFormat::directory;
    CHECK_THAT(tree.message(), Contains("data.format is directory, and this is not one"));
    tree.settings.train = {tree.directory / "train"};
    CHECK(tree.message().empty());
    tree.settings.train = {tree.directory / "lost"};
    tree.settings.format = DataFormat::automatic;
    CHECK(!tree.message().empty());
  }
  SECTION("channels") {
    CHECK_THAT(tree.message({19, 23, 2}), Contains("images of directories have 1 or 3 channels"));
  }
  SECTION("too many classes") {
    const std::vector<std::string> many(32768, "ant");
    CHECK_THAT(message_of<UserError>([&] {
                 load_images(tree.settings, {19, 23, 3}, many, 1);
               }),
               Contains("too many classes (got 32768); use at most 32767"));
  }
  SECTION("memory") {
    // 4 images of 48 TB each.
    CHECK_THAT(tree.message({4'000'000, 4'000'000, 3}), Contains("do not fit into the memory"));
  }
}
