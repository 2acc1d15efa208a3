#include "engine/recipe/study.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>

#include "tests/recipe/test_files.h"

namespace engine::recipe {
namespace {

struct StudyFile {
  StudyFile() { folder.Write("base.toml", BaseRecipe()); }

  StudyResult Load(const std::string& text, const LoadOptions& options = {}) const {
    return LoadStudy(folder.Write("study.toml", text), options);
  }
  // "line:column: message | hint" of each, one a line.
  std::string Errors(const std::string& text) const {
    std::string errors;
    for (const Diagnostic& d : Load(text).diagnostics) {
      if (!errors.empty()) errors += "\n";
      errors += fmt::format("{}:{}: {}{}{}", d.span.line, d.span.column, d.message,
                            d.hint.empty() ? "" : " | ", d.hint);
    }
    return errors;
  }

  TemporaryFolder folder;
};

std::string Names(const Study& study) {
  std::string names;
  for (const Variant& variant : study.variants) names += (names.empty() ? "" : " ") + variant.name;
  return names;
}

const std::string kHead = "[study]\nbase = \"base.toml\"\nmetric = \"train_loss\"\nmetric_iterations = 1\n";

}  // namespace

TEST_CASE("study: named variants, with the base first unless it is one of them") {
  const StudyFile file;
  const StudyResult with = file.Load(kHead + "[variants.fast]\noptimizer.learning_rate = 0.5\n");
  REQUIRE(with.ok());
  CHECK(Names(with.study) == "base fast");
  CHECK(with.study.variants[0].recipe.optimizer.learning_rate == with.study.base.optimizer.learning_rate);
  CHECK(with.study.variants[1].recipe.optimizer.learning_rate == 0.5);
  CHECK(with.study.variants[1].span.line == 5);
  CHECK(with.study.seeds == std::vector<std::int64_t>{with.study.base.training.seed});
  CHECK(with.study.title == "study");
  // Where the value comes from.
  const Provenance& place = with.study.variants[1].recipe.provenance.at("optimizer.learning_rate");
  CHECK(place.span.file == file.folder.Path("study.toml"));
  CHECK(place.span.line == 6);

  const StudyResult named = file.Load(kHead +
                                      "title = \"A title\"\nseeds = [3, 1]\n[variants.slow]\n"
                                      "optimizer = { learning_rate = 1e-9 }\n[variants.usual]\n");
  REQUIRE(named.ok());
  CHECK(Names(named.study) == "slow usual");
  CHECK(named.study.seeds == std::vector<std::int64_t>{3, 1});
  CHECK(named.study.title == "A title");
  CHECK(named.study.metric == "train_loss");
  CHECK(named.study.metric_iterations == 1);
}

TEST_CASE("study: a grid is all combinations, the last factor fastest") {
  const StudyFile file;
  const StudyResult grid = file.Load(kHead +
                                     "[grid]\noptimizer.learning_rate = [1e-3, 0.5]\nmodel.mlp = [{ "
                                     "activation = \"swiglu\", hidden = 64 }, { hidden = 96 }]\n");
  REQUIRE(grid.ok());
  CHECK(Names(grid.study) ==
        "activation=swiglu,hidden=64,learning_rate=0.001 hidden=96,learning_rate=0.001 "
        "activation=swiglu,hidden=64,learning_rate=0.5 hidden=96,learning_rate=0.5");
  CHECK(grid.study.variants[2].recipe.model.mlp.hidden == 64);
  CHECK(grid.study.variants[2].recipe.optimizer.learning_rate == 0.5);
}

TEST_CASE("study: one factor at a time, beside the base; the base's own value is not run twice") {
  const StudyFile file;
  LoadOptions options;
  options.sets = {"optimizer.learning_rate=0.25"};
  const StudyResult one = file.Load(
      kHead + "[one_at_a_time]\noptimizer.learning_rate = [0.125, 0.25, 0.5]\noptimizer.beta2 = [0.9]\n",
      options);
  REQUIRE(one.ok());
  CHECK(Names(one.study) == "base learning_rate=0.125 learning_rate=0.5 beta2=0.9");
  CHECK(one.study.variants[3].recipe.optimizer.learning_rate == 0.25);
}

TEST_CASE("study: lists are values too, and names are those of folders") {
  const StudyFile file;
  const StudyResult lists = file.Load(kHead + "[grid]\ndata.paths = [[\"a/b\"], [\"c\", \"d e\"]]\n");
  REQUIRE(lists.ok());
  CHECK(Names(lists.study) == "paths=a-b paths=c,de");
}

TEST_CASE("study: mistakes are told at their place, with what would be right") {
  const StudyFile file;
  const std::string variant = "[variants.v]\noptimizer.beta2 = 0.5\n";
  const auto check = [&](const std::string& text, const std::string& expected) {
    CAPTURE(text);
    CHECK(file.Errors(text) == expected);
  };
  check("",
        "1:1: a study needs variants | one of [variants.NAME], [grid] and [one_at_a_time]\n"
        "1:1: study.base is required | the path of a recipe, relative to the study");
  check("[study]\n" + variant, "1:1: study.base is required | the path of a recipe, relative to the study");
  check(kHead, "1:1: a study needs variants | one of [variants.NAME], [grid] and [one_at_a_time]");
  check(kHead + "[variants.v]\ncheckpoint.upload = \"s3://runs/all\"\n",
        "5:11: variant 'v' keeps its checkpoints in s3://runs/all, which is a place for one run, and a study "
        "has several | "
        "checkpoint.upload = \"\" keeps those of each run in its folder");
  check("base = \"base.toml\"\nseeds = [1]\n" + variant,
        "1:1: unknown key 'base' of a study | it is a key of [study]: write that line above it\n"
        "2:1: unknown key 'seeds' of a study | it is a key of [study]: write that line above it");
  check("[study]\nbase = 3\n" + variant, "2:8: study.base must be a path, found the integer 3");
  check(kHead + "seed = [1]\n" + variant, "5:1: unknown key 'seed' in [study] | did you mean 'seeds'?");
  check(kHead + "[variant.v]\n", "5:2: unknown section 'variant' of a study | did you mean 'variants'?");
  check(kHead + "seeds = []\n" + variant,
        "5:9: study.seeds is empty | leave it out to train with the base's seed");
  check(kHead + "seeds = [1, 1]\n" + variant, "5:13: seed 1 is there twice");
  check(kHead + "seeds = [\"1\"]\n" + variant,
        "5:10: training.seed must be an integer, found the string \"1\"");
  check("[study]\nbase = \"base.toml\"\nmetric = \"train_los\"\n" + variant,
        "3:10: study.metric must be one of \"validation_loss\", \"train_loss\", found the string "
        "\"train_los\" | "
        "did you mean \"train_loss\"?");
  check("[study]\nbase = \"base.toml\"\nmetric_iterations = 0\n" + variant,
        "3:21: study.metric_iterations must be at least 1, found 0");
  const std::string metric = "[study]\nbase = \"base.toml\"\nmetric = \"train_loss\"\n";
  check(
      metric + "metric_iterations = 1000\n" + variant,
      "4:21: the metric is a mean of 1000 iterations, but variant 'base' has 100, and 1 more have too few | "
      "metric_iterations = 100, or less");
  check(kHead + "[variants.v]\noptimizer.beta = 0.5\n",
        "6:11: unknown key 'beta' in [optimizer] | did you mean 'beta1'?");
  check(kHead + "[variants.v]\noptimizer.beta2 = 2\n",
        "6:19: optimizer.beta2 must be at least 0 and less than 1, found 2");
  check(kHead + "[variants.\"a/b\"]\n",
        "5:11: 'a/b' is no name for a variant | letters, digits and _ - + = , . and at most 100 of them: a "
        "folder is called so");
  check(kHead + "[variants]\nv = 3\n",
        "6:5: variants.v must be a table, found the integer 3 | write [variants.v], and keys of a recipe "
        "below");
  check(kHead + "[variants.a]\n[variants.b]\n", "6:11: the variants 'a' and 'b' are the same recipe");
  check(kHead + "[variants.base]\noptimizer.beta2 = 0.5\n",
        "5:11: the variant 'base' is not the base recipe, which is run under that name | another name");
  check(kHead + variant + "[grid]\noptimizer.beta2 = [0.5]\n",
        "7:2: [grid] beside [variants]: a study has one of them");
  check(kHead + "[grid]\n", "5:2: [grid] is empty | such as optimizer.learning_rate = [1e-3, 3e-3]");
  check(kHead + "[grid]\noptimizer.beta2 = 0.5\n",
        "6:19: beta2 must be a list of the values to try, found the float 0.5");
  check(kHead + "[grid]\noptimizer.beta2 = []\n",
        "6:19: beta2 must be a list of the values to try, found an empty one");
  check(kHead + "[grid]\noptimizer.beta2 = [0.5, 3]\n",
        "6:25: optimizer.beta2 must be at least 0 and less than 1, found 3");
  check(kHead + "[grid]\noptimizer.beta = [0.5]\n",
        "6:11: unknown key 'beta' in [optimizer] | did you mean 'beta1'?");
  check(kHead + "[grid]\noptimizer.beta2 = [0.5, 0.5]\n",
        "5:2: two variants are called 'beta2=0.5' | give them names: [variants.NAME]");
  check("[study]\nbase = \"base.toml\"\n" + variant,
        "2:8: the metric is validation_loss, but variant 'base' never evaluates: evaluation.interval is 0 | "
        "set evaluation.interval in the base recipe, or metric = \"train_loss\"\n"
        "2:8: the metric is validation_loss, but variant 'v' never evaluates: evaluation.interval is 0 | "
        "set evaluation.interval in the base recipe, or metric = \"train_loss\"");
  check("[study\n", "1:7: not valid TOML: table header: expected ']', saw '\\n'");
}

TEST_CASE("study: a base that is wrong, missing or too large a grid") {
  const StudyFile file;
  const std::string missing = file.Errors("[study]\nbase = \"none.toml\"\n[variants.v]\n");
  CHECK(missing.find("2:8: the base recipe has errors") != std::string::npos);
  CHECK(missing.find("none.toml") != std::string::npos);
  file.folder.Write("bad.toml", "[model]\nlayer = 3\n");
  const std::string bad = file.Errors("[study]\nbase = \"bad.toml\"\n[variants.v]\n");
  CHECK(bad.find("2:1: unknown key 'layer' in [model]") != std::string::npos);
  std::string many = "[";
  for (int i = 0; i < 40; ++i) many += fmt::format("0.{}, ", 100 + i);
  const std::string large =
      file.Errors(kHead + "[grid]\noptimizer.beta1 = " + many + "]\noptimizer.beta2 = " + many + "]\n");
  CHECK(large == "5:2: the grid has more than 1000 variants");
  CHECK(LoadStudy(file.folder.Path("nothing.toml")).diagnostics.size() == 1);
}

TEST_CASE("study: mistakes have the study's code, and notes have none") {
  const StudyFile file;
  const StudyResult noted = file.Load(kHead + "[variants.a]\nmodel.attention.rope_base = 5e5\n");
  CHECK(noted.ok());
  REQUIRE(noted.diagnostics.size() == 1);
  CHECK(noted.diagnostics[0].severity == Severity::kNote);
  CHECK(noted.diagnostics[0].code.empty());
  const StudyResult wrong = file.Load(kHead + "[variants.a]\n[varants.b]\n");
  REQUIRE_FALSE(wrong.diagnostics.empty());
  CHECK(wrong.diagnostics[0].code == kBadStudy);
}

}  // namespace engine::recipe
