#include "engine/recipe/load.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "engine/recipe/fields.h"
#include "engine/recipe/print.h"
#include "tests/recipe/test_files.h"

namespace engine::recipe {
namespace {

namespace fs = std::filesystem;
using Origin = Provenance::Origin;

std::string FirstError(const LoadResult& result) {
  return result.diagnostics.empty() ? "" : Format(result.diagnostics[0]);
}

LoadResult LoadBase(std::vector<std::string> sets) {
  return LoadText(BaseRecipe(), "base.toml", {std::move(sets), ""});
}

std::string Without(std::string text, const std::string& beginning_of_line) {
  const std::size_t begin = text.find("\n" + beginning_of_line);
  REQUIRE(begin != std::string::npos);
  return text.erase(begin, text.find('\n', begin + 1) - begin);
}

}  // namespace

TEST_CASE("every value knows where it comes from") {
  const LoadResult result = LoadBase({"training.seed=7"});
  REQUIRE(result.ok());
  const Recipe& r = result.recipe;
  CHECK(r.provenance.size() == Fields().size());
  CHECK(r.model.attention.heads == 8);
  const Provenance& heads = r.provenance.at("model.attention.heads");
  CHECK(heads.origin == Origin::kFile);
  CHECK(heads.span.line == 7);
  CHECK(heads.span.column == 23);
  CHECK(heads.source_line == "attention = { heads = 8, kv_heads = 4 }");
  CHECK(r.training.seed == 7);
  CHECK(r.provenance.at("training.seed").origin == Origin::kSet);
  CHECK(r.provenance.at("training.seed").span.file == "--set");
  CHECK(r.provenance.at("training.seed").span.column == 15);
  CHECK(r.provenance.at("model.norm.epsilon").origin == Origin::kDefault);
}

TEST_CASE("keys of earlier versions, which runs have kept, are read under the names of today") {
  const LoadResult result =
      LoadText(BaseRecipe() + "\n[start]\ncheckpoint = \"runs/a\"\nupcycle = false\n", "kept.toml");
  REQUIRE_MESSAGE(result.ok(), FirstError(result));
  CHECK(result.recipe.training.weights_from == "runs/a");
  CHECK(ToToml(result.recipe).find("[start]") == std::string::npos);
  CHECK(FirstError(LoadText(BaseRecipe() + "\n[start]\ncheckpont = \"runs/a\"\n", "kept.toml"))
            .find("unknown key 'checkpont' in [start]") != std::string::npos);
}

TEST_CASE("extends: later over earlier, the file over both, key by key") {
  const TemporaryFolder folder;
  folder.Write("parts/base.toml", BaseRecipe());
  folder.Write("parts/one.toml",
               "extends = 'base.toml'\n[model]\nlayers = 1\nhidden = 128\n[training]\nseed = 1\n");
  folder.Write("parts/two.toml", "[model]\nlayers = 2\nattention = { heads = 16 }\n[training]\nseed = 2\n");
  const std::string path =
      folder.Write("main.toml", "extends = ['parts/one.toml', 'parts/two.toml']\n[training]\nseed = 3\n");
  const LoadResult result = Load(path);
  CAPTURE(FirstError(result));
  REQUIRE(result.ok());
  CHECK(result.recipe.model.layers == 2);
  CHECK(result.recipe.model.hidden == 128);
  CHECK(result.recipe.model.attention.heads == 16);
  CHECK(result.recipe.model.attention.kv_heads == 4);
  CHECK(result.recipe.training.seed == 3);
  CHECK(result.recipe.path == path);
  CHECK(result.recipe.provenance.at("model.layers").span.file == folder.Path("parts/two.toml"));
  CHECK(result.recipe.provenance.at("model.hidden").span.file == folder.Path("parts/one.toml"));
  CHECK(result.recipe.provenance.at("training.seed").span.file == path);
}

TEST_CASE("a clash is shown where the author is: --set, the recipe, a fragment") {
  const TemporaryFolder folder;
  folder.Write("base.toml", BaseRecipe());
  const std::string path = folder.Write("main.toml", "extends = 'base.toml'\n[model]\nhidden = 100\n");
  CHECK(Load(path).diagnostics.at(0).span.file == path);
  CHECK(Load(path, {{"model.attention.heads=16"}, ""}).diagnostics.at(0).span.file == "--set");
  // Both numbers in fragments: the rule's own order, heads first.
  const std::string outer = folder.Write("outer.toml", "extends = 'main.toml'\n");
  CHECK(Load(outer).diagnostics.at(0).span.file == folder.Path("base.toml"));
}

TEST_CASE("--set: TOML values, bare words, lists, tables") {
  const LoadResult result =
      LoadBase({"model.norm.kind=rmsnorm", "data.split=949,50,1", "data.paths=[\"x,y\"]",
                "optimizer.beta1=0.5", "model.attention={window=7}", "training.iterations=1_000",
                "cluster.memory_bytes=141 GB", "data.tokenizer.vocab_file=/a/b c.json",
                "model.tied_embeddings = false", "training.seed=1", "training.seed=2"});
  CAPTURE(FirstError(result));
  REQUIRE(result.ok());
  CHECK(result.diagnostics.size() == 1);  // a note: the tokenizer is not the one that has vocab_file
  CHECK(result.recipe.data.split == "949,50,1");
  CHECK(result.recipe.cluster.memory_bytes == 141'000'000'000);
  CHECK(result.recipe.model.norm.kind == "rmsnorm");
  CHECK(result.recipe.data.paths == std::vector<std::string>{"x,y"});
  CHECK(result.recipe.optimizer.beta1 == 0.5);
  CHECK(result.recipe.model.attention.window == 7);
  CHECK(result.recipe.model.attention.heads == 8);
  CHECK(result.recipe.training.iterations == 1000);
  CHECK(result.recipe.data.tokenizer.vocab_file == "/a/b c.json");
  CHECK(!result.recipe.model.tied_embeddings);
  CHECK(result.recipe.training.seed == 2);
  CHECK(LoadBase({"data.split=\"949,50,1\"", "cluster.memory_bytes='141 GB'"}).ok());
}

TEST_CASE("--set: mistakes are located in the argument") {
  CHECK(FirstError(LoadBase({"training.seed=1", "model.hiden=3"})) ==
        "--set:2:7: error: unknown key 'hiden' in [model]\n    model.hiden=3\n          ^~~~~\n"
        "    hint: did you mean 'hidden'?\n");
  CHECK(FirstError(LoadBase({"model.layers=two"})) ==
        "--set:1:14: error: model.layers must be an integer, found the string \"two\"\n    model.layers=two\n"
        "                 ^~~\n");
  CHECK(FirstError(LoadBase({"model.layers"})).find("--set:1:1: error: --set needs section.key=value") == 0);
  CHECK(FirstError(LoadBase({"=3"})).find("--set:1:1: error: --set needs") == 0);
  CHECK(FirstError(LoadBase({""})).find("--set:1:1: error: --set needs") == 0);
  CHECK(FirstError(LoadBase({"training.seed=1\n[model]\nlayers=2"})).find("one line") != std::string::npos);
  CHECK(FirstError(LoadBase({"model.layers="})).find("--set:1:14: error: not valid TOML") == 0);
  CHECK(FirstError(LoadBase({"model.layers=[1,"})).find("not valid TOML") != std::string::npos);
  CHECK(FirstError(LoadBase({"extends=x.toml"})).find("--set:1:1: error: unknown key 'extends'") == 0);
  for (const std::string seed :
       {"99999999999999999999", "0x1FFFFFFFFFFFFFFFFF", "0o7777777777777777777777"}) {
    CHECK(FirstError(LoadBase({"training.seed=" + seed}))
              .find("--set:1:15: error: the integer " + seed + " does not fit in 64 bits") == 0);
  }
  for (const std::string rate : {"1e400", "1.5E+400"}) {
    CHECK(FirstError(LoadBase({"optimizer.learning_rate=" + rate}))
              .find("--set:1:25: error: the number " + rate + " does not fit in a 64-bit float") == 0);
  }
  CHECK(FirstError(LoadBase({"training.seed=0x1G"})).find("found the string \"0x1G\"") != std::string::npos);
}

TEST_CASE("a text cannot extend") {
  CHECK(FirstError(LoadText("extends = 'base.toml'\n" + BaseRecipe(), "t")).find("unknown key 'extends'") !=
        std::string::npos);
}

TEST_CASE("a text of the engine's own extends as a file of its name would") {
  const TemporaryFolder folder;
  folder.Write("base.toml", BaseRecipe());
  const std::string text = "extends = 'base.toml'\n[training]\nseed = 7\n";
  const LoadResult result =
      LoadExtendingText(text, folder.Path("made.toml"), {{"training.iterations=9"}, ""});
  REQUIRE_MESSAGE(result.ok(), FirstError(result));
  CHECK(result.recipe.training.seed == 7);
  CHECK(result.recipe.training.iterations == 9);
  CHECK(result.recipe.model.attention.heads == 8);
  CHECK(result.recipe.provenance.at("training.seed").span.file == folder.Path("made.toml"));
  CHECK(result.recipe.provenance.at("model.attention.heads").span.file == folder.Path("base.toml"));
  const std::string none = FirstError(LoadExtendingText("extends = 'none.toml'\n", folder.Path("made.toml")));
  CHECK(none.find("made.toml:1:11: error: extends: ") != std::string::npos);
  CHECK(!LoadExtendingText("extends = \n", "made.toml").ok());
}

TEST_CASE("every recipe of recipes/ loads, and every model of configs/ extends the base recipe") {
  const fs::path root(ENGINE_SOURCE_DIR);
  int recipes = 0;
  for (const auto& entry : fs::directory_iterator(root / "recipes")) {
    if (!entry.is_regular_file()) continue;
    const LoadResult result = Load(entry.path().string(), {{}, root.string()});
    CAPTURE(FirstError(result));
    CHECK(result.diagnostics.empty());
    ++recipes;
  }
  CHECK(recipes >= 6);
  int fragments = 0;
  const TemporaryFolder folder;
  for (const auto& entry : fs::recursive_directory_iterator(root / "configs")) {
    if (!entry.is_regular_file()) continue;
    const bool cluster = entry.path().parent_path().filename() == "clusters";
    // Models whose steps are text are loaded in tests/model.
    const std::string said = ReadText(entry.path());
    if (entry.path().parent_path().filename() == "blocks" || said.find("../blocks/") != std::string::npos)
      continue;
    std::vector<std::string> sets = {"training.iterations=400_000"};
    if (cluster) sets.insert(sets.end(), {"cluster.nodes=0", "cluster.devices_per_node=0"});
    if (entry.path().stem() == "openwebtext")
      sets.insert(sets.end(), {"model.max_positions=1024", "model.vocab=50257"});
    if (entry.path().parent_path().filename() == "models") {
      // The base recipe's kv_heads are not this model's.
      if (said.find("kv_heads") == std::string::npos) sets.emplace_back("model.attention.kv_heads=0");
    }
    const std::string path = folder.Write(
        "all.toml",
        fmt::format("extends = ['{}/tests/recipe/base.toml', '{}']\n", root.string(), entry.path().string()));
    const LoadResult result = Load(path, {sets, ""});
    CAPTURE(FirstError(result));
    CHECK(result.diagnostics.empty());
    ++fragments;
  }
  CHECK(fragments >= 40);
}

TEST_CASE("random tokens: no paths, and a note of what a recipe says of files") {
  const LoadResult plain =
      LoadText(Without(BaseRecipe(), "paths = "), "base.toml", {{"data.source=random"}, ""});
  CAPTURE(FirstError(plain));
  CHECK(plain.ok());
  CHECK(plain.diagnostics.empty());
  CHECK(plain.recipe.data.is_random());

  const LoadResult inherited = LoadBase({"data.source=random", "data.weights=[1,2,3]", "data.split=\"1,0,0\"",
                                         "evaluation.interval=10", "data.tokenizer.kind=gpt2",
                                         "data.tokenizer.merges_file=m", "model.vocab=100"});
  CHECK(inherited.ok());
  REQUIRE(inherited.diagnostics.size() == 1);
  CHECK(FirstError(inherited) ==
        "--set:1:13: note: data.source \"random\" does not use data.paths, data.weights, data.split, "
        "data.tokenizer.kind, data.tokenizer.merges_file\n    data.source=random\n                ^~~~~~\n");

  // The printed recipe names every key; those that say nothing are no cause for a note.
  const LoadResult printed = LoadText(ToToml(plain.recipe), "resolved.toml");
  CHECK(printed.ok());
  CHECK(printed.diagnostics.empty());
}

TEST_CASE("keys of a sink that is not named are noted, and none of one that is") {
  const LoadResult unused = LoadBase({"logging.wandb.name=x", "logging.prometheus.port=9400"});
  CHECK(unused.ok());
  REQUIRE(unused.diagnostics.size() == 2);
  CHECK(Format(unused.diagnostics[0])
            .starts_with("--set:1:20: note: logging.wandb.name is not used: logging.sinks does not name "
                         "\"wandb\"\n"));
  CHECK(Format(unused.diagnostics[1])
            .starts_with("--set:2:25: note: logging.prometheus.port is not used: logging.sinks does not name "
                         "\"prometheus\"\n"));
  const LoadResult used = LoadBase({"logging.wandb.name=x", "logging.prometheus.port=9400",
                                    "logging.sinks=[\"wandb\", \"prometheus\"]", "logging.sink_interval=5"});
  CHECK(used.ok());
  CHECK(used.diagnostics.empty());
}

TEST_CASE("what evaluations are to be is noted where there are none") {
  const LoadResult unused = LoadBase({"evaluation.interval=0", "evaluation.iterations=5"});
  CHECK(unused.ok());
  REQUIRE(unused.diagnostics.size() == 1);
  CHECK(Format(unused.diagnostics[0])
            .starts_with("--set:2:23: note: evaluation.iterations is not used: evaluation.interval is 0, so "
                         "nothing is evaluated\n"));
  CHECK(LoadBase({"evaluation.interval=2", "evaluation.iterations=5"}).diagnostics.empty());
}

TEST_CASE("tasks without evaluations are one error, and no note besides") {
  const LoadResult lost = LoadBase({"evaluation.interval=0", "evaluation.tasks=[\"lambada=some.jsonl\"]"});
  CHECK_FALSE(lost.ok());
  CHECK(lost.diagnostics.size() == 1);
}

TEST_CASE("what becomes of long documents is noted where none are packed") {
  const LoadResult unused = LoadBase({"data.long_documents=drop"});
  CHECK(unused.ok());
  REQUIRE(unused.diagnostics.size() == 1);
  CHECK(Format(unused.diagnostics[0])
            .starts_with("--set:1:21: note: data.long_documents is not used: data.packing is \"none\", not "
                         "\"best_fit\"\n"));
}

TEST_CASE(
    "keys that nothing reads are noted: of a warm-up, of checkpoints between iterations, of an exchange") {
  struct Case {
    std::string set, reason, with;
  };
  const std::vector<Case> cases = {
      {"schedule.warmup_init=1e-5",
       "none of schedule.warmup_iterations, warmup_samples and warmup_fraction is set, so there is no "
       "warm-up",
       "schedule.warmup_fraction=0.1"},
      {"checkpoint.required=true",
       "checkpoint.interval is 0, so the only checkpoint is that at the end, which must be written anyway",
       "checkpoint.interval=5"},
      {"parallelism.overlap=on", "there is one rank, so nothing is exchanged", "parallelism.dp=2"}};
  for (const Case& one : cases) {
    CAPTURE(one.set);
    const std::string key = one.set.substr(0, one.set.find('='));
    const LoadResult unused = LoadBase({one.set});
    CHECK(unused.ok());
    REQUIRE(unused.diagnostics.size() == 1);
    CHECK(Format(unused.diagnostics[0])
              .starts_with(
                  fmt::format("--set:1:{}: note: {} is not used: {}\n", key.size() + 2, key, one.reason)));
    const LoadResult used = LoadBase({one.set, one.with});
    CAPTURE(FirstError(used));
    CHECK(used.diagnostics.empty());
  }
  CHECK(LoadBase({"parallelism.overlap=off"}).diagnostics.empty());
}

TEST_CASE("keys whose conditions do not hold are noted, and none whose conditions do") {
  struct Case {
    std::string set;                // without an effect as the recipe stands
    std::string reason;             // said in the note
    std::vector<std::string> with;  // by which it has one
  };
  const std::vector<Case> cases = {
      {"model.attention.rope_base=5e5",
       "model.attention.position is \"learned\", not \"rotary\"",
       {"model.attention.position=rotary"}},
      {"model.attention.rope_scaling.original_max_positions=64",
       "model.attention.rope_scaling.factor is 1.0",
       {"model.attention.position=rotary", "model.attention.rope_scaling.factor=8.0"}},
      {"data.fim.spm_rate=0.25",
       "data.fim.rate is 0.0",
       {"data.fim.rate=0.5", "data.fim.prefix_token=p", "data.fim.middle_token=m", "data.fim.suffix_token=s",
        "data.tokenizer.kind=file", "data.tokenizer.path=tokenizer.json"}},
      {"precision.fp8_scaling=current",
       "precision.compute is \"fp32\", not \"fp8\"",
       {"precision.compute=fp8", "cluster.device=h100"}},
      {"precision.fp8_gradients=e4m3",
       "precision.compute is \"fp32\", not \"fp8\"",
       {"precision.compute=fp8", "cluster.device=h100"}},
  };
  for (const Case& one : cases) {
    CAPTURE(one.set);
    const LoadResult unused = LoadBase({one.set});
    CHECK(unused.ok());
    REQUIRE(unused.diagnostics.size() == 1);
    const std::string key = one.set.substr(0, one.set.find('='));
    CHECK(Format(unused.diagnostics[0])
              .starts_with(
                  fmt::format("--set:1:{}: note: {} is not used: {}\n", key.size() + 2, key, one.reason)));
    std::vector<std::string> sets = one.with;
    sets.push_back(one.set);
    const LoadResult used = LoadBase(sets);
    CAPTURE(FirstError(used));
    CHECK(used.diagnostics.empty());
  }
}

TEST_CASE("adapters beside weights that are drawn are noted, but where a run is a measurement") {
  const LoadResult drawn = LoadBase({"lora.rank=2"});
  CHECK(drawn.ok());
  REQUIRE(drawn.diagnostics.size() == 1);
  CHECK(
      Format(drawn.diagnostics[0])
          .starts_with(
              "--set:1:11: note: adapters of [lora] are trained beside weights that are drawn at random, as "
              "training.weights_from names none\n"));
  CHECK(LoadBase({"lora.rank=2", "training.weights_from=\"runs/base\""}).diagnostics.empty());
  CHECK(LoadBase({"lora.rank=0"}).diagnostics.empty());
  const LoadResult measured = LoadBase({"lora.rank=2", "data.source=random"});
  for (const Diagnostic& one : measured.diagnostics) CHECK(one.message.find("[lora]") == std::string::npos);
}

TEST_CASE("an interval of sinks is noted where no sink that is named has one") {
  const LoadResult unused =
      LoadBase({"logging.sinks=[\"prometheus\"]", "logging.prometheus.port=9400", "logging.sink_interval=5"});
  CHECK(unused.ok());
  REQUIRE(unused.diagnostics.size() == 1);
  CHECK(Format(unused.diagnostics[0])
            .starts_with("--set:3:23: note: logging.sink_interval is not used: logging.sinks names neither "
                         "\"tensorboard\" nor \"wandb\"\n"));
}

TEST_CASE("an interval of histograms is noted where no sink that is named shows them") {
  const LoadResult unused = LoadBase({"logging.sinks=[\"wandb\"]", "logging.histogram_interval=5"});
  CHECK(unused.ok());
  REQUIRE(unused.diagnostics.size() == 1);
  CHECK(Format(unused.diagnostics[0])
            .starts_with(
                "--set:2:28: note: logging.histogram_interval is not used: logging.sinks does not name "
                "\"tensorboard\"\n"));
  CHECK(LoadBase({"logging.sinks=[\"tensorboard\"]", "logging.histogram_interval=5"}).diagnostics.empty());
}

}  // namespace engine::recipe
