// SPDX-License-Identifier: BSD-3-Clause
#include "app/deck/deck.hpp"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "app/checkpoint/restart.hpp"
#include "app/checkpoint/restart_deck.hpp"
#include "app/deck/nearest.hpp"
#include "app/deck/units.hpp"
#include "core/base/error.hpp"

using namespace deltapipe;

namespace {

/// The message of the UserError that this deck provokes, or "" when it is accepted.
std::string message_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    parse_deck(text, "d.toml", overrides);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

struct Wrong {
  std::string deck;
  std::vector<std::string> overrides;
  std::vector<std::string> parts;  ///< of the message
};

void check_all(const std::vector<Wrong>& cases) {
  for (const Wrong& wrong : cases) {
    const std::string message = message_of(wrong.deck, wrong.overrides);
    INFO("deck: " << wrong.deck << "\nmessage: " << message);
    CHECK_FALSE(message.empty());
    CHECK(message.find('\n') == std::string::npos);
    for (const std::string& part : wrong.parts) CHECK_THAT(message, Catch::Contains(part));
  }
}

/// No setting at its default, with awkward strings and numbers.
Settings unusual_settings() {
  Settings s;
  s.model = {"", "bert", 6, 3, 48, 77, 99, 8, {1, 5}, StemKind::imagenet, 0.1, 0.2, 1.0 / 3};
  s.tokenizer = {"", 300};
  s.data = {DataKind::labelled_text,
            {"a \"b\"\\c.txt", "tab\there\nline", "\x7f\x01", "'", "naïve/文.txt", ""},
            {"v.jsonl"},
            0.1,
            {"p.jsonl", "q"},
            DataFormat::jsonl,
            {"title", "abstract"},
            BadLines::skip,
            Packing::document,
            33,
            false,
            7,
            std::numeric_limits<std::int64_t>::max(),
            {},
            {{"question", "sen\"tence"}, "la bel", false},
            {{48, 64}, ImageFit::stretch, {0.1, -0.25, 0}, {0.3}, 4, true}};
  s.data.train.pop_back();
  s.training.epochs = 0.1 + 0.2;
  s.training.steps = 12;
  s.training.micro_batch_size = 3;
  s.training.micro_batches = 4;
  s.training.seed = 1234567890123456789;
  s.training.optimizer.learning_rate = 5e-324;
  s.training.optimizer.schedule = LearningRateSchedule::cosine;
  s.training.optimizer.name = OptimizerName::sgd;
  s.training.optimizer.warmup_steps = 2;
  s.training.optimizer.decay_steps = 77;
  s.training.optimizer.momentum = 0.75;
  s.training.optimizer.decay_all = true;
  s.training.optimizer.final_learning_rate_fraction = 0.05;
  s.training.optimizer.beta1 = 0;
  s.training.optimizer.beta2 = 0.95;
  s.training.optimizer.epsilon = 1e-6;
  s.training.optimizer.weight_decay = 100;
  s.training.optimizer.clip_norm = 1.7976931348623157e308;
  s.training.recompute = true;
  s.training.recompute_stages = {0, 2};
  s.training.evaluate_every = 5;
  s.pipeline = {3, 2, 1, "gpipe", 2, 2.5, {1, 3, 2}};
  s.forward = {CodecKind::aqsgd, 2,  ScaleKind::tile, 32, Rounding::stochastic, Levels::asymmetric,
               FirstVisit::fp32, 1.5};
  s.forward.entropy_coding = true;
  s.forward.first_visit_step = 0.3;
  s.backward = {CodecKind::directq,
                2,
                ScaleKind::channel,
                16,
                Rounding::stochastic,
                Levels::asymmetric,
                FirstVisit::quantize8,
                2,
                true};
  s.forward_rate = {{}, BudgetSharing::time, 0};
  s.backward_rate.target_bits = {0, 0};
  s.evaluation = {{EvaluationMode::plain, EvaluationMode::codec}, ChangesWithoutMemory::direct};
  s.cache = {MemoryStorage::bf16, (std::uint64_t{8} << 30) + 1, "/scratch", 3};
  s.network.forward = {{1e8, 1e-3}, {123456789.125, 5e-5}};
  s.network.backward = {{0, 1.0 / 3}};
  s.output = {"out dir", false, Precision::bf16, false, 1, 9};
  s.generate = {{"Once upon a \"time\"\n", "#"}, 5, 0, 40, 3};
  s.checkpoint.every_steps = 7;
  s.checkpoint.every_seconds = 90.5;
  s.checkpoint.keep = 3;
  s.checkpoint.milestone_every = 1000;
  s.checkpoint.directory = "/local/state";
  s.checkpoint.mode = CheckpointMode::resync;
  s.checkpoint.change_optimizer = true;
  s.checkpoint.time_limit_seconds = 86400;
  return s;
}

}  // namespace

TEST_CASE("an empty deck gives the defaults") {
  CHECK(parse_deck("", "d.toml") == Settings{});
  CHECK(parse_deck("[training]\n[boundary]\n", "d.toml") == Settings{});
}

TEST_CASE("the effective deck reads back to the same settings") {
  for (const Settings& settings : {Settings{}, unusual_settings()}) {
    const std::string text = effective_deck(settings);
    INFO(text);
    const Settings again = parse_deck(text, "effective");
    CHECK(again.model == settings.model);
    CHECK(again.tokenizer == settings.tokenizer);
    CHECK(again.data == settings.data);
    CHECK(again.training == settings.training);
    CHECK(again.pipeline == settings.pipeline);
    CHECK(again.forward == settings.forward);
    CHECK(again.backward == settings.backward);
    CHECK(again.forward_rate == settings.forward_rate);
    CHECK(again.backward_rate == settings.backward_rate);
    CHECK(again.cache == settings.cache);
    CHECK(again.network == settings.network);
    CHECK(again.output == settings.output);
    CHECK(again.checkpoint == settings.checkpoint);
    CHECK(again.generate == settings.generate);
    CHECK(effective_deck(again) == text);
  }
}

