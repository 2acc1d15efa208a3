// Texts of models: merged over files, changed by names, printed, compared.
#include "engine/recipe/text.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "engine/recipe/load.h"
#include "engine/recipe/print.h"
#include "engine/recipe/study.h"
#include "tests/recipe/test_files.h"

namespace engine::recipe {
namespace {

constexpr const char* kBase = R"(
[model]
dims = { D = 64, F = 96 }
main = [
  { do = "embedding", as = "embedding.tokens", of = "tokens", rows = "V", width = "D" },
  { do = "stack", as = "layers", repeat = 2, layer = ["mlp"] },
  { do = "linear", as = "head", out = ["V"] },
]
[block.mlp]
steps = [
  { do = "linear", as = "fc1", of = "x", out = ["F"] },
  { do = "act", as = "act", act = "relu" },
]
[data]
source = "random"
sequence_length = 8
[optimizer]
learning_rate = 1e-3
[training]
global_batch = 1
micro_batch = 1
iterations = 1
)";

Recipe Loaded(const LoadResult& result) {
  std::string errors;
  for (const Diagnostic& diagnostic : result.diagnostics) errors += Format(diagnostic);
  INFO(errors);
  REQUIRE(result.ok());
  return result.recipe;
}

Recipe With(const std::vector<std::string>& sets) { return Loaded(LoadText(kBase, "base.toml", {sets, ""})); }

// "key: before → after", one a line.
std::string Changes(const Recipe& before, const Recipe& after) {
  std::string text;
  for (const Change& change : Diff(before, after))
    text += change.key + ": " + change.before + " -> " + change.after + "\n";
  return text;
}

Recipe Extending(const std::string& text) {
  const TemporaryFolder folder;
  folder.Write("base.toml", kBase);
  return Loaded(Load(folder.Write("child.toml", "extends = 'base.toml'\n" + text)));
}

}  // namespace

TEST_CASE("texts: steps make a model of its own family, and keys of a decoder are not asked for") {
  const Recipe recipe = With({});
  CHECK(recipe.is_text());
  CHECK(LoadText("[model]\ndims = { D = 4 }\n", "dims.toml").ok() == false);  // dims of no steps
}

TEST_CASE("texts: what is printed is the same recipe") {
  const Recipe recipe = With({"model.dims.F=128", "model.main.layers.repeat=3"});
  const std::string printed = ToToml(recipe);
  const Recipe again = Loaded(LoadText(printed, "printed.toml"));
  CHECK(Changes(recipe, again).empty());
  CHECK(HashOfValues(recipe) == HashOfValues(again));
  CHECK(ToToml(again).substr(0, 200) != "");
}

TEST_CASE("texts: a changed dim and a changed step are one row each, by name") {
  CHECK(Changes(With({}), With({"model.dims.F=128"})) == "model.dims.F: 96 -> 128\n");
  CHECK(Changes(With({}), With({"model.main.layers.repeat=3"})) == "model.main.layers.repeat: 2 -> 3\n");
  CHECK(Changes(With({}), With({"block.mlp.steps.act.act=gelu_tanh"})) ==
        "block.mlp.act.act: \"relu\" -> \"gelu_tanh\"\n");
  CHECK(HashOfValues(With({})) != HashOfValues(With({"model.dims.F=128"})));
}

TEST_CASE("texts: where a value comes from is its own place, and the step's where the step does not say it") {
  const Recipe recipe = With({"block.mlp.steps.fc1.out=[\"2*F\"]", "model.dims.D=32"});
  CHECK(OriginOf(With({}), "block.mlp.fc1.out") == "base.toml:11:48");
  CHECK(OriginOf(recipe, "block.mlp.fc1.out") == "--set:1:25");
  CHECK(OriginOf(recipe, "block.mlp.fc1.of") == "base.toml:11:37");
  CHECK(OriginOf(recipe, "block.mlp.fc1.bias") == "base.toml:11:3");  // of the step
  CHECK(OriginOf(recipe, "block.mlp.fc1") == "base.toml:11:3");
  CHECK(OriginOf(recipe, "block.mlp.none") == "base.toml:10:9");  // of the list
  CHECK(OriginOf(recipe, "model.dims.D") == "--set:2:14");
  CHECK(OriginOf(recipe, "model.dims.F") == "base.toml:3:22");
  CHECK(OriginOf(recipe, "training.seed") == "default");
}

