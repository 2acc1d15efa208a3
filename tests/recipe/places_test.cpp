// Where mistakes are reported that stand nowhere: keys that are missing, and rules that only defaults break.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "engine/recipe/load.h"
#include "engine/recipe/study.h"
#include "tests/recipe/test_files.h"

namespace engine::recipe {
namespace {

// "file:line:column" of the diagnostic with that message, and the line that is shown.
std::string PlaceOf(const LoadResult& result, const std::string& message) {
  for (const Diagnostic& d : result.diagnostics) {
    if (d.message != message) continue;
    return fmt::format("{}:{}:{} {}", std::filesystem::path(d.span.file).filename().string(), d.span.line,
                       d.span.column, d.source_line);
  }
  return "no such diagnostic";
}

}  // namespace

TEST_CASE("a missing key is reported at its section, wherever that is; else at extends; else at the top") {
  const TemporaryFolder folder;
  folder.Write("model.toml", "# a part\n[model]\nlayers = 2\n[model.attention]\nkv_heads = 1\n");
  const std::string path =
      folder.Write("main.toml", "# a recipe\nextends = 'model.toml'\n[training]\nmicro_batch = 1\n");
  const LoadResult result = Load(path);
  CHECK(PlaceOf(result, "model.hidden is required") == "model.toml:2:1 [model]");
  CHECK(PlaceOf(result, "model.attention.heads is required") == "model.toml:4:1 [model.attention]");
  CHECK(PlaceOf(result, "training.global_batch is required") == "main.toml:3:1 [training]");
  CHECK(PlaceOf(result, "data.sequence_length is required") == "main.toml:2:1 extends = 'model.toml'");
  CHECK(PlaceOf(result, "nothing says how long the training is") == "main.toml:3:1 [training]");

  // An argument opens no section for the file.
  CHECK(PlaceOf(Load(path, {{"data.split=\"1\""}, ""}), "data.sequence_length is required") ==
        "main.toml:2:1 extends = 'model.toml'");

  const LoadResult alone = Load(folder.Write("alone.toml", "# nothing\n[training]\nmicro_batch = 1\n"));
  CHECK(PlaceOf(alone, "model.hidden is required") == "alone.toml:1:1 # nothing");
  CHECK(PlaceOf(LoadText("", "empty.toml"), "model.hidden is required") == "empty.toml:1:1 ");
}

TEST_CASE("nothing that a readable file does wrong is without a line") {
  const TemporaryFolder folder;
  folder.Write("base.toml", BaseRecipe());
  for (const char* text : {"", "[model]\n", "extends = []\n", "[study]\n", "[study]\nbase = 'base.toml'\n",
                           "[variants.a]\n", "# comment"}) {
    CAPTURE(text);
    const std::string path = folder.Write("x.toml", text);
    const LoadResult recipe = Load(path);
    CHECK(!recipe.ok());
    for (const Diagnostic& d : recipe.diagnostics) CHECK_MESSAGE(d.span.line > 0, d.message);
    const StudyResult study = LoadStudy(path);
    CHECK(!study.ok());
    for (const Diagnostic& d : study.diagnostics) {
      CHECK_MESSAGE(d.span.line > 0, d.message);
      CHECK_MESSAGE(!d.code.empty(), d.message);
    }
  }
}

TEST_CASE("a study where a recipe is asked for: one error, which names the command") {
  const TemporaryFolder folder;
  folder.Write("base.toml", BaseRecipe());
  const std::string path = folder.Write(
      "s.toml", "# what is it\n[study]\nbase = 'base.toml'\n[grid]\noptimizer.learning_rate = [1, 2]\n");
  const LoadResult result = Load(path);
  REQUIRE(result.diagnostics.size() == 1);
  const Diagnostic& d = result.diagnostics[0];
  CHECK(PlaceOf(result, "this is a study, not a recipe") == "s.toml:2:2 [study]");
  CHECK(d.hint ==
        fmt::format("`engine ablate {0}` trains its variants, `engine check {0}` checks them", path));
  CHECK(IsStudy(path));
  CHECK(!IsStudy(folder.Path("base.toml")));
  CHECK(!IsStudy(folder.Path("none.toml")));
  CHECK(!IsStudy(folder.Write("value.toml", "study = 1\n")));
}

TEST_CASE("a batch that a --set of any degree breaks is reported at that --set") {
  const TemporaryFolder folder;
  const std::string path = folder.Write("base.toml", BaseRecipe());
  for (const std::string key : {"dp", "ep"}) {
    const LoadResult result = Load(path, {{"parallelism." + key + "=3"}, ""});
    const std::string product = key == "dp" ? "dp 3 × ep 1" : "dp 1 × ep 3";
    CHECK(PlaceOf(result, "global_batch 16 is not a multiple of micro_batch 2 × " + product + " = 6") ==
          "--set:1:16 parallelism." + key + "=3");
  }
  // What the product of an interleaved pipeline has beside them.
  const std::string chunks = folder.Write("chunks.toml", R"(
extends = "base.toml"
[parallelism]
schedule = "interleaved"
pp = 2
virtual_stages = 2
[offload]
activation_layers = 1
)");
  const auto place = [&](const std::string& set, const std::string& message) {
    return PlaceOf(Load(chunks, {{set}, ""}), message);
  };
  CHECK(
      place("parallelism.dp=8",
            "the interleaved schedule needs microbatches in groups of pp 2, but global_batch 16 / 16 = 1") ==
      "--set:1:16 parallelism.dp=8");
  CHECK(place("parallelism.virtual_stages=4",
              "activation_layers 1, but the smallest chunk of the pipeline has 1 layer, and 2 of each chunk "
              "stay on the device") == "--set:1:28 parallelism.virtual_stages=4");
}

TEST_CASE("a growing batch is reported at a --set that it counts, and at no other") {
  const TemporaryFolder folder;
  folder.Write("base.toml", BaseRecipe());
  const std::string path = folder.Write("grows.toml", R"(
extends = "base.toml"
[training.rampup]
start = 3
increment = 1
samples = 1000
)");
  const LoadOptions pp_2 = {{"parallelism.pp=2"}, ""};
  CHECK(PlaceOf(Load(path, pp_2), "rampup.start 3 is not a multiple of micro_batch 2 × dp 1 × ep 1 = 2") ==
        "grows.toml:4:9 start = 3");
  const std::string chunks = folder.Write("chunks.toml", R"(
extends = "base.toml"
[parallelism]
schedule = "interleaved"
virtual_stages = 2
[training.rampup]
start = 6
increment = 2
samples = 1000
)");
  CHECK(PlaceOf(Load(chunks, pp_2),
                "rampup.start 6 is not a multiple of micro_batch 2 × dp 1 × ep 1 × pp 2 (interleaved) = 4") ==
        "--set:1:16 parallelism.pp=2");
}

TEST_CASE("a program that a --set makes too long is reported at that --set") {
  const TemporaryFolder folder;
  folder.Write("base.toml", BaseRecipe());
  const auto place = [&](const std::string& text, const std::string& set, const std::string& message) {
    const std::string path = folder.Write("long.toml", "extends = \"base.toml\"\n" + text);
    CHECK(PlaceOf(Load(path), message) == "no such diagnostic");
    return PlaceOf(Load(path, {{set}, ""}), message);
  };
  CHECK(place("[parallelism]\ndp = 2\n[training]\nglobal_batch = 6_000_000\n", "parallelism.dp=1",
              "an iteration of 3000000 microbatches × pp 1 × virtual_stages 1 has more than 2000000 turns") ==
        "--set:1:16 parallelism.dp=1");
  CHECK(
      place(
          "[training]\nglobal_batch = 3000\nrampup = { start = 2, increment = 2, samples = 30_000 }\n",
          "training.micro_batch=1",
          "the 1500 sizes from rampup.start 2 to global_batch 3000, each with its own program, have together "
          "more than 2000000 turns of microbatches × pp 1 × virtual_stages 1") ==
      "--set:1:22 training.micro_batch=1");
}

}  // namespace engine::recipe