TEST_CASE("values of every kind are read") {
  const Settings s = parse_deck(R"(
model.path = "gpt2"
[data]
train = "one.txt"
validation = ["a.txt", "b.txt"]
format = "text"
[training]
epochs = 3
[training.optimizer]
learning_rate = 1e-3
[pipeline]
stages = 3
schedule = "1f1b"
partition = [4, 4, 4]
[boundary.forward]
codec = "aqsgd"
bits = 3
[cache]
budget = "1.5GiB"
[network]
bandwidth = "100 Mbit/s"
latency = ["1ms", "50us"]
[network.backward]
bandwidth = ["10Gbit/s", 0]
[checkpoint]
every = "20 min"
change_optimizer = true
)",
                                "d.toml");
  CHECK(s.checkpoint.every_seconds == 1200);
  CHECK(s.checkpoint.change_optimizer);
  CHECK(s.model.path == "gpt2");
  CHECK(s.data.train == std::vector<std::string>{"one.txt"});
  CHECK(s.data.validation == std::vector<std::string>{"a.txt", "b.txt"});
  CHECK(s.data.format == DataFormat::text);
  CHECK(s.training.epochs == 3);
  CHECK(s.training.optimizer.learning_rate == 1e-3);
  CHECK(s.pipeline.schedule == "1f1b");
  CHECK(s.pipeline.partition == std::vector<int>{4, 4, 4});
  CHECK(s.forward.kind == CodecKind::aqsgd);
  CHECK(s.forward.bits == 3);
  CHECK(s.backward.kind == CodecKind::none);
  CHECK(s.cache.budget_bytes == std::uint64_t{3} << 29);
  CHECK(s.network.forward == std::vector<LinkSettings>{{1e8, 1e-3}, {1e8, 50e-6}});
  CHECK(s.network.backward == std::vector<LinkSettings>{{1e10, 1e-3}, {0, 50e-6}});
}

TEST_CASE("codec = auto stands for settings that the deck may replace") {
  const Settings both =
      parse_deck("boundary.forward.codec = \"auto\"\nboundary.backward.codec = \"auto\"", "d.toml");
  CodecSettings forward, backward;
  forward.kind = CodecKind::aqsgd;
  forward.rms_step = 1.5;
  forward.first_visit = FirstVisit::steps;
  forward.first_visit_step = std::sqrt(12.0) * 0.02;  // a relative error of 0.02
  backward.kind = CodecKind::directq;
  backward.rms_step = 0.6;
  backward.rounding = Rounding::stochastic;
  for (CodecSettings* codec : {&forward, &backward}) {
    codec->scale = ScaleKind::message;
    codec->tile = 256;
  }
  CHECK(both.forward == forward);
  CHECK(both.backward == backward);
  CHECK(both.forward_rate.target_error == 0.02);
  CHECK(both.backward_rate.target_error == 0.1);
  // The settings behind it are written.
  const std::string text = effective_deck(both);
  CHECK_THAT(text, !Catch::Contains("codec = \"auto\""));
  CHECK_THAT(text, Catch::Contains("codec = \"aqsgd\"") && Catch::Contains("step = 1.5"));
  CHECK(parse_deck(text, "effective") == both);

  // Single settings, before and behind the codec and on the command line.
  const Settings own = parse_deck("[boundary.forward]\nquantizer.step = 0.8\ncodec = \"auto\"\n",
                                  "d.toml", {"boundary.forward.memory.first_visit=fp32"});
  forward.rms_step = 0.8;
  forward.first_visit = FirstVisit::fp32;
  CHECK(own.forward == forward);
  CHECK(own.backward == CodecSettings());
  CHECK(own.backward_rate == RateSettings());
  // One knob for both directions, unless a direction has an error or a number of bits of its own.
  const auto rates = [](const std::string& keys) {
    const Settings s = parse_deck(
        "boundary.error = 0.08\nboundary.forward.codec = \"auto\"\n"
        "boundary.backward.codec = \"auto\"\n" +
            keys,
        "d.toml");
    return std::pair(s.forward_rate, s.backward_rate);
  };
  CHECK(rates("").first.target_error == 0.08);
  CHECK(rates("").second.target_error == 0.4);
  CHECK(rates("boundary.backward.quantizer.error = 0.1").first.target_error == 0.08);
  CHECK(rates("boundary.backward.quantizer.error = 0.1").second.target_error == 0.1);
  CHECK(rates("boundary.forward.quantizer.error = 0").first == RateSettings());
  const auto first_visits = [](const std::string& keys) {
    return parse_deck("[boundary.forward]\ncodec = \"auto\"\n" + keys, "d.toml")
        .forward.first_visit_step;
  };
  CHECK_THAT(first_visits("quantizer.error = 0.1"), Catch::WithinAbs(0.34641, 1e-5));
  CHECK(first_visits("rate = 2") == 0.5);
  CHECK(first_visits("memory.first_visit_step = 0.3") == 0.3);
  CHECK(rates("boundary.forward.rate = 2").first.target_error == 0);
  // Also those that are what they would be without it.
  CHECK(parse_deck(
            "[boundary.backward]\ncodec = \"auto\"\nfeedback.kind = \"none\"\nquantizer.step = 1\n",
            "d.toml")
            .backward.rms_step == 1);
  // One step for a message goes with steps of the RMS alone.
  const auto scale_with = [](const std::string& keys) {
    return parse_deck("[boundary.backward]\ncodec = \"auto\"\n" + keys, "d.toml").backward.scale;
  };
  CHECK(scale_with("") == ScaleKind::message);
  CHECK(scale_with("quantizer.scale = \"tile\"\n") == ScaleKind::tile);
  CHECK(scale_with("quantizer.step = 0\nquantizer.error = 0\nquantizer.scale = \"tile\"\n") ==
        ScaleKind::tile);
  CHECK_THROWS_WITH(scale_with("quantizer.step = 0\nquantizer.error = 0\n"),
                    Catch::Contains("fraction of its RMS"));
  for (const char* const keys :
       {"codec = \"auto\"", "codec = \"auto\"\nquantizer.error = 0.1", "codec = \"auto\"\nrate = 3",
        "codec = \"directq\"\nrate = 3", "codec = \"directq\"\nquantizer.error = 0.1"})
    CHECK_THROWS_WITH(
        parse_deck("[boundary.backward]\nquantizer.step = 0\n" + std::string(keys), "d.toml"),
        Catch::StartsWith("d.toml:2:") && Catch::Contains("is held by steps") &&
            Catch::Contains("(got quantizer.step = 0)"));
  // Another codec in its place brings nothing of it along, and the other way round.
  CHECK(parse_deck("[boundary.forward]\ncodec = \"auto\"\n", "d.toml",
                   {"boundary.forward.codec=directq"})
            .forward.rms_step == 0);
  CHECK(parse_deck("[boundary.forward]\ncodec = \"none\"\n", "d.toml",
                   {"boundary.forward.codec=auto", "boundary.forward.rate=2"})
            .forward.rms_step == 1.5);
}