TEST_CASE("texts: a step that becomes another module's is a row, as are its attributes where it does not") {
  const Recipe other = Extending(
      "[[model.replace]]\nblock = 'mlp'\nstep = 'act'\nwith = { do = 'softcap', as = 'act', cap = 5.0 }\n");
  CHECK(Changes(With({}), other) ==
        "block.mlp.act: { do = \"act\", as = \"act\", act = \"relu\" } -> { do = \"softcap\", as = \"act\", "
        "cap = 5.0 }\n");
  // The order in which a step says its attributes is no difference.
  const Recipe turned = Extending(
      "[[model.replace]]\nblock = 'mlp'\nstep = 'act'\nwith = { act = 'relu', as = 'act', do = 'act' }\n");
  CHECK(Changes(With({}), turned).empty());
}

TEST_CASE("texts: a step that is added is a row, and the order another") {
  const Recipe after =
      Extending("[[model.after]]\nstep = 'layers'\nwith = { do = 'rms_norm', as = 'norm' }\n");
  CHECK(Changes(With({}), after) ==
        "model.main: [embedding.tokens, layers, head] -> [embedding.tokens, layers, norm, head]\n"
        "model.main.norm: none -> { do = \"rms_norm\", as = \"norm\" }\n");
  const Recipe removed = Extending("[[model.remove]]\nblock = 'mlp'\nstep = 'act'\n");
  CHECK(Changes(With({}), removed) ==
        "block.mlp.act: { do = \"act\", as = \"act\", act = \"relu\" } -> none\n"
        "block.mlp: [fc1, act] -> [fc1]\n");
}

TEST_CASE("texts: a later list of steps replaces, a table changes, a name with dots is found") {
  const Recipe table =
      Extending("[model]\nmain.embedding.tokens = { width = 'F' }\nmain.\"head\" = { bias = true }\n");
  CHECK(Changes(With({}), table).find("model.main.embedding.tokens.width: ") != std::string::npos);
  CHECK(Changes(With({}), table).find(" -> \"F\"\n") != std::string::npos);
  CHECK(Changes(With({}), table).find("model.main.head.bias: none -> true\n") != std::string::npos);
  CHECK(Changes(table, With({})).find("model.main.head.bias: true -> none\n") != std::string::npos);
  const Recipe list =
      Extending("[block.mlp]\nsteps = [ { do = 'act', as = 'only', of = 'x', act = 'relu' } ]\n");
  CHECK(Changes(With({}), list).find("block.mlp: [fc1, act] -> [only]") != std::string::npos);
  const Recipe replaced = Extending(
      "[[model.replace]]\nstep = 'head'\nwith = [ { do = 'scale', as = 'a', by = 2 }, { do = "
      "'linear', as = 'b', out = ['V'] } ]\n");
  CHECK(Changes(With({}), replaced).find("[embedding.tokens, layers, a, b]") != std::string::npos);
}

TEST_CASE("texts: an ablation varies dims and steps") {
  const TemporaryFolder folder;
  folder.Write("base.toml", kBase);
  const std::string path =
      folder.Write("study.toml",
                   "[study]\nbase = 'base.toml'\nmetric = 'train_loss'\nmetric_iterations = 1\n"
                   "[grid.model.dims]\nF = [96, 192]\n"
                   "[grid.block.mlp.steps.act]\nact = ['relu', 'silu']\n");
  const StudyResult result = LoadStudy(path);
  std::string errors;
  for (const Diagnostic& diagnostic : result.diagnostics) errors += Format(diagnostic);
  INFO(errors);
  REQUIRE(result.ok());
  REQUIRE(result.study.variants.size() == 4);
  CHECK(Changes(result.study.base, result.study.variants[3].recipe) ==
        "model.dims.F: 96 -> 192\nblock.mlp.act.act: \"relu\" -> \"silu\"\n");
}

}  // namespace engine::recipe
