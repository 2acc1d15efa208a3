#include <doctest/doctest.h>

#include "engine/base/status.h"
#include "engine/data/tokenizer/pipeline.h"
#include "engine/data/tokenizer/read_files.h"
#include "tests/data/temp_dir.h"

namespace engine::tokenizer {
namespace {

using BertIds = std::vector<std::int32_t>;

// ids: 0 [PAD], 1 [UNK], 2 [CLS], 3 [SEP], 4 un, 5 ##able, 6 cafe, 7 Caf, 8 ##é, 9 ",", 10 你, 11 ##好, 12 好
constexpr const char* kBertLines =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\nun\n##able\ncafe\nCaf\n##\u00E9\n,\n\u4F60\n##\u597D\n\u597D\n";

class BertFolder {
 public:
  explicit BertFolder(const std::string& lines = kBertLines) { Write("vocab.txt", lines); }
  void Write(const std::string& name, const std::string& text) const { data::WriteFile(dir_ / name, text); }
  std::string path() const { return dir_.path(); }

  absl::StatusOr<std::unique_ptr<Pipeline>> Open() const {
    absl::StatusOr<Description> description = ReadTokenizer(dir_.path());
    if (!description.ok()) return description.status();
    return Pipeline::Make(*std::move(description));
  }
  BertIds Ids(std::string_view text, const EncodeOptions& options = {}) const {
    const absl::StatusOr<std::unique_ptr<Pipeline>> pipeline = Open();
    REQUIRE_MESSAGE(pipeline.ok(), Message(pipeline.status()));
    BertIds ids;
    REQUIRE((*pipeline)->Encode(text, options, &ids).ok());
    return ids;
  }
  std::string Error() const {
    std::string error = Message(Open().status());
    for (std::size_t at = 0; (at = error.find(dir_.path() + "/")) != std::string::npos;)
      error.erase(at, dir_.path().size() + 1);
    return error;
  }
  std::string ErrorWith(const std::string& name, const std::string& text) const {
    Write(name, text);
    std::string error = Error();
    std::filesystem::remove(dir_ / name);
    return error;
  }

 private:
  data::TempDir dir_;
};

}  // namespace

TEST_CASE("a vocab.txt alone: WordPiece of lower case without accents, with BERT's special tokens") {
  const BertFolder folder;
  CHECK(folder.Ids("Unable, CAF\u00C9 \u4F60\u597D x") == BertIds{4, 5, 9, 6, 10, 12, 1});
  CHECK(folder.Ids("[SEP]") == BertIds{1, 1, 1});
  CHECK(folder.Ids("un[SEP]", {.special_tokens = true, .add_template = true}) == BertIds{2, 4, 3, 3});
  const std::unique_ptr<Pipeline> pipeline = *folder.Open();
  CHECK(*pipeline->Decode(BertIds{2, 4, 5, 9, 6, 3}, /*skip_special=*/true) == "unable, cafe");
  CHECK(pipeline->vocab_size() == 14);  // [MASK] has no line, and is behind the last one
  CHECK(FindToken(pipeline->description(), "[MASK]") == 13);
  CHECK(pipeline->description().source.ends_with("vocab.txt (BERT's vocabulary)"));
  CHECK(!pipeline->description().end_of_document.has_value());
  CHECK(TokenizerFiles(folder.path()) == std::vector<std::string>{folder.path() + "/vocab.txt"});
}

TEST_CASE("a vocab.txt's tokenizer_config.json says what becomes of a text") {
  const BertFolder folder;
  folder.Write("tokenizer_config.json", R"({"do_lower_case": false, "tokenizer_class": "BertTokenizerFast",
    "model_max_length": 1000000000000000019884624838656, "strip_accents": null, "never_split": null})");
  CHECK(folder.Ids("Caf\u00E9 UN cafe") == BertIds{7, 8, 1, 6});
  folder.Write("tokenizer_config.json", R"({"do_lower_case": false, "strip_accents": true})");
  CHECK(folder.Ids("caf\u00E9 Cafe") == BertIds{6, 1});
  folder.Write("tokenizer_config.json", R"({"strip_accents": false})");
  CHECK(folder.Ids("CAF\u00C9") == BertIds{1});
  folder.Write("tokenizer_config.json", R"({"tokenize_chinese_chars": false})");
  CHECK(folder.Ids("\u4F60\u597D") == BertIds{10, 11});
  folder.Write("tokenizer_config.json",
               R"({"unk_token": {"content": "un"}, "sep_token": ",", "cls_token": "[PAD]",
    "pad_token": null, "mask_token": null})");
  CHECK(folder.Ids("x", {.add_template = true}) == BertIds{0, 4, 9});
  CHECK((*folder.Open())->vocab_size() == 13);
}