TEST_CASE("targets of bits are one number or one per boundary") {
  const std::string deck = "pipeline.stages = 4\nboundary.forward.codec = \"auto\"\n";
  CHECK(parse_deck(deck + "boundary.forward.rate = 2", "d.toml").forward_rate.target_bits ==
        std::vector<double>{2});
  const Settings three = parse_deck(deck + "boundary.forward.rate = [2.5, 0, 3]", "d.toml");
  CHECK(three.forward_rate.target_bits == std::vector<double>{2.5, 0, 3});
  CHECK(three.forward_rate.target_error == 0);
  CHECK(three.backward_rate == RateSettings());
  CHECK(parse_deck(effective_deck(three), "effective") == three);
}

TEST_CASE("a rate is held by the recommended steps, whatever the codec") {
  const Settings s = parse_deck(
      "[boundary.forward]\ncodec = \"directq\"\nrate = 3\n"
      "[boundary.backward]\ncodec = \"directq\"\nquantizer.error = 0.1\nquantizer.tile = 8\n",
      "d.toml");
  CHECK(s.forward.kind == CodecKind::directq);
  CHECK(s.forward.rms_step == 1.5);
  CHECK(s.forward.scale == ScaleKind::message);
  CHECK(s.forward_rate.target_bits == std::vector<double>{3});
  CHECK(s.forward_rate.target_error == 0);
  CHECK(s.backward.rms_step == 0.6);
  CHECK(s.backward.tile == 8);
  CHECK(s.backward_rate.target_error == 0.1);
  CHECK(parse_deck(effective_deck(s), "effective.toml") == s);
  const Settings own =
      parse_deck("[boundary.forward]\ncodec = \"aqsgd\"\nrate = 3\nquantizer.step = 1\n", "d.toml");
  CHECK(own.forward.rms_step == 1);
  CHECK(own.forward.scale == ScaleKind::tile);
}

TEST_CASE("error feedback has a kind for each boundary") {
  const auto feedback = [](const std::string& value) {
    const Settings s = parse_deck(
        "[boundary.backward]\ncodec = \"topk\"\nfeedback.kind = " + value + "\n", "d.toml");
    CHECK(s.backward == parse_deck(effective_deck(s), "effective.toml").backward);
    return std::pair(s.backward.error_feedback, s.backward.feedback_kind);
  };
  CHECK(feedback("\"none\"") == std::pair(false, FeedbackKind::ef));
  CHECK(feedback("\"ef\"") == std::pair(true, FeedbackKind::ef));
  CHECK(feedback("\"ef21\"") == std::pair(true, FeedbackKind::ef21));
  CHECK(feedback("\"mixed\"") == std::pair(true, FeedbackKind::mixed));
  const Settings s =
      parse_deck("", "d.toml",
                 {"boundary.forward.feedback.kind=ef", "boundary.forward.topk=0.02",
                  "boundary.forward.codec=topk", "boundary.forward.sparse.values=codes"});
  CHECK(s.forward.error_feedback);
  CHECK(s.forward.topk == 0.02);
  CHECK(s.forward.values == ChosenValues::codes);
  CHECK_THROWS_WITH(parse_deck("[boundary.forward]\ncodec = true\n", "d.toml"),
                    Catch::Contains("d.toml:2:"));
}

TEST_CASE("overrides replace what the deck says") {
  const Settings s =
      parse_deck("[training]\nepochs = 3\n[boundary.forward]\nbits = 4\n", "d.toml",
                 {"boundary.forward.bits=3", "boundary.forward.codec=aqsgd", "training.epochs=1",
                  "training.epochs=2.5", "cache.budget=8GiB", "data.train=true.txt",
                  "data.validation=[\"a=b\", 'c']", "output.directory=123", "output.overwrite=true",
                  "network.bandwidth=100 Mbit/s", "generate.prompts=Hello, world",
                  "cache.directory=", "model.path=\"quoted\""});
  CHECK(s.forward.bits == 3);
  CHECK(s.forward.kind == CodecKind::aqsgd);
  CHECK(s.training.epochs == 2.5);
  CHECK(s.cache.budget_bytes == std::uint64_t{8} << 30);
  CHECK(s.data.train == std::vector<std::string>{"true.txt"});
  CHECK(s.data.validation == std::vector<std::string>{"a=b", "c"});
  CHECK(s.output.directory == "123");
  CHECK(s.output.overwrite);
  CHECK(s.network.forward == std::vector<LinkSettings>{{1e8, 0}});
  CHECK(s.generate.prompts == std::vector<std::string>{"Hello, world"});
  CHECK(s.cache.directory.empty());
  CHECK(s.model.path == "quoted");
}

TEST_CASE("an override of the network counts for both directions") {
  const std::string deck = "[network.forward]\nbandwidth = 1e6\nlatency = 1\n";
  const NetworkSettings one = parse_deck(deck, "d.toml", {"network.bandwidth=2e6"}).network;
  CHECK(one.forward == std::vector<LinkSettings>{{2e6, 1}});
  CHECK(one.backward == std::vector<LinkSettings>{{2e6, 0}});
  const NetworkSettings two =
      parse_deck(deck, "d.toml", {"network.latency=2", "network.forward.latency=3"}).network;
  CHECK(two.forward == std::vector<LinkSettings>{{1e6, 3}});
  CHECK(two.backward == std::vector<LinkSettings>{{0, 2}});
  const std::vector<std::string> wire = {"pipeline.stages=3", "network.wire=rank",
                                         "network.bandwidth=[1e6, 2e6, 3e6]", "network.latency=1"};
  const Settings ranks = parse_deck("", "d.toml", wire);
  CHECK(ranks.network.ranks == std::vector<LinkSettings>{{1e6, 1}, {2e6, 1}, {3e6, 1}});
  CHECK(ranks.network.forward.empty());
  CHECK(parse_deck(effective_deck(ranks), "e.toml") == ranks);
  Settings same;
  same.network.forward = same.network.backward = {{1e8, 1e-3}};
  CHECK(parse_deck(effective_deck(same), "e.toml") == same);
}

