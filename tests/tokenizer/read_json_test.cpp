#include "engine/data/tokenizer/read_json.h"

#include <doctest/doctest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "engine/base/status.h"
#include "engine/data/tokenizer/pipeline.h"
#include "engine/data/tokenizer/read_files.h"
#include "tests/data/temp_dir.h"

namespace engine::tokenizer {
namespace {

using Ids = std::vector<std::int32_t>;
using Json = nlohmann::json;

// A BPE over characters: a b c, ab, abc, bc, the blank symbol, bytes of the newline and of a part of a character.
Json SmallJson() {
  return Json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [
      {"id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
    "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
    "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
      "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
      "vocab": {"<s>": 0, "<unk>": 1, "a": 2, "b": 3, "c": 4, "ab": 5, "abc": 6, "bc": 7, "\u2581": 8, "<0x0A>": 9},
      "merges": ["a b", "b c", "ab c"]}})");
}

struct Made {
  std::unique_ptr<Pipeline> pipeline;
  std::string error;
};

Made MakeFromText(const std::string& text) {
  const data::TempDir dir;
  data::WriteFile(dir / "tokenizer.json", text);
  absl::StatusOr<Description> description = ReadTokenizer(dir / "tokenizer.json");
  absl::StatusOr<std::unique_ptr<Pipeline>> pipeline =
      description.ok() ? Pipeline::Make(*std::move(description))
                       : absl::StatusOr<std::unique_ptr<Pipeline>>(description.status());
  if (pipeline.ok()) return {*std::move(pipeline), ""};
  std::string error = Message(pipeline.status());
  if (const std::size_t at = error.find(dir.path() + "/"); at != std::string::npos)
    error.erase(at, dir.path().size() + 1);
  return {nullptr, error};
}

Made MakeFromJson(const Json& json) { return MakeFromText(json.dump()); }

Ids EncodeWith(const Json& json, std::string_view text, const EncodeOptions& options = {}) {
  const Made made = MakeFromJson(json);
  REQUIRE_MESSAGE(made.error.empty(), made.error);
  Ids ids;
  const absl::Status status = made.pipeline->Encode(text, options, &ids);
  REQUIRE_MESSAGE(status.ok(), Message(status));
  return ids;
}

Json AddedTokenJson(int id, const std::string& content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", false}};
}

}  // namespace

// The expected ids of this file are those of npm's tokenizers@0.23.2, the reference library, unless a comment says else.
TEST_CASE("a BPE of characters: merges by rank, bytes and unknown characters where there is no token") {
  CHECK(EncodeWith(SmallJson(), "abc") == Ids{6});
  CHECK(EncodeWith(SmallJson(), "bcab") == Ids{7, 5});
  CHECK(EncodeWith(SmallJson(), "a\nxyb") == Ids{2, 9, 1, 3});
  Json json = SmallJson();
  json["model"]["fuse_unk"] = false;
  CHECK(EncodeWith(json, "axyb") == Ids{2, 1, 1, 3});
  json["model"]["merges"] = Json::array({Json::array({"b", "c"}), Json::array({"a", "b"})});
  CHECK(EncodeWith(json, "abc") == Ids{2, 7});
}

TEST_CASE("what has no token is an error where there is none for the unknown") {
  Json json = SmallJson();
  json["model"]["unk_token"] = nullptr;
  const Made made = MakeFromJson(json);
  REQUIRE(made.pipeline != nullptr);
  Ids ids;
  CHECK(Message(made.pipeline->Encode("abxc", {}, &ids)) ==
        "the tokenizer has no token for \"x\", and none for what is unknown");
  CHECK(Message(made.pipeline->Encode("ab\xFF", {}, &ids)) ==
        "the text is not UTF-8 from byte 2 on, which this tokenizer has no tokens for");
}

TEST_CASE(
    "added tokens: the leftmost, then the longest; special ones only where asked for; words and white "
    "space") {
  Json json = SmallJson();
  json["added_tokens"].push_back(AddedTokenJson(10, "cab"));
  json["added_tokens"].push_back(AddedTokenJson(11, "ca"));
  json["added_tokens"].push_back(AddedTokenJson(12, "bca"));
  CHECK(EncodeWith(json, "acabc") == Ids{2, 10, 4});
  CHECK(EncodeWith(json, "acac") == Ids{2, 11, 4});
  CHECK(EncodeWith(json, "bcab") == Ids{12, 3});
  CHECK(EncodeWith(json, "a<s>b") == Ids{2, 1, 3});
  CHECK(EncodeWith(json, "a<s>b", {.special_tokens = true}) == Ids{2, 0, 3});
  json["added_tokens"][1]["single_word"] = true;
  CHECK(EncodeWith(json, "acabc") == Ids{2, 4, 6});  // rejected, and none other is tried there
  json["added_tokens"][2]["lstrip"] = true;
  json["added_tokens"][2]["rstrip"] = true;
  CHECK(EncodeWith(json, "b \n ca\t b") == Ids{3, 11, 3});
}

