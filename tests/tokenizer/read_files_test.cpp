#include "engine/data/tokenizer/read_files.h"

#include <absl/strings/escaping.h>
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "engine/base/status.h"
#include "engine/data/tokenizer/pipeline.h"
#include "tests/data/temp_dir.h"

namespace engine::tokenizer {
namespace {

std::string PiecesData(const std::string& name) {
  return ENGINE_SOURCE_DIR "/tests/tokenizer/sentencepiece/" + name;
}

absl::StatusOr<std::unique_ptr<Pipeline>> OpenPath(const std::string& path) {
  absl::StatusOr<Description> description = ReadTokenizer(path);
  if (!description.ok()) return description.status();
  return Pipeline::Make(*std::move(description));
}

// The message of reading a file of these bytes, without the folder.
std::string ErrorOfFile(const std::string& name, const std::string& bytes) {
  const data::TempDir dir;
  data::WriteFile(dir / name, bytes);
  std::string error = Message(OpenPath(dir / name).status());
  for (std::size_t at = 0; (at = error.find(dir.path() + "/")) != std::string::npos;)
    error.erase(at, dir.path().size() + 1);
  return error;
}

void DamageModel(const std::string& model, int rounds, const std::string& name) {
  std::mt19937_64 random(9);
  const data::TempDir dir;
  for (int i = 0; i < rounds; ++i) {
    std::string damaged = model;
    for (std::size_t n = 1 + random() % 4; n > 0; --n) {
      const std::size_t at =
          random() % (random() % 2 == 0 ? damaged.size() : std::min<std::size_t>(damaged.size(), 200));
      if (random() % 3 == 0) {
        damaged.erase(at, 1 + random() % 9);
      } else {
        damaged[at] = static_cast<char>(random());
      }
    }
    if (random() % 8 == 0) damaged.resize(random() % damaged.size());
    data::WriteFile(dir / name, damaged);
    const absl::StatusOr<std::unique_ptr<Pipeline>> pipeline = OpenPath(dir / name);
    if (!pipeline.ok()) {
      CHECK(!pipeline.status().message().empty());
      continue;
    }
    std::vector<std::int32_t> ids;
    if (!(*pipeline)->Encode("Hello \uFB01ne  world\n\u4F60 EOD", {}, &ids).ok()) continue;
    for (const std::int32_t id : ids) CHECK((id >= 0 && id < (*pipeline)->vocab_size()));
    CHECK((*pipeline)->Decode(ids, false).ok());
  }
}

}  // namespace

TEST_CASE("SentencePiece models: ids and texts are SentencePiece's") {
  std::ifstream file(PiecesData("oracle.json"));
  const nlohmann::json oracle = nlohmann::json::parse(file);
  for (const char* kind : {"bpe", "unigram", "word", "char", "bpe_unused", "unigram_unused"}) {
    const absl::StatusOr<std::unique_ptr<Pipeline>> pipeline =
        OpenPath(PiecesData(std::string(kind) + ".model"));
    REQUIRE_MESSAGE(pipeline.ok(), Message(pipeline.status()));
    CHECK((*pipeline)->description().end_of_document == 2);
    for (const nlohmann::json& one : oracle.at(kind)) {
      const std::string text = one["text"];
      CAPTURE(std::string(kind));
      CAPTURE(text);
      std::vector<std::int32_t> ids;
      REQUIRE((*pipeline)->Encode(text, {}, &ids).ok());
      CHECK(ids == one["ids"].get<std::vector<std::int32_t>>());
      const std::string decoded = one["decoded"];
      // SentencePiece writes an unknown piece as " ⁇ ", and this as its name.
      if (decoded.find("\u2047") == std::string::npos) CHECK(*(*pipeline)->Decode(ids, false) == decoded);
    }
  }
}

TEST_CASE("damaged SentencePiece models: an error, or a tokenizer that works") {
  for (const char* kind :
       {"bpe.model", "unigram.model", "word.model", "char.model", "bpe_unused.model", "unigram_unused.model"})
    DamageModel(data::ReadFile(PiecesData(kind)), 500, kind);
}

TEST_CASE("a SentencePiece model of words: a control piece is no word of a text") {
  // pieces <unk> (2), <s> (3), a; trainer_spec: model_type 3; normalizer_spec: no dummy prefix
  const std::string model(
      "\n\x09\n\x05<unk>\x18\x02"
      "\n\x07\n\x03<s>\x18\x03"
      "\n\x03\n\x01"
      "a"
      "\x12\x02\x18\x03"
      "\x1A\x02\x18\x00",
      33);
  const data::TempDir dir;
  data::WriteFile(dir / "a.model", model);
  const absl::StatusOr<std::unique_ptr<Pipeline>> pipeline = OpenPath(dir / "a.model");
  REQUIRE_MESSAGE(pipeline.ok(), Message(pipeline.status()));
  const auto ids_of = [&](std::string_view text, bool special) {
    std::vector<std::int32_t> ids;
    CHECK((*pipeline)->Encode(text, {.special_tokens = special}, &ids).ok());
    return ids;
  };
  CHECK(ids_of("a", false) == std::vector<std::int32_t>{2});
  CHECK(ids_of("<s>", false) == std::vector<std::int32_t>{0});
  CHECK(ids_of("<s>", true) == std::vector<std::int32_t>{1});
  CHECK((*pipeline)->description().source.ends_with("a.model (SentencePiece, words)"));
}

TEST_CASE("mistakes of a SentencePiece model are named") {
  CHECK(ErrorOfFile("a.model", std::string("\n\x09\n\x05<unk>\x18\x02\x12\x02\x18\x07")) ==
        "a.model: error: the model is of the unknown type 7; there are 1 to 4");
  CHECK(ErrorOfFile("a.model", "\n\x05\n\x03the") == "a.model: error: it has no unknown piece");
  CHECK(ErrorOfFile("a.model", "\n\x50\n\x03the") == "a.model: error: a field of 80 bytes, but 5 are there");
  CHECK(ErrorOfFile("a.model", std::string("\n\x06\n\x02\xFFx\x18\x02", 8)).find("is empty or no UTF-8") !=
        std::string::npos);
}

TEST_CASE("tiktoken's ranks: lines are checked, and an unpublished vocabulary is refused by name") {
  std::string ranks;
  for (int byte = 0; byte < 256; ++byte) {
    std::string line;
    absl::Base64Escape(absl::string_view(std::string(1, static_cast<char>(byte))), &line);
    ranks += line + " " + std::to_string(byte) + "\n";
  }
  CHECK(ErrorOfFile("a.tiktoken", ranks)
            .starts_with("a.tiktoken: error: 256 ranks are no published vocabulary's"));
  CHECK(ErrorOfFile("a.tiktoken", ranks + "YWI= x\n") ==
        "a.tiktoken:257: error: the rank \"x\" must be a whole number from 0 to 16777215");
  CHECK(ErrorOfFile("a.tiktoken", ranks + "YQ== 300\n") ==
        "a.tiktoken:257: error: the token or its rank 300 stands twice");
  CHECK(ErrorOfFile("a.tiktoken", ranks + "Y!== 300\n")
            .starts_with("a.tiktoken:257: error: \"Y!== 300\" must be a token in base64"));
  CHECK(ErrorOfFile("a.tiktoken", "YQ== 0\n") ==
        "a.tiktoken: error: has no token for byte 0; all 256 bytes need one");
}

TEST_CASE("a folder: which file counts, and what is missing") {
  const data::TempDir dir;
  CHECK(Message(ReadTokenizer(dir.path()).status())
            .find("has no tokenizer: no tokenizer.json, tokenizer.model, ") != std::string::npos);
  CHECK(TokenizerFiles(dir.path()).empty());
  data::WriteFile(dir / "vocab.json", "{}");
  CHECK(Message(ReadTokenizer(dir.path()).status()).find("its merges.txt (or vocab.bpe) is not beside it") !=
        std::string::npos);
  data::WriteFile(dir / "merges.txt", "");
  CHECK(TokenizerFiles(dir.path()) == std::vector<std::string>{dir / "vocab.json", dir / "merges.txt"});
  data::WriteFile(dir / "tokenizer.model", data::ReadFile(PiecesData("bpe.model")));
  const absl::StatusOr<Description> description = ReadTokenizer(dir.path());
  REQUIRE(description.ok());
  CHECK(description->source.ends_with("tokenizer.model (SentencePiece, BPE)"));
}

TEST_CASE(
    "what begins documents: a template's token, else that of tokenizer_config.json, else a special token of "
    "a "
    "known name") {
  const data::TempDir dir;
  const auto beginning = [&dir](const std::string& name, const std::string& processor,
                                const std::string& config) {
    const auto added = [](int id, const std::string& content) {
      return fmt::format(R"({{"id": {}, "content": "{}", "single_word": false, "lstrip": false,
          "rstrip": false, "normalized": false, "special": true}})",
                         id, content);
    };
    data::WriteFile(dir / "tokenizer.json",
                    fmt::format(R"({{"added_tokens": [{}, {}, {}], "post_processor": {},
                    "model": {{"type": "BPE", "vocab": {{"a": 0}}, "merges": []}}}})",
                                added(1, name), added(2, "<one>"), added(3, "<two>"), processor));
    data::WriteFile(dir / "tokenizer_config.json", config);
    const absl::StatusOr<Description> description = ReadTokenizer(dir.path());
    REQUIRE_MESSAGE(description.ok(), Message(description.status()));
    if (!description->beginning_of_document.has_value()) return std::string("none");
    return fmt::format("{} {}", *description->beginning_of_document, description->beginning_of_document_from);
  };
  const std::string before =
      R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<one>", "type_id": 0}},
          {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
          "special_tokens": {"<one>": {"id": "<one>", "ids": [2], "tokens": ["<one>"]}}})";
  const std::string config = R"({"bos_token": {"content": "<two>"}})";
  CHECK(beginning("<bos>", before, config) == "2 the template");
  CHECK(beginning("<bos>", "null", config) == "3 bos_token of tokenizer_config.json");
  CHECK(beginning("<bos>", "null", "{}") == "1 the name \"<bos>\"");
  CHECK(beginning("<bos>", "null", R"({"bos_token": null})") == "none");
  CHECK(beginning("<begin>", "null", "{}") == "none");
  // Where tokenizer_config.json does not have the key, special_tokens_map.json may.
  data::WriteFile(dir / "special_tokens_map.json", R"({"bos_token": {"content": "<two>"}})");
  CHECK(beginning("<bos>", "null", "{}") == "3 bos_token of special_tokens_map.json");
  CHECK(beginning("<bos>", "null", R"({"bos_token": "<one>"})") == "2 bos_token of tokenizer_config.json");
  CHECK(beginning("<bos>", "null", R"({"bos_token": null})") == "none");
  CHECK(TokenizerFiles(dir.path()) == std::vector<std::string>{dir / "tokenizer.json",
                                                               dir / "special_tokens_map.json",
                                                               dir / "tokenizer_config.json"});
}