TEST_CASE("unknown names are refused with the nearest known one") {
  check_all({
      {"[training.optimizer]\n  lerning_rate = 1\n",
       {},
       {"d.toml:2:3: unknown key 'lerning_rate' in [training.optimizer]",
        "did you mean 'learning_rate'?"}},
      {"[training]\nlearning_rate = 1\n",
       {},
       {"d.toml:2:1: unknown key 'learning_rate'",
        "did you mean 'training.optimizer.learning_rate'?"}},
      {"[training]\nxyzzyplugh = 1\n", {}, {"the keys of [training] are epochs, steps, "}},
      {"[trainig]\nsteps = 1\n",
       {},
       {"d.toml:1:2: unknown section [trainig]", "did you mean [training]?"}},
      {"steps = 1\n", {}, {"d.toml:1:1: unknown section [steps]", "the sections are [model], "}},
      {"[boundary.fordward]\n", {}, {"d.toml:1:11:", "did you mean [boundary.forward]?"}},
      {"[boundary]\nbits = 3\n",
       {},
       {"unknown key 'bits'",
        "did you mean 'boundary.forward.bits' or 'boundary.backward.bits' or "
        "'replicas.bits'?"}},
      {"[training.steps]\nx = 1\n", {}, {"training.steps has the wrong type (got a table)"}},
      {"training = 3\n", {}, {"d.toml:1:1: 'training' is a section (got 3)", "write [training]"}},
      {"[[training]]\nsteps = 3\n", {}, {"'training' is a section"}},
      {"[training]\nzzz = 1\n[model]\nyyy = 2\n", {}, {"d.toml:2:1: unknown key 'zzz'"}},
  });
}

TEST_CASE("wrong types, values and ranges are refused where they stand") {
  check_all({
      {"[training]\nsteps = \"ten\"\n",
       {},
       {"d.toml:2:9: training.steps has the wrong type (got \"ten\")", "use integer, at least 0"}},
      {"[training]\nsteps = 1.5\n", {}, {"wrong type (got 1.5)"}},
      {"[training]\nsteps = 8.0\n", {}, {"wrong type (got 8.0)"}},
      {"[training]\nsteps = 0.7\n", {}, {"wrong type (got 0.7)"}},
      {"[training]\nsteps = -1\n", {}, {"out of range (got -1)", "at least 0"}},
      {"[training]\nepochs = nan\n", {}, {"training.epochs is out of range (got nan)"}},
      {"[training]\nepochs = inf\n", {}, {"out of range (got inf)"}},
      {"[training.optimizer]\nclip_norm = inf\n", {}, {"out of range (got inf)"}},
      {"[training.optimizer]\nbeta1 = 1\n", {}, {"(got 1)", "use number, 0 to below 1"}},
      {"[training.optimizer]\nepsilon = 0.0\n", {}, {"use number, above 0 to 1"}},
      {"[training]\nmicro_batch_size = 0\n", {}, {"(got 0)", "use integer, 1 to 65536"}},
      {"[training]\nmicro_batch_size = 4294967297\n", {}, {"out of range (got 4294967297)"}},
      {"[training]\nseed = 9223372036854775808\n", {}, {"d.toml:2:", "not valid TOML"}},
      {"[data]\nshuffle = 1\n", {}, {"data.shuffle has the wrong type (got 1)", "true or false"}},
      {"training.steps = [inf, [1, nan], {a = 1}, []]\n",
       {},
       {"training.steps has the wrong type (got [ inf, [ 1, nan ], { ... }, [] ])"}},
      {"[data]\ntrain = [\"a\",\n  3]\n",
       {},
       {"d.toml:3:3: data.train has the wrong type (got 3)"}},
      {"[data]\ntrain = 1979-05-27\n", {}, {"data.train has the wrong type (got \"1979-05-27\")"}},
      {"[boundary.forward]\ncodec = \"detla\"\n",
       {},
       {"d.toml:2:9: unknown value of boundary.forward.codec (got \"detla\")",
        "use one of \"none\", \"fp16\", \"bf16\", \"directq\", \"aqsgd\""}},
      {"[boundary.forward]\nbits = 9\n", {}, {"d.toml:2:8:", "(got 9)", "2 to 8"}},
      {"[pipeline]\nschedule = \"1F1B\"\n", {}, {"one of \"gpipe\", \"1f1b\""}},
      {"[pipeline]\npartition = [1, 0]\n", {}, {"d.toml:2:17:", "each 1 to 10000"}},
      {"[cache]\nbudget = \"8 gigs\"\n", {}, {"(got \"8 gigs\")", "KiB, MB, MiB"}},
      {"[cache]\nbudget = \"0.3 B\"\n", {}, {"cache.budget is out of range"}},
      {"[cache]\nbudget = -1\n", {}, {"cache.budget is out of range (got -1)"}},
      {"[cache]\nbudget = \"1e300 TiB\"\n", {}, {"cache.budget is out of range"}},
      {"[network]\nbandwidth = \"100 MB\"\n", {}, {"network.bandwidth", "bit/s, kbit/s, Mbit/s"}},
      {"[network]\nlatency = \"-1 ms\"\n", {}, {"network.latency is out of range"}},
      {"[network]\nlatency = 1e300\n",
       {},
       {"d.toml:2:11: network.latency is out of range", "3600"}},
      {"[network]\nbandwidth = [1e8, 1e-300]\n", {}, {"d.toml:2:19: network.bandwidth is out of"}},
      {"[network]\nbandwidth = 1e300\n", {}, {"network.bandwidth is out of range", "Tbit/s"}},
      {"[network]\nbandwidth = nan\n", {}, {"network.bandwidth is out of range"}},
      {"[pipeline]\ntimeout = -1\n", {}, {"pipeline.timeout is out of range"}},
      {"[pipeline]\ntimeout = 0.01\n", {}, {"d.toml:2:1: pipeline.timeout is shorter than"}},
      {"[output]\ndirectory = \"\"\n", {}, {"output.directory is out of range", "not empty"}},
      {"[checkpoint]\nkeep = 0\n", {}, {"(got 0)", "1 to 1000"}},
      {"[checkpoint]\nevery = \"5 ms\"\n", {}, {"checkpoint.every", "s, min, h, d"}},
      {"[checkpoint]\nevery = \"-5 s\"\n", {}, {"checkpoint.every is out of range"}},
      {"[checkpoint]\ntime_limit = \"400 d\"\n", {}, {"checkpoint.time_limit is out", "365 d"}},
      {"[checkpoint]\nmode = \"fast\"\n", {}, {"(got \"fast\")", "\"exact\", \"resync\""}},
      {"[training]\nsteps = 1\nsteps = 2\n", {}, {"d.toml:3:", "not valid TOML"}},
      {"[training\n", {}, {"d.toml:1:", "not valid TOML"}},
      {"[\xc3\xa9]\n", {}, {"d.toml:1: not valid TOML: a letter outside ASCII"}},
      {"[model]\npath = \"\\\ufbef\"", {}, {"d.toml:2: ", "behind a backslash"}},
      {"[model]\npath = \"\"\"\\\n  \\\u00e9\"\"\"", {}, {"d.toml:3: ", "behind a backslash"}},
      {"[model]\npath = \"\"\"\\  \u00e9\"\"\"", {}, {"d.toml:2: ", "behind a backslash"}},
      {"[model]\npath = 1\"\u030b\"", {}, {"d.toml:2: ", "in no text"}},
      {"[training]\nsteps = 1-x=[\"\u030b\"]", {}, {"d.toml:2: ", "in no text"}},
      {"[training]\nsteps = [ # \u030b\n1.\"\u030b\"]", {}, {"d.toml:3: ", "in no text"}},
      {"[training]\nsteps = 1979-05-27 0.\"\u030b\"", {}, {"d.toml:2: ", "in no text"}},
      {"[training]\nsteps = 1979-05-27 0[\"\u030b\"]", {}, {"d.toml:2: ", "in no text"}},
      {"\n\u030b = 1", {}, {"d.toml:2: not valid TOML: a letter outside ASCII"}},
      {"[training]\n [ =]\n", {}, {"d.toml:", "not valid TOML"}},
      {"[training]\n\"a\\nb\" = 1\n", {}, {"unknown key 'a\\nb'"}},
      {"[data]\ntrain = \"\xff\xfe\"\n", {}, {"d.toml:2:", "not valid TOML"}},
  });
}

