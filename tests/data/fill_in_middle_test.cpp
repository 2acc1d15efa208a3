#include "engine/data/fill_in_middle.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/base/status.h"
#include "tests/data/temp_dir.h"

namespace engine::data {
namespace {

// Letters are tokens 300 to 325, other characters are the tokens of their bytes, 0 to 255; 290 to 294 are special.
constexpr std::int32_t kSpecial = 290;

std::unique_ptr<MiddleFiller> MakeFiller(const TempDir& dir, const nlohmann::json& tokenizer,
                                         const recipe::FillInMiddle& fim, std::int64_t seed) {
  std::ofstream(dir / "tokenizer.json") << tokenizer.dump();
  recipe::Recipe recipe;
  recipe.model.vocab = 400;
  recipe.training.seed = seed;
  recipe.data.tokenizer.kind = "file";
  recipe.data.tokenizer.path = dir / "tokenizer.json";
  recipe.data.tokenizer.end_of_document = "<eod>";
  recipe.data.fim = fim;
  std::string key;
  absl::StatusOr<std::unique_ptr<MiddleFiller>> filler = MiddleFiller::Make(recipe, &key);
  REQUIRE_MESSAGE(filler.ok(), Message(filler.status()));
  return *std::move(filler);
}

std::unique_ptr<MiddleFiller> FillerOfBytes(const TempDir& dir) {
  nlohmann::json vocab;
  for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = byte;
  for (char c = 'a'; c <= 'z'; ++c) vocab[std::string(1, c)] = 300 + c - 'a';
  nlohmann::json added = nlohmann::json::array();
  std::int32_t id = kSpecial;
  for (const char* name : {"<s>", "<pre>", "<mid>", "<suf>", "<eod>"}) {
    vocab[name] = id;
    added.push_back({{"id", id++},
                     {"content", name},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const nlohmann::json file = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added},
      {"normalizer", nullptr},
      {"pre_tokenizer", nullptr},
      {"post_processor", nullptr},
      {"decoder", {{"type", "Sequence"}, {"decoders", {{{"type", "ByteFallback"}}, {{"type", "Fuse"}}}}}},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", nullptr},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", false},
        {"byte_fallback", true},
        {"ignore_merges", false},
        {"vocab", vocab},
        {"merges", nlohmann::json::array()}}}};
  return MakeFiller(
      dir, file,
      {.rate = 1, .spm_rate = 0.5, .prefix_token = "<pre>", .middle_token = "<mid>", .suffix_token = "<suf>"},
      0);
}

}  // namespace

// Fewer tokens than three more, or other ones, would mean that the text of the document has changed.
TEST_CASE("a document that its decoded text does not give again stays as it is") {
  const TempDir dir;
  const std::unique_ptr<MiddleFiller> filler = FillerOfBytes(dir);
  const std::vector<std::int32_t> whole = {300, 301, 0xC3, 0xA9, 302, 0xE2, 0x82, 0xAC, 303};  // "abéc€d"
  struct Case {
    const char* what;
    std::vector<std::int32_t> ids;
    bool changes;
  };
  const std::vector<Case> cases = {
      {"whole characters", whole, true},
      {"no characters of several bytes", {300, 301, 302, 303, 304}, true},
      {"begins within a character", {0xA9, 302, 303, 304}, false},
      {"ends within a character", {300, 301, 0xE2, 0x82}, false},
      {"a special token inside", {300, 301, kSpecial + 3, 302, 303}, false},
      {"an end of a document inside", {300, 301, kSpecial + 4, 302, 303}, false},
      {"a beginning of the document", {kSpecial, 300, 301, 302, 303}, true},
      {"a beginning of a document inside", {300, 301, kSpecial, 302, 303}, false},
      {"bytes for what is one token", {300, 'b', 302, 303}, false},
  };
  for (const Case& of : cases) {
    CAPTURE(of.what);
    for (std::int64_t sample = 0; sample < 50; ++sample) {
      std::vector<std::int32_t> ids = of.ids;
      filler->Rearrange(Split::kTrain, sample, 0, &ids);
      CHECK((ids != of.ids) == of.changes);
      if (!of.changes || ids == of.ids) continue;
      CHECK((ids.front() == kSpecial) == (of.ids.front() == kSpecial));
      // The same tokens, and the three: cuts are between characters.
      std::vector<std::int32_t> expected = of.ids;
      expected.insert(expected.end(), {filler->prefix(), filler->middle(), filler->suffix()});
      std::sort(expected.begin(), expected.end());
      std::sort(ids.begin(), ids.end());
      CHECK(ids == expected);
    }
  }
}

// tests/oracles/fill_in_middle.py draws, tokenises and rearranges by itself.
TEST_CASE("documents and their fragments are rearranged as the oracle says") {
  const TempDir dir;
  std::ifstream file(TestData("fill_in_middle.json"));
  const nlohmann::json oracle = nlohmann::json::parse(file);
  REQUIRE(oracle["configurations"].size() == 5);
  for (const nlohmann::json& of : oracle["configurations"]) {
    const std::unique_ptr<MiddleFiller> filler = MakeFiller(dir, oracle["tokenizer"],
                                                            {.rate = of["rate"],
                                                             .spm_rate = of["spm_rate"],
                                                             .prefix_token = "<pre>",
                                                             .middle_token = "<mid>",
                                                             .suffix_token = "<suf>",
                                                             .split_token = of["split_token"],
                                                             .fragment_rate = of["fragment_rate"],
                                                             .no_prefix = of["no_prefix"]},
                                                            of["seed"]);
    for (const nlohmann::json& test : of["cases"]) {
      CAPTURE(test.dump());
      const std::string name = test[0];
      const auto split =
          std::find_if(kSplits.begin(), kSplits.end(), [&](Split s) { return Name(s) == name; });
      std::vector<std::int32_t> ids = test[3];
      filler->Rearrange(*split, test[1], test[2], &ids);
      CHECK(ids == test[4].get<std::vector<std::int32_t>>());
    }
  }
}

TEST_CASE("a split token that the tokenizer has not is an error of its key") {
  const TempDir dir;
  FillerOfBytes(dir);
  recipe::Recipe recipe;
  recipe.model.vocab = 400;
  recipe.data.tokenizer.kind = "file";
  recipe.data.tokenizer.path = dir / "tokenizer.json";
  recipe.data.tokenizer.end_of_document = "<eod>";
  recipe.data.fim = {.rate = 1,
                     .prefix_token = "<pre>",
                     .middle_token = "<mid>",
                     .suffix_token = "<suf>",
                     .split_token = "<file>"};
  std::string key;
  const absl::Status status = MiddleFiller::Make(recipe, &key).status();
  CHECK(key == "data.fim.split_token");
  CHECK(Message(status) == (dir / "tokenizer.json") + " (tokenizer.json): has no token \"<file>\"");
}

}  // namespace engine::data