TEST_CASE("a word of the vocabulary is a special token where a file names it, and not for its name alone") {
  const data::TempDir dir;
  const auto read = [&dir](bool adds_end, const std::string& config) {
    // The words "<s>" and "</s>", and an added token; all that Qwen's tokenizer has of them.
    data::WriteFile(dir / "tokenizer.json",
                    fmt::format(R"({{"added_tokens": [{{"id": 3, "content": "{}", "single_word": false,
          "lstrip": false, "rstrip": false, "normalized": false, "special": true}}],
      "model": {{"type": "BPE", "vocab": {{"a": 0, "<s>": 1, "</s>": 2}}, "merges": []}}}})",
                                adds_end ? "<|endoftext|>" : "<|im_end|>"));
    data::WriteFile(dir / "tokenizer_config.json", config);
    const absl::StatusOr<Description> description = ReadTokenizer(dir.path());
    REQUIRE_MESSAGE(description.ok(), Message(description.status()));
    return fmt::format("{} {}", description->beginning_of_document.value_or(kNoToken),
                       description->end_of_document.value_or(kNoToken));
  };
  const auto both = [](int begin, int end) { return fmt::format("{} {}", begin, end); };
  CHECK(read(true, "{}") == both(kNoToken, 3));
  CHECK(read(true, R"({"bos_token": null, "eos_token": "<|im_end|>"})") == both(kNoToken, 3));
  CHECK(read(true, R"({"bos_token": "<s>", "eos_token": "</s>"})") == both(1, 3));
  CHECK(read(false, R"({"eos_token": "<|im_end|>"})") == both(kNoToken, 3));
  CHECK(read(false, R"({"bos_token": "<s>", "eos_token": "</s>"})") == both(1, 2));
  // Old conversions tell nothing of special tokens. A data set needs an end of documents.
  CHECK(read(false, "{}") == both(kNoToken, 2));
  CHECK(read(false, R"({"eos_token": null})") == both(kNoToken, kNoToken));
}