TEST_CASE("nothing else is kept in the directory of a model") {
  const std::string out = "output.directory=./out/", best = "training.keep_best=true";
  check_all({
      {"",
       {out, "checkpoint.directory=out/model"},
       {"argument 'checkpoint.directory=", "replaces"}},
      {"", {out, "checkpoint.directory=x/../out//model/a/"}, {"in ./out//model"}},
      {"", {out, best, "cache.directory=out/best"}, {"cache.directory is in", "out/best"}},
  });
  CHECK(message_of("", {out, "checkpoint.directory=out/models", "cache.directory=out"}).empty());
  CHECK(message_of("", {out, "cache.directory=out/best"}).empty());
}

TEST_CASE("a wrong override names its argument") {
  check_all({
      {"", {"training.steps"}, {"argument 'training.steps': not an override", "section.key=value"}},
      {"",
       {"boundary.forward.bits=9"},
       {"argument 'boundary.forward.bits=9':", "(got 9)", "2 to 8"}},
      {"", {"boundary.forward.bit=3"}, {"argument '", "did you mean 'bits'?"}},
      {"", {"trai\nning.steps=3"}, {"unknown section [trai\\nning]"}},
      {"", {"steps=3"}, {"argument 'steps=3'", "did you mean 'training.steps'?"}},
      {"", {"nothing=3"}, {"argument 'nothing=3'", "write section.key=value"}},
      {"",
       {"pipeline.gpu_aware=true"},
       {"unknown key 'gpu_aware'", "did you mean 'gpu_aware_mpi'?"}},
      {"", {"pipeline.stages_per=2"}, {"did you mean 'stages_per_rank'?"}},
      {"", {"replicas.top_k=0.1"}, {"did you mean 'topk'?"}},
      {"", {"training.batch_size=2"}, {"did you mean 'micro_batch_size'?"}},
      {"", {"pipeline.step_=2"}, {"unknown key 'step_'", "did you mean 'step_timeout'?"}},
      {"",
       {"boundary.forward.first_vist=2"},
       {"did you mean 'boundary.forward.memory.first_visit'?"}},
      {"", {"output.dir=2"}, {"did you mean 'directory'?"}},
      {"", {"data.file=2"}, {"the keys of [data] are kind, train,"}},
      {"",
       {"bits=3"},
       {"did you mean 'boundary.forward.bits' or 'boundary.backward.bits' or "
        "'replicas.bits'?"}},
      {"", {"pipeline.time=2"}, {"the keys of [pipeline] are stages,"}},
      {"", {"training.batch=2"}, {"the keys of [training] are epochs,"}},
      {"", {"traning.steps=3"}, {"unknown section [traning]", "did you mean [training]?"}},
      {"", {"training=3"}, {"argument 'training=3'", "is a section"}},
      {"", {"=3"}, {"argument '=3'"}},
      {"", {"training.steps="}, {"training.steps has the wrong type (got \"\")"}},
      {"", {"training.steps=abc"}, {"wrong type (got \"abc\")"}},
      {"", {"training.steps=1\n2"}, {"training.steps"}},
      {"", {"training.steps=1\n[\xc3\xa9]"}, {"training.steps has the wrong type"}},
      {"", {"data.train=[\"a\""}, {"not a valid TOML value (got [\"a\")"}},
      {"", {"data.train=[\"a\", é]"}, {"not a valid TOML value"}},
      {"", {"output.directory=\"a\"é"}, {"not a valid TOML value"}},
      {"", {"model.path=\xff"}, {"argument '", "model.path is not UTF-8 text"}},
      {"", {"boundary.backward.codec=aqsgd"}, {"argument '", "no memory of gradients"}},
      {"[training]\nsteps = 4\n", {"training.optimizer.warmup_steps=5"}, {"argument '", "5 of 4"}},
  });
  CHECK(message_of("[training]\nstep = 1", {"nonsense"}).starts_with("d.toml:2:1:"));
}

TEST_CASE("decks nested beyond sense are refused before they are parsed") {
  const auto repeated = [](int count, const std::string& text) {
    std::string all;
    for (int i = 0; i < count; ++i) all += text;
    return all;
  };
  const int many = 50'000;
  const std::string deep = "d.toml:2: nested deeper than 16 levels; a deck has sections";
  for (const std::string& bomb :
       {"\n" + repeated(many, "a.") + "a = 1", "\n[" + repeated(many, "a.") + "a]",
        "\n" + repeated(many, "'a' . ") + "a = 1", "\nx = " + repeated(many, "["),
        "\nx = " + repeated(many, "{a = "), "\nx = {" + repeated(many, "\"a\".") + "a = 1}",
        "# it's\n" + repeated(many, "a.") + "a = 1"}) {
    CHECK_THAT(message_of(bomb), Catch::StartsWith(deep));
  }
  CHECK_THAT(message_of("x = \"\"\"\\\"\n\"\"\"\"\"\n[" + repeated(many, "a.") + "a]"),
             Catch::StartsWith("d.toml:3: nested deeper"));
  CHECK_THAT(message_of("x = '''\\'''\n[" + repeated(many, "a.") + "a]"), Catch::StartsWith(deep));
  CHECK_THAT(
      message_of("", {"training.steps=" + repeated(many, "[")}),
      Catch::StartsWith("argument 'training.steps=[[") && Catch::Contains("...': nested deeper"));
  CHECK_THAT(message_of("", {"training.steps=1\n" + repeated(many, "a.") + "a = 1"}),
             Catch::Contains("nested deeper"));
  // Dots and brackets in text do not belong to the deck.
  const std::string dots(100, '.'), brackets(100, '[');
  CHECK(message_of("# " + dots + brackets + "\n[data]\ntrain = ['" + dots + "', \"" + brackets +
                   "\\\"" + dots + "\", '''" + brackets + "''']\nformat = \"text\"\n" +
                   "[tokenizer]\ntrain_vocabulary = 300")
            .empty());
  CHECK(message_of("[pipeline]\nstages = 31\n[model.new]\nn_layer = 31\n[network]\nlatency = [" +
                   repeated(29, "0.1, ") + "0.1]")
            .empty());
}