TEST_CASE("tokens that are added to a vocab.txt: of the configuration, or of the older files") {
  const BertFolder folder;
  folder.Write("special_tokens_map.json", R"({"sep_token": "<sep>", "additional_special_tokens": ["<x>"],
    "mask_token": {"content": "[MASK]", "lstrip": true}})");
  folder.Write("added_tokens.json", R"({"<y>": 13, "<x>": 14})");
  folder.Write("tokenizer_config.json", R"({"sep_token": "[SEP]"})");
  const std::unique_ptr<Pipeline> older = *folder.Open();
  const auto id_of = [](const Pipeline& pipeline, std::string_view token) {
    return FindToken(pipeline.description(), token);
  };
  for (const auto& [token, id] : {std::pair("<y>", 13), {"<x>", 14}, {"<sep>", 15}, {"[MASK]", 16}})
    CHECK(id_of(*older, token) == id);
  CHECK(folder.Ids("un<Y>un<x> \n[MASK]", {.special_tokens = true, .add_template = true}) ==
        BertIds{2, 4, 13, 4, 14, 16, 15});
  CHECK(folder.Ids("un<y><x>").size() > 3);  // what is special is characters, <y> is not
  CHECK(folder.Ids("un<y>") == BertIds{4, 13});
  CHECK(TokenizerFiles(folder.path()) == std::vector<std::string>{folder.path() + "/vocab.txt",
                                                                  folder.path() + "/special_tokens_map.json",
                                                                  folder.path() + "/added_tokens.json",
                                                                  folder.path() + "/tokenizer_config.json"});

  folder.Write("tokenizer_config.json", R"({"added_tokens_decoder": {
    "0": {"content": "[PAD]", "special": true}, "13": {"content": "Cafe", "special": false, "normalized": false},
    "14": {"content": "UNcafe"}}})");
  CHECK(folder.Ids("unCafe cafe<x>[PAD][pad]", {.special_tokens = true}) ==
        BertIds{4, 13, 6, 1, 1, 1, 0, 1, 1, 1});
  CHECK(folder.Ids("uncafe") == BertIds{14});  // is found in normalized text, which special tokens are not
  CHECK(id_of(**folder.Open(), "<sep>") == kNoToken);
  CHECK(id_of(**folder.Open(), "[MASK]") == 15);
}

TEST_CASE("lines of a vocab.txt: all ends of lines, and of equal ones the last") {
  const BertFolder folder("[UNK]\r\nun\r[CLS]\n\n[SEP]\nun\n[PAD]\n[MASK]");
  CHECK(folder.Ids("un x", {.add_template = true}) == BertIds{2, 5, 0, 4});
  CHECK((*folder.Open())->vocab_size() == 8);
  CHECK(*(*folder.Open())->Decode(BertIds{1, 5}, false) == "\uFFFD un");
}

TEST_CASE("mistakes beside and in a vocab.txt are named") {
  const BertFolder folder;
  const auto config = [&folder](const std::string& text) {
    return folder.ErrorWith("tokenizer_config.json", text);
  };
  const std::string file = "tokenizer_config.json: error: ";
  CHECK(config(R"({"tokenizer_class": "BertJapaneseTokenizer"})") ==
        file +
            "tokenizer_class is BertJapaneseTokenizer, and what that makes of a vocab.txt is not known here; "
            "BertTokenizer's is");
  CHECK(config(R"({"do_basic_tokenize": false})") == file + "do_basic_tokenize false is not supported");
  CHECK(config(R"({"never_split": ["un"]})") == file + "never_split is not supported");
  CHECK(config(R"({"do_lower_case": 1})") == file + "do_lower_case must be true or false, and is a number");
  CHECK(config(R"({"cls_token": null})") == file + "cls_token must name a token");
  CHECK(config(R"({"additional_special_tokens": "<x>"})") ==
        file + "additional_special_tokens must be a list, and is a string");
  CHECK(config(R"({"additional_special_tokens": [{"content": "<x>", "lstrip": 0}]})") ==
        file + "additional_special_tokens[0].lstrip must be true or false, and is a number");
  CHECK(config(R"({"added_tokens_decoder": []})") ==
        file + "added_tokens_decoder must be an object, and is a list");
  CHECK(config(R"({"added_tokens_decoder": {"1x": {"content": "<x>"}}})") ==
        file + "the id of \"<x>\" must be a whole number from 0 to 16777215");
  CHECK(config(R"({"added_tokens_decoder": {"15": {"content": "<x>"}}})") ==
        "vocab.txt: error: gives the added token \"<x>\" the id 13, but its id is said to be 15");
  CHECK(config(R"({"unk_token": "<unk>"})")
            .starts_with("vocab.txt: error: has no line \"<unk>\" for what is unknown; is it BERT's?"));
  CHECK(folder.ErrorWith("added_tokens.json", R"({"<x>": -1})") ==
        "added_tokens.json: error: the id of \"<x>\" must be a whole number from 0 to 16777215");
  CHECK(folder.ErrorWith("special_tokens_map.json", "[]") ==
        "special_tokens_map.json: error: must be an object, and is a list");
  CHECK(folder.Error().empty());
  CHECK(BertFolder("a\nb\n").Error().starts_with("vocab.txt: error: has no line \"[UNK]\""));
  CHECK(BertFolder("[UNK]\nb\xFF\n").Error() == "vocab.txt:2: error: is not UTF-8");
  CHECK(BertFolder("[UNK]\n[UNK]\n").Error() ==
        "vocab.txt: error: has equal lines, so that the id of the added token \"[SEP]\" is not certain");
}

}  // namespace engine::tokenizer