TEST_CASE("a folder's tokenizer_config.json names the end of documents where no token has a known name") {
  const data::TempDir dir;
  data::WriteFile(dir / "tokenizer.json",
                  R"({"added_tokens": [{"id": 1, "content": "<end>", "single_word": false, "lstrip": false,
          "rstrip": false, "normalized": false, "special": true}],
      "model": {"type": "BPE", "vocab": {"a": 0, "<end>": 1}, "merges": []}})");
  const auto read = [&dir](const std::string& config) {
    data::WriteFile(dir / "tokenizer_config.json", config);
    return ReadTokenizer(dir.path());
  };
  // Hugging Face's libraries write "no limit" as this integer, the double 1e30.
  const std::string limit = R"("model_max_length": 1000000000000000019884624838656)";
  for (const char* token : {R"("<end>")", R"({"content": "<end>", "lstrip": false})"}) {
    const absl::StatusOr<Description> description = read("{" + limit + R"(, "eos_token": )" + token + "}");
    REQUIRE_MESSAGE(description.ok(), Message(description.status()));
    CHECK(description->end_of_document == 1);
    CHECK(description->end_of_document_from == "eos_token of tokenizer_config.json");
  }
  for (const std::string& none : {"{" + limit + "}", std::string(R"({"eos_token": null})"),
                                  std::string(R"({"eos_token": "<nope>"})")}) {
    const absl::StatusOr<Description> description = read(none);
    REQUIRE_MESSAGE(description.ok(), Message(description.status()));
    CHECK(!description->end_of_document.has_value());
  }
  const auto error = [&](const std::string& config) {
    return Message(read(config).status()).substr(dir.path().size() + 1);
  };
  CHECK(error("[]") == "tokenizer_config.json: error: must be an object, and is a list");
  CHECK(error(R"({"eos_token": 5})") ==
        "tokenizer_config.json: error: eos_token must be a string, and is a number");
  CHECK(error(R"({"eos_token": {"lstrip": true}})") ==
        "tokenizer_config.json: error: eos_token must be a string, and is an object");
  CHECK(error(R"({"eos_token": {"content": null}})") ==
        "tokenizer_config.json: error: eos_token.content must be a string, and is null");
  CHECK(error("{\n\"eos_token\"}").starts_with("tokenizer_config.json:2:"));
}

}  // namespace engine::tokenizer