TEST_CASE("letters outside ASCII are for text and comments of a deck") {
  CHECK(message_of("\xEF\xBB\xBF# \u00e9\n[model]\npath = \"\u030b\"\n[data]\ntrain = '\u00e9'")
            .empty());
  CHECK_THAT(
      message_of("[data]\ntrain = [ # \u030b\n] # \u030b\n[network]\nforward = [ {a.\"\u030b\" = "
                 "1, \"\u030b\" = [] }, {} ]"),
      Catch::Contains("unknown key") || Catch::Contains("network.forward"));
}

TEST_CASE("a line that a backslash joins may begin with any letter") {
  const auto path = [](const std::string& text) {
    return parse_deck("[model]\npath = \"\"\"" + text + "\"\"\"\n[training]\nsteps = 3", "d.toml")
        .model.path;
  };
  CHECK(path("a\\\n  \u00e9b") == "a\u00e9b");
  CHECK(path("\u00e4 \\\r\n\r\n\t\U0001F600\\\n\u00e9\u00e9 \\\nz") ==
        "\u00e4 \U0001F600\u00e9\u00e9 z");
  CHECK(path("\\\\\n\u00e9") == "\\\n\u00e9");  // an escaped backslash joins nothing
  // Places of later mistakes stay theirs.
  CHECK_THROWS_WITH(
      parse_deck("[model]\npath = \"\"\"a\\\n\u00e9\"\"\"\n[training]\nstepz = 3", "d.toml"),
      Catch::Contains("d.toml:5:1"));
  const Settings given = parse_deck("", "d.toml", {"model.path=\"\"\"a\\\n \u00e9\"\"\""});
  CHECK(given.model.path == "a\u00e9");
}

TEST_CASE("no text of a deck holds a NUL") {
  CHECK(message_of("[model]\npath = \"a\\u0000b\"") ==
        "d.toml:2:1: model.path holds a NUL character (got a\\x00b)");
  CHECK_THAT(message_of("[data]\ntrain = [\"a\", \"b\\u0000\"]\n[model]\npath = \"m\""),
             Catch::Contains("data.train holds a NUL"));
}