TEST_CASE("added tokens that are normalized are found in normalized text") {
  Json json = SmallJson();
  json["normalizer"] = {{"type", "Lowercase"}};
  json["added_tokens"].push_back(AddedTokenJson(10, "CA"));
  CHECK(EncodeWith(json, "caCAB") == Ids{4, 2, 10, 3});
  json["added_tokens"][1]["normalized"] = true;
  CHECK(EncodeWith(json, "caCAB") == Ids{10, 10, 3});
}

TEST_CASE("a million times the beginning of an added token is looked through once") {
  Json json = SmallJson();
  json["added_tokens"].push_back(AddedTokenJson(10, std::string(100'000, 'a') + "b"));
  json["added_tokens"].push_back(AddedTokenJson(11, "aa"));
  const Ids ids = EncodeWith(json, std::string(1'000'001, 'a'));
  CHECK(ids.size() == 500'001);
  CHECK(ids.back() == 2);
}

TEST_CASE("blanks and the beginning: Prepend, Replace and Metaspace") {
  Json json = SmallJson();
  json["normalizer"] = Json::parse(R"({"type": "Sequence", "normalizers": [
    {"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]})");
  json["decoder"] = Json::parse(R"({"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})");
  CHECK(EncodeWith(json, "a b") == Ids{8, 2, 8, 3});
  CHECK(EncodeWith(json, "a<s>b", {.special_tokens = true}) == Ids{8, 2, 0, 8, 3});
  CHECK(EncodeWith(json, "").empty());
  const Made made = MakeFromJson(json);
  CHECK(*made.pipeline->Decode(Ids{8, 2, 9, 8, 5}, false) == "a\n ab");
  json = SmallJson();
  json["pre_tokenizer"] = Json::parse(
      R"({"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": true})");
  CHECK(EncodeWith(json, "a b") == Ids{8, 2, 8, 3});
  CHECK(EncodeWith(json, "a<s>b", {.special_tokens = true}) == Ids{8, 2, 0, 3});
  json["pre_tokenizer"]["prepend_scheme"] = "never";
  CHECK(EncodeWith(json, "a b") == Ids{2, 8, 3});
}

TEST_CASE("a decoder that replaces a regular expression, in each token string") {
  Json json = SmallJson();
  const auto decoded = [&json](const std::string& pattern, const std::string& content) {
    json["decoder"] = {{"type", "Replace"}, {"pattern", {{"Regex", pattern}}}, {"content", content}};
    const Made made = MakeFromJson(json);
    REQUIRE_MESSAGE(made.error.empty(), made.error);
    return *made.pipeline->Decode(Ids{2, 5, 6, 9}, false);
  };
  CHECK(decoded("[ab]+", "x") == "xxxc<0x0A>");
  CHECK(decoded("(a)(b)", "$2$1") ==
        "a$2$1$2$1c<0x0A>");  // the library knows no groups in what is put in place
  CHECK(decoded("c*", "-") == "-a--a-b--a-b--<-0-x-0-A->-");
  json["decoder"] = {{"type", "Replace"}, {"pattern", {{"Regex", "(a+)+\\z"}}}, {"content", ""}};
  json["decoder"] = {{"type", "Sequence"}, {"decoders", {{{"type", "Fuse"}}, json["decoder"]}}};
  const Made made = MakeFromJson(json);
  REQUIRE_MESSAGE(made.error.empty(), made.error);
  Ids ids(100, 2);
  CHECK(*made.pipeline->Decode(ids, false) == "");
  ids.push_back(3);
  CHECK(Message(made.pipeline->Decode(ids, false).status()) ==
        "the tokenizer's regular expression \"(a+)+\\z\" takes too long on this text from byte 0 on: match "
        "limit "
        "exceeded");
}

TEST_CASE("the template's ids stand around a text where they are asked for") {
  Json json = SmallJson();
  json["post_processor"] = Json::parse(R"({"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<unk>", "type_id": 0}}],
    "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}, "<unk>": {"id": "<unk>", "ids": [1], "tokens": ["<unk>"]}}})");
  CHECK(EncodeWith(json, "ab") == Ids{5});
  CHECK(EncodeWith(json, "ab", {.add_template = true}) == Ids{0, 5, 1});
}

TEST_CASE("WordPiece: the longest tokens from the left, or the whole word is unknown") {
  Json json = SmallJson();
  json["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
  json["model"] =
      Json::parse(R"({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 5, "vocab": {"<s>": 0, "[UNK]": 1, "un": 2, "##a": 3, "##able": 4, "##ble": 5, "u": 6, ",": 7}})");
  json["decoder"] = {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}};
  CHECK(EncodeWith(json, "una, unab u") == Ids{2, 3, 7, 1, 6});
  CHECK(EncodeWith(json, "unable") == Ids{1});  // more than five characters
  json["model"]["max_input_chars_per_word"] = 100;
  CHECK(EncodeWith(json, "unable") == Ids{2, 4});
  CHECK(*MakeFromJson(json).pipeline->Decode(Ids{2, 4, 7, 6}, false) == "unable, u");
}

TEST_CASE(
    "words of one script: what is of any script joins the word before it, and is none at the beginning") {
  Json json = SmallJson();
  json["pre_tokenizer"] = {{"type", "UnicodeScripts"}};
  json["model"] = Json::parse(R"({"type": "WordLevel", "unk_token": "<unk>", "vocab": {"<s>": 0, "<unk>": 1,
    "\u4EAC\u30FC\u3042 \u30A2": 2, "a": 3, "a ": 4, "1": 5, "b\u0378": 6}})");
  CHECK(EncodeWith(json, "\u4EAC\u30FC\u3042 \u30A2a") == Ids{2, 3});
  CHECK(EncodeWith(json, " a 1b\u0378") == Ids{4, 5, 6});
  CHECK(EncodeWith(json, " \u0378a") == Ids{3});
  CHECK(EncodeWith(json, "  ").empty());
}

TEST_CASE("Unigram: the cut of the largest sum; neighbours that are unknown are one") {
  Json json = SmallJson();
  json["added_tokens"] = Json::array();
  json["model"] = Json::parse(R"({"type": "Unigram", "unk_id": 0, "byte_fallback": false,
    "vocab": [["<unk>", 0.0], ["a", -3.0], ["b", -3.0], ["ab", -5.0], ["aba", -9.5], ["bb", -1.0]]})");
  CHECK(EncodeWith(json, "aba") == Ids{3, 1});
  CHECK(EncodeWith(json, "abba") == Ids{1, 5, 1});
  CHECK(EncodeWith(json, "axyzb") == Ids{1, 0, 2});
  json["model"]["vocab"] = Json::parse(R"([["<unk>", 0.0], ["a", -1.0], ["b", -1.0], ["ab", -2.0]])");
  CHECK(EncodeWith(json, "ab") == Ids{3});  // of equal sums the one that is found first
  json["model"]["unk_id"] = nullptr;
  Ids ids;
  CHECK(!MakeFromJson(json).pipeline->Encode("x", {}, &ids).ok());
}

TEST_CASE("mistakes of a tokenizer.json are named with their place") {
  const auto error_of = [](const std::function<void(Json*)>& change) {
    Json json = SmallJson();
    change(&json);
    return MakeFromJson(json).error;
  };
  const std::string file = "tokenizer.json: error: ";
  CHECK(error_of([](Json*) {}).empty());
  CHECK(MakeFromText("{\"model\": [1,}").error.starts_with("tokenizer.json:1:14: error: syntax error"));
  CHECK(MakeFromText("").error == file + "is empty");
  CHECK(MakeFromText("x").error ==
        file + "is no tokenizer.json, no SentencePiece model and no file of tiktoken's ranks");
  CHECK(error_of([](Json* j) { (*j)["version"] = "2.0"; }) ==
        file + "version: \"2.0\" is unknown; there is 1.0");
  CHECK(error_of([](Json* j) {
          (*j)["extra"] = 1;
        }).starts_with(file + "the key \"extra\" is unknown; there are version, "));
  CHECK(error_of([](Json* j) { j->erase("model"); }) == file + "model: is missing, and must be an object");
  CHECK(
      error_of([](Json* j) {
        (*j)["normalizer"] = {{"type", "Sequence"},
                              {"normalizers", {{{"type", "NFC"}}, {{"type", "Upper"}}}}};
      })
          .starts_with(
              file + "normalizer.normalizers[1].type: the normalizer \"Upper\" is unknown; there are NFC, "));
  CHECK(error_of([](Json* j) {
          (*j)["pre_tokenizer"] = {{"type", "UnicodeBlocks"}};
        })
            .starts_with(file +
                         "pre_tokenizer.type: the pre-tokenizer \"UnicodeBlocks\" is unknown; there are "));
  CHECK(error_of([](Json* j) {
          (*j)["pre_tokenizer"] = {{"type", "Split"},
                                   {"pattern", {{"Regex", "a\\Kb"}}},
                                   {"behavior", "Isolated"},
                                   {"invert", false}};
        }).find("\\K is not supported") != std::string::npos);
  CHECK(error_of([](Json* j) {
          (*j)["decoder"] = {{"type", "Replace"}, {"pattern", {{"Regex", "a\\R"}}}, {"content", ""}};
        }) ==
        "tokenizer.json (tokenizer.json): the regular expression \"a\\R\", at byte 1: \\R is not supported");
  CHECK(error_of([](Json* j) {
          (*j)["decoder"] = {{"type", "Rot13"}};
        }).starts_with(file + "decoder.type: the decoder \"Rot13\" is unknown"));
  CHECK(error_of([](Json* j) {
          (*j)["model"]["dropout"] = 0.1;
        }).starts_with(file + "model.dropout: BPE dropout is not supported"));
  CHECK(error_of([](Json* j) {
          (*j)["model"]["type"] = "Trigram";
        }).starts_with(file + "model.type: the model \"Trigram\" is unknown"));
  CHECK(error_of([](Json* j) { (*j)["model"]["vocab"]["a"] = -1; }) ==
        file + "model.vocab: the id of \"a\" must be a whole number from 0 to 16777215, and is -1");
  CHECK(error_of([](Json* j) { (*j)["model"]["vocab"]["a"] = 3; }) ==
        file + "model.vocab: the id 3 of \"b\" is also that of \"a\"");
  CHECK(error_of([](Json* j) { (*j)["model"]["merges"][1] = "b  c"; }) ==
        file + "model.merges: [1]: \"b  c\" must be two tokens with one blank between them");
  CHECK(error_of([](Json* j) { (*j)["model"]["merges"][1] = "c a"; }) ==
        file +
            "model.merges: [1]: \"ca\" (the result of the merge) is not in the vocabulary; are the two of "
            "one tokenizer?");
  CHECK(error_of([](Json* j) { (*j)["model"]["unk_token"] = "<u>"; }) ==
        file + "model.unk_token: \"<u>\" is no token of the vocabulary");
  CHECK(error_of([](Json* j) { (*j)["added_tokens"][0].erase("lstrip"); }) ==
        file + "added_tokens[0].lstrip: is missing, and must be true or false");
  CHECK(error_of([](Json* j) { (*j)["added_tokens"][0]["id"] = 4; }) ==
        file + "added_tokens[0].id: is 4, but the model's vocabulary gives \"<s>\" the id 0");
  CHECK(error_of([](Json* j) { (*j)["added_tokens"].push_back(AddedTokenJson(3, "new")); }) ==
        file + "added_tokens[1].id: 3 of \"new\" is that of \"b\" in the model's vocabulary");
  CHECK(error_of([](Json* j) {
          (*j)["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", "AQAAAA=="}};
        }).find("the trie of the table of characters has 1 bytes") != std::string::npos);
}

TEST_CASE("a thousand damaged tokenizer.json: an error, or a tokenizer that works") {
  Json json = SmallJson();
  json["normalizer"] = Json::parse(
      R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Replace", "pattern": {"Regex": "a+"}, "content": "a"}]})");
  json["pre_tokenizer"] = Json::parse(
      R"({"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true}, {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": true}]})");
  const std::string text = json.dump();
  std::mt19937_64 random(5);
  int refused = 0;
  for (int i = 0; i < 1000; ++i) {
    std::string damaged = text;
    for (std::size_t n = 1 + random() % 3; n > 0; --n) {
      const std::size_t at = random() % damaged.size();
      switch (random() % 4) {
        case 0:
          damaged[at] = static_cast<char>(random());
          break;
        case 1:
          damaged.erase(at, 1 + random() % 20);
          break;
        case 2:
          damaged.insert(at, damaged.substr(random() % damaged.size(), random() % 30));
          break;
        default:
          damaged[at] = "0123456789\"{}[],:"[random() % 17];
          break;
      }
      if (damaged.empty()) damaged = "{";
    }
    const Made made = MakeFromText(damaged);
    refused += made.pipeline == nullptr ? 1 : 0;
    if (made.pipeline == nullptr) {
      CHECK(!made.error.empty());
      continue;
    }
    Ids ids;
    if (made.pipeline->Encode("abc <s> 12 cab\n\u00E9", {.special_tokens = true, .add_template = true}, &ids)
            .ok()) {
      for (const std::int32_t id : ids) CHECK((id >= 0 && id < made.pipeline->vocab_size()));
      CHECK(made.pipeline->Decode(ids, false).ok());
    }
  }
  CHECK(refused > 500);
}

}  // namespace engine::tokenizer
