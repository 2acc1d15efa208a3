// What a hint proposes is lawful: each value, when it is set, mends the error that it stands below and makes
// no other.
#include <doctest/doctest.h>

#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "engine/recipe/fields.h"
#include "engine/recipe/load.h"
#include "tests/recipe/test_files.h"

namespace engine::recipe {
namespace {

using Sets = std::vector<std::string>;

// Names that hints use, by key.
const std::map<std::string, std::string> kHintKeys = {
    {"tp", "parallelism.tp"},
    {"dp", "parallelism.dp"},
    {"pp", "parallelism.pp"},
    {"cp", "parallelism.cp"},
    {"ep", "parallelism.ep"},
    {"nodes", "cluster.nodes"},
    {"heads", "model.attention.heads"},
    {"kv_heads", "model.attention.kv_heads"},
    {"head_dim", "model.attention.head_dim"},
    {"hidden", "model.hidden"},
    {"mlp.hidden", "model.mlp.hidden"},
    {"vocab_multiple", "model.vocab_multiple"},
    {"global_batch", "training.global_batch"},
    {"micro_batch", "training.micro_batch"},
    {"samples", "training.samples"},
    {"sequence_length", "data.sequence_length"},
};

// Each proposal of a hint as arguments of --set: "tp 2 with dp 4 or 4" is {tp=2, dp=4} and {tp=4}.
std::vector<Sets> Proposals(const std::string& hint) {
  static const std::regex clause(
      R"((?:^|; or |; | or )([a-z_.]+) (\d+)((?: with [a-z]+ \d+)?)((?: or \d+(?: with [a-z]+ \d+)?)*))");
  static const std::regex value(R"((\d+)(?: with ([a-z]+) (\d+))?)");
  std::vector<Sets> proposals;
  for (std::sregex_iterator it(hint.begin(), hint.end(), clause), end; it != end; ++it) {
    const auto key = kHintKeys.find((*it)[1]);
    if (key == kHintKeys.end()) continue;
    const std::string values = (*it)[2].str() + (*it)[3].str() + (*it)[4].str();
    for (std::sregex_iterator v(values.begin(), values.end(), value); v != end; ++v) {
      Sets sets = {key->second + "=" + (*v)[1].str()};
      if ((*v)[2].matched) sets.push_back(kHintKeys.at((*v)[2]) + "=" + (*v)[3].str());
      proposals.push_back(sets);
    }
  }
  return proposals;
}

// Errors by what they are about, whatever their numbers.
std::set<std::string> Kinds(const LoadResult& result) {
  std::set<std::string> kinds;
  for (const Diagnostic& d : result.diagnostics) {
    if (d.severity == Severity::kError)
      kinds.insert(std::regex_replace(d.message, std::regex("[0-9]+"), "N"));
  }
  return kinds;
}

std::string KindOf(const Diagnostic& diagnostic) {
  return std::regex_replace(diagnostic.message, std::regex("[0-9]+"), "N");
}

// Tries every proposal of every hint; their number.
int CheckProposals(const std::string& path, const Sets& sets) {
  int tried = 0;
  const LoadResult wrong = Load(path, {sets, ""});
  const std::set<std::string> before = Kinds(wrong);
  for (const Diagnostic& diagnostic : wrong.diagnostics) {
    for (const Sets& proposal : Proposals(diagnostic.hint)) {
      Sets all = sets;
      all.insert(all.end(), proposal.begin(), proposal.end());
      std::string shown = path;
      for (const std::string& set : all) shown += " " + set;
      CAPTURE(shown);
      CAPTURE(Format(diagnostic));
      const LoadResult mended = Load(path, {all, ""});
      for (const std::string& kind : Kinds(mended)) CHECK_MESSAGE(before.contains(kind), kind);
      CHECK(!Kinds(mended).contains(KindOf(diagnostic)));
      ++tried;
    }
  }
  return tried;
}

std::string HintOf(const std::string& path, const Sets& sets, const std::string& part) {
  for (const Diagnostic& diagnostic : Load(path, {sets, ""}).diagnostics) {
    if (diagnostic.message.find(part) != std::string::npos) return diagnostic.hint;
  }
  return "no such error";
}

const std::string kLlamaRecipe = std::string(ENGINE_SOURCE_DIR) + "/recipes/llama3-8b-tp2.toml";
const std::string kSmallRecipe = std::string(ENGINE_SOURCE_DIR) + "/tests/recipe/base.toml";

}  // namespace

TEST_CASE("hints: what is proposed mends the error and makes no other") {
  const Sets llama_of_8 = {"cluster.devices_per_node=8", "parallelism.dp=4"};
  const auto and_also = [](Sets sets, const Sets& more) {
    sets.insert(sets.end(), more.begin(), more.end());
    return sets;
  };
  int tried = 0;
  for (const Sets& wrong : std::vector<Sets>{
           {"parallelism.tp=3"},
           {"parallelism.tp=5"},
           {"parallelism.tp=16"},
           {"model.attention.kv_heads=3"},
           {"model.attention.kv_heads=6"},
           {"model.attention.kv_heads=1"},
           {"model.attention.heads=30"},
           {"model.attention.heads=33"},
           {"model.hidden=4100"},
           {"model.hidden=4001"},
           {"model.mlp.hidden=14337"},
           {"parallelism.cp=3"},
           {"parallelism.cp=2", "data.sequence_length=1001"},
           {"data.sequence_length=1001"},
           {"parallelism.pp=3"},
           {"parallelism.dp=3"},
           {"parallelism.ep=2"},
           {"training.micro_batch=3"},
           {"training.global_batch=7", "training.micro_batch=4"},
           {"training.iterations=0", "training.samples=1001"},
           {"parallelism.pp=2", "parallelism.virtual_stages=2", "training.global_batch=7"},
           {"parallelism.exchange=push", "parallelism.tp=4", "cluster.nodes=2"},
           {"parallelism.exchange=push", "parallelism.tp=8", "cluster.nodes=4"},
           {"parallelism.exchange=push", "parallelism.cp=4", "cluster.nodes=4"},
           {"model.attention.head_dim=65"},
           {"precision.compute=fp8", "precision.fp8_head=true"},
           {"precision.compute=fp8", "precision.fp8_head=true", "parallelism.tp=1", "model.vocab_multiple=3"},
           {"parallelism.tp=3", "cluster.nodes=0", "cluster.devices_per_node=0"}}) {
    tried += CheckProposals(kLlamaRecipe, wrong);
    tried += CheckProposals(kLlamaRecipe, and_also(llama_of_8, wrong));
    tried += CheckProposals(kSmallRecipe, wrong);
  }
  CHECK(tried >= 100);
}

TEST_CASE("hints: those of the bad recipes, too") {
  int tried = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(ENGINE_SOURCE_DIR) + "/tests/recipe/bad")) {
    tried += CheckProposals(entry.path().string(), {});
  }
  CHECK(tried >= 20);
}