TEST_CASE("contradictions are refused") {
  check_all({
      {"[pipeline]\nstages = 3\npartition = [2, 2]\n",
       {},
       {"d.toml:3:1: pipeline.partition needs one number per stage (got 2 for 3 stages)"}},
      {"[pipeline]\nstages = 2\npartition = [2, 3]\n", {}, {"5 of 4 blocks"}},
      {"[pipeline]\nstages = 5\n", {}, {"d.toml:2:1:", "5 stages, 4 blocks"}},
      {"[training]\nepochs = 0\n", {}, {"d.toml:2:1: the training has no steps and no epochs"}},
      {"[training]\nsteps = 3\n[training.optimizer]\nwarmup_steps = 4\n", {}, {"4 of 3 steps"}},
      {"[training]\nmicro_batches = 65536\nmicro_batch_size = 65536\n",
       {},
       {"d.toml:2:1: training.micro_batch_size x", "65536 x 65536 x 1024", "2^31"}},
      {"[model]\npath = 'm'\n[data]\nsequence_length = 32768\n[training]\nmicro_batches = 65536\n",
       {},
       {"d.toml:6:1: training.micro_batch_size x"}},
      {"[training]\nrecompute_stages = [1]\n", {}, {"names a stage that does not exist (got 1)"}},
      {"[boundary.backward]\ncodec = \"aqsgd\"\n",
       {},
       {"d.toml:2:1: boundary.backward.codec cannot be aqsgd", "\"directq\""}},
      {"[boundary.forward]\ncodec = \"aqsgd\"\nfeedback.kind = \"ef\"\n",
       {},
       {"d.toml:3:10: boundary.forward: AQ-SGD's next change", "use codec = \"directq\""}},
      {"[boundary.backward]\nfeedback.kind = \"ef\"\ncodec = \"bf16\"\n",
       {},
       {"d.toml:2:10: boundary.backward: 16-bit values are sent without error feedback"}},
      {"[boundary.forward]\ncodec = \"topk\"\nsparse.values = \"codes\"\nquantizer.scale = "
       "\"channel\"\n",
       {},
       {"d.toml:4:11: boundary.forward: the values that topk chooses have no tokens",
        "use scale = \"tile\""}},
      {"[boundary.backward]\ncodec = \"aqsgd_topk\"\n",
       {},
       {"d.toml:2:1: boundary.backward.codec cannot be aqsgd_topk", "\"ef21\""}},
      {"[boundary.forward]\ncodec = \"directq\"\nfeedback.kind = \"mixed\"\n",
       {},
       {"d.toml:3:10: boundary.forward: mixed error feedback", "codec = \"topk\""}},
      {"[boundary.forward]\ncodec = \"aqsgd_topk\"\nfeedback.kind = \"ef21\"\n",
       {},
       {"d.toml:3:10: boundary.forward: AQ-SGD's next change", "(got feedback.kind = \"ef21\")"}},
      {"[boundary.forward]\ncodec = \"topk\"\nsparse.values = \"codes\"\nquantizer.step = 1\n",
       {},
       {"d.toml:4:11: boundary.forward: steps of a fraction of the RMS require entropy coding",
        "use step = 0, or codec = \"directq\" or \"aqsgd\""}},
      {"[boundary.forward]\ntopk = 0\n", {}, {"d.toml:2:"}},
      {"[boundary.forward]\ncodec = \"aqsgd\"\nquantizer.step = 1\nquantizer.scale = \"channel\"\n",
       {},
       {"d.toml:4:11: boundary.forward: a scale per channel", "use scale = \"tile\""}},
      {"[boundary.backward]\ncodec = \"fp16\"\nquantizer.entropy_coding = true\n",
       {},
       {"d.toml:3:11: boundary.backward: 16-bit values are sent without entropy coding"}},
      {"[boundary.forward]\ncodec = \"aqsgd\"\nquantizer.step = 0.005\n",
       {},
       {"d.toml:3:", "quantizer.step is out of range (got 0.005", "0 or 0.01 to 2.5"}},
      {"[boundary.forward]\ncodec = \"topk\"\nrate = 2\n",
       {},
       {"d.toml:3:1: boundary.forward: a rate or an error is held by the steps of codes (got codec "
        "= "
        "\"topk\")",
        "codec = \"auto\""}},
      {"[boundary.backward]\ncodec = \"fp16\"\nquantizer.error = 0.1\n",
       {},
       {"d.toml:3:11: boundary.backward: a rate or an error is held by"}},
      {"[boundary.backward]\ncodec = \"auto\"\nrate = 3\nquantizer.error = 0.1\n",
       {},
       {"d.toml:4:11: boundary.backward: rate and quantizer.error exclude each other"}},
      {"pipeline.stages = 4\n[boundary.forward]\ncodec = \"auto\"\nrate = [2, 3]\n",
       {},
       {"d.toml:4:1: boundary.forward: rate needs one value or one per boundary (got 2 "
        "values, 3 boundaries)"}},
      {"pipeline.stages = 3\n[boundary.forward]\ncodec = \"auto\"\nrate = [2, 3]\nquantizer.budget "
       "= "
       "\"time\"\n",
       {},
       {"d.toml:4:1: boundary.forward: budget = \"time\" shares one mean"}},
      {"[boundary.forward]\nrate = 0.05\n", {}, {"d.toml:2:8:", "0 or 0.1 to 16"}},
      {"[boundary.forward]\nrate = [2, \"3\"]\n", {}, {"d.toml:2:12:", "list of these"}},
      {"[boundary.forward]\nquantizer.error = 1\n", {}, {"d.toml:2:19:", "0 to below 1"}},
      {"[boundary.forward]\nquantizer.step = 2.6\n", {}, {"d.toml:2:18:", "0 or 0.01 to 2.5"}},
      {"[boundary.forward]\nmemory.first_visit_step = 2.6\n", {}, {"d.toml:2:27:", "0.01 to 2.5"}},
      {"[boundary.forward]\ncodec = \"auto\"\nquantizer.step = 2\nquantizer.rounding = "
       "\"stochastic\"\n",
       {},
       {"d.toml:3:11: boundary.forward: with stochastic rounding in steps above 1.9",
        "a step up to 1.9"}},
      {"[boundary.forward]\ncodec = \"aqsgd_topk\"\nmemory.first_visit = \"steps\"\n",
       {},
       {"d.toml:3:8: boundary.forward: first visits in steps", "or codec = \"aqsgd\""}},
      {"[model.new]\nn_head = 3\n", {}, {"3 heads, 256 channels"}},
      {"[data]\nsequence_length = 2000\n", {}, {"2000 tokens, 1024 positions"}},
      {"[data]\ntrain = \"a.txt\"\n", {}, {"a new model has no tokenizer", "train_vocabulary"}},
      {"[data]\nvalidation = [\"\"]\n", {}, {"data.validation holds an empty name"}},
      {"[data]\njsonl_fields = []\n", {}, {"names no field"}},
      {"[tokenizer]\ntrain_vocabulary = 256\n", {}, {"(got 256)", "at least 257"}},
      {"[tokenizer]\npath = \"t\"\ntrain_vocabulary = 300\n", {}, {"exclude each other"}},
      {"[model]\npath = \"m\"\n[tokenizer]\ntrain_vocabulary = 300\n",
       {},
       {":4:", "model.path and tokenizer.train_vocabulary", "(got m)", "to 0"}},
      {"[pipeline]\nstages = 4\n[network]\nbandwidth = [1, 2]\n",
       {},
       {"d.toml:4:1: network bandwidth needs one value or one per boundary (got 2 values, 3"}},
      {"[pipeline]\nstages = 4\n[network]\nwire = \"rank\"\nbandwidth = [1, 2, 3]\n",
       {},
       {"d.toml:5:1: network bandwidth needs one value or one per stage (got 3 values, 4 stages"}},
      {"[network]\nwire = \"rank\"\n[network.forward]\nlatency = 1\n",
       {},
       {"d.toml:4:1: [network.forward] means nothing with network.wire"}},
      {"[network.backward]\nlatency = [1, 2]\n", {}, {"d.toml:2:1: network latency needs"}},
  });
  CHECK(message_of("[data]\ntrain = \"a.h5\"\n").empty());
  CHECK(message_of("[model]\npath = \"m\"\n[data]\ntrain = \"a.txt\"\nsequence_length = 2000\n"
                   "[pipeline]\nstages = 12\n")
            .empty());
}

TEST_CASE("a mistake that shows later is reported with the place of its key") {
  DeckPlaces places;
  parse_deck("[data]\n  sequence_length = 64\n[training]\nmicro_batches = 2\n", "d.toml",
             {"training.micro_batch_size=3", "training.micro_batches=4"}, &places);
  const auto told = [&](Mistake mistake) -> std::string {
    try {
      with_places(places, [&] { throw UserError(mistake); });
    } catch (const UserError& error) {
      CHECK(error.mistake().keys == mistake.keys);
      return error.what();
    }
    return "";
  };
  CHECK(told({.what = "too long", .value = "64", .keys = {"data.sequence_length"}}) ==
        "d.toml:2:3: too long (got 64)");
  // The first key that was given, and the override in place of the deck's line.
  CHECK(told({.what = "too large", .keys = {"cache.budget", "training.micro_batches"}}) ==
        "argument 'training.micro_batches=4': too large");
  CHECK(told({.what = "too large", .keys = {"cache.budget", "cache.directory"}}) ==
        "d.toml: too large");
  CHECK(told({.what = "broken", .file = "a.txt", .line = 4, .keys = {"data.sequence_length"}}) ==
        "a.txt:4: broken");
  CHECK(told({.what = "the disk is full"}) == "the disk is full");
  CHECK_NOTHROW(with_places(places, [] {}));
  CHECK_THROWS_AS(with_places(places, [] { throw InternalError("bug"); }), InternalError);
}

TEST_CASE("a model on the command line takes the place of the deck's new one") {
  const std::string deck = "[tokenizer]\ntrain_vocabulary = 300\n[model.new]\nn_layer = 2\n";
  const Settings settings = parse_deck(deck, "d.toml", {"model.path=m"});
  CHECK(settings.model.path == "m");
  CHECK(settings.tokenizer.train_vocabulary == 0);
  CHECK(parse_deck(effective_deck(settings), "again") == settings);
  CHECK(parse_deck(deck, "d.toml", {"model.path="}).tokenizer.train_vocabulary == 300);
  // Both in the deck, or both on the command line, contradict each other.
  const std::string both = "[model]\npath = \"m\"\n" + deck;
  CHECK_THAT(message_of(both), Catch::Contains("exclude each other"));
  CHECK_THAT(message_of(both, {"data.shuffle=false"}), Catch::Contains("exclude each other"));
  CHECK_THAT(message_of("", {"model.path=m", "tokenizer.train_vocabulary=300"}),
             Catch::Contains("exclude each other"));
  CHECK_THAT(message_of("[model]\npath = \"m\"\n", {"tokenizer.train_vocabulary=300"}),
             Catch::Contains("exclude each other"));
}

TEST_CASE("unreadable decks are refused") {
  const auto path = std::filesystem::temp_directory_path() / "deltapipe_deck_test.toml";
  CHECK_THROWS_WITH(read_deck("/does/not/exist.toml"),
                    Catch::StartsWith("/does/not/exist.toml: cannot be read: No such file"));
  CHECK_THROWS_WITH(read_deck("/"), Catch::Contains("not a directory"));
  CHECK_THROWS_WITH(read_deck("/dev/zero"), Catch::Contains("this is a device"));
  std::ofstream(path) << "[training]\nsteps = 3\n";
  CHECK(read_deck(path.string()).training.steps == 3);
  CHECK_THROWS_WITH(read_deck(path.string(), {"training.stepz=4"}), Catch::Contains("'steps'"));
  std::filesystem::remove(path);
}

TEST_CASE("A stored deck may have keys that were removed since") {
  Settings settings;
  std::string text = effective_deck(settings);
  const std::string section = "[checkpoint]\n";
  text.insert(text.find(section) + section.size(), "resume = \"auto\"\n");
  CHECK(parse_stored_deck(text, "its deck") == settings);
  CheckpointMarker marker;
  marker.deck = text;
  CHECK_NOTHROW(check_deck_of_restart(settings, marker));
  settings.training.seed = 7;
  CHECK_THROWS_WITH(check_deck_of_restart(settings, marker), Catch::Contains("training.seed"));
  // A user's deck may not; and no version had these keys.
  CHECK_THROWS_WITH(parse_deck(text, "d.toml"), Catch::Contains("unknown key 'resume'"));
  CHECK_THROWS_WITH(parse_stored_deck("[checkpoint]\nresumes = 1\n", "its deck"),
                    Catch::Contains("unknown key 'resumes'") &&
                        Catch::Contains("another version of deltapipe wrote it") &&
                        !Catch::Contains("did you mean"));
}

TEST_CASE("the reference names every key of the effective deck") {
  const std::string reference = deck_reference(), text = effective_deck(Settings{});
  std::size_t keys = 0;
  for (std::size_t begin = 0, end; begin < text.size(); begin = end + 1) {
    end = text.find('\n', begin);
    const std::string line = text.substr(begin, end - begin);
    if (line.find(" = ") == std::string::npos) continue;
    CHECK_THAT(reference, Catch::Contains("| `" + line.substr(0, line.find(' ')) + "` |"));
    ++keys;
  }
  CHECK(keys > 70);
}

TEST_CASE("quantities keep their value through text") {
  using namespace deltapipe::deck;
  CHECK(parse_quantity("8GiB", kSizeUnits) == 8.0 * (1 << 30));
  CHECK(parse_quantity(" 1.5  kB", kSizeUnits) == 1500);
  CHECK(parse_quantity("10Gbit/s", kBandwidthUnits) == 1e10);
  CHECK(parse_quantity("50us", kDurationUnits) == 50e-6);
  CHECK(parse_quantity("1.5 h", kLongDurationUnits) == 5400);
  CHECK_FALSE(parse_quantity("5 ms", kLongDurationUnits));
  CHECK(format_quantity(1200, kLongDurationUnits) == "20 min");
  CHECK(parse_quantity("1e-3", kDurationUnits) == 1e-3);
  for (const char* bad : {"", "GiB", "-1 GiB", "1 GiB x", "nan", "inf", "1e400", "1 gib", "+1 B"}) {
    INFO(bad);
    CHECK_FALSE(parse_quantity(bad, kSizeUnits));
  }
  CHECK(format_quantity(1e8, kBandwidthUnits) == "100 Mbit/s");
  CHECK(format_quantity(8.0 * (1 << 30), kSizeUnits) == "8 GiB");
  CHECK(format_quantity(0.001, kDurationUnits) == "1 ms");
  CHECK(format_quantity(0, kDurationUnits) == "0");
  for (const double value : {0.0, 1.0, 3e-9, 1.0 / 3, 1e-300, 123456789.125, 1e8, 1e300}) {
    for (const std::span<const Unit> units : std::initializer_list<std::span<const Unit>>{
             kSizeUnits, kBandwidthUnits, kDurationUnits, kLongDurationUnits}) {
      CHECK(parse_quantity(format_quantity(value, units), units) == value);
    }
  }
}

TEST_CASE("edit distances are Levenshtein's") {
  using namespace deltapipe::deck;
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("bits", "bits") == 0);
  CHECK(edit_distance("abc", "") == 3);
  const std::vector<std::string> words = {"steps", "epochs"};
  CHECK(nearest("setps", words) == "steps");
  CHECK(nearest("banana", words).empty());
}

TEST_CASE("the decks in inputs are valid") {
  std::size_t decks = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(DELTAPIPE_FIXTURES "/../../inputs")) {
    if (entry.path().extension() != ".toml") continue;
    INFO(entry.path());
    const Settings settings = read_deck(entry.path().string());
    CHECK(parse_deck(effective_deck(settings), "effective") == settings);
    ++decks;
  }
  CHECK(decks >= 4);
}

TEST_CASE("error feedback of gradients is kept in every storage", "[deck]") {
  const std::string storage = GENERATE("fp32", "fp16", "8bit", "4bit");
  const std::string feedback = GENERATE("ef", "ef21");
  CHECK_NOTHROW(parse_deck("[boundary.backward]\ncodec = \"topk\"\nfeedback.kind = \"" + feedback +
                               "\"\n[cache]\nstorage = \"" + storage + "\"\n",
                           "d.toml"));
}