TEST_CASE("hints: Llama-3 8B with tp 3 on two devices") {
  // 4 divides its 8 key and value heads, too, but there are two devices; kv_heads 6 does not divide 32 heads.
  CHECK(HintOf(kLlamaRecipe, {"parallelism.tp=3"}, "kv_heads 8 cannot be shared by tp 3") == "tp 2");
  // On eight, dp has to change along, as the devices are all in use.
  CHECK(HintOf(kLlamaRecipe,
               {"parallelism.tp=3", "parallelism.dp=4", "cluster.devices_per_node=12",
                "training.global_batch=48"},
               "kv_heads 8 cannot be shared by tp 3") == "tp 2 with dp 6 or 4 with dp 3");
  // Where the world is wrong in any case, a value that mends this error alone is better than none.
  CHECK(HintOf(kLlamaRecipe, {"parallelism.tp=3", "parallelism.dp=3"}, "kv_heads 8 cannot") == "tp 2 or 4");
}

TEST_CASE("hints: names of other programs, and what they are called here") {
  const TemporaryFolder folder;
  for (const auto& [set, hint] : std::vector<std::pair<std::string, std::string>>{
           {"optimizer.lr=1", "'lr' is called optimizer.learning_rate here"},
           {"parallelism.zero=1", "'zero' is called parallelism.zero_stage here"},
           {"model.hidden_dropout=0.1", "'hidden_dropout' is called model.dropout.hidden here"},
           {"training.seq_length=8", "'seq_length' is called data.sequence_length here"}}) {
    const LoadResult result = Load(folder.Write("r.toml", BaseRecipe()), {{set}, ""});
    REQUIRE(!result.ok());
    CHECK(result.diagnostics[0].hint == hint);
    const std::string key = hint.substr(hint.find("called ") + 7);
    CHECK(FindField(key.substr(0, key.find(' '))) != nullptr);
  }
}

TEST_CASE("hints: texts of --set may begin with a digit, and need no quotes") {
  const TemporaryFolder folder;
  const std::string file = folder.Write("r.toml", BaseRecipe());
  const LoadResult split = Load(file, {{"data.split=969,30,1", "cluster.memory_bytes=80GB"}, ""});
  REQUIRE(split.ok());
  CHECK(split.recipe.data.split == "969,30,1");
  CHECK(split.recipe.cluster.memory_bytes == 80'000'000'000);
  const LoadResult number = Load(file, {{"training.iterations=10x"}, ""});
  REQUIRE(!number.ok());
  CHECK(number.diagnostics[0].message.find("iterations") != std::string::npos);
}

}  // namespace engine::recipe
