#include "engine/data/tokenizer/unicode.h"

#include <doctest/doctest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "engine/base/status.h"
#include "engine/base/utf8.h"
#include "engine/data/tokenizer/normal_form.h"
#include "engine/data/tokenizer/normalizer_chain.h"

namespace engine::tokenizer {
namespace {

struct Fnv {
  std::uint32_t hash = 0x811C9DC5;
  void Add(unsigned char byte) { hash = (hash ^ byte) * 0x01000193U; }
};

bool IsSurrogate(char32_t c) { return c >= 0xD800 && c <= 0xDFFF; }

std::uint32_t HashOfSet(Properties any_of) {
  Fnv fnv;
  for (char32_t c = 0; c < 0x110000; ++c) fnv.Add(!IsSurrogate(c) && Is(c, any_of) ? 1 : 0);
  return fnv.hash;
}

std::uint32_t HashOfMapping(const std::function<void(char32_t, std::string*)>& append) {
  Fnv fnv;
  std::string text;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (IsSurrogate(c)) continue;
    text.clear();
    append(c, &text);
    for (const char byte : text) fnv.Add(static_cast<unsigned char>(byte));
    fnv.Add(0);
  }
  return fnv.hash;
}

nlohmann::json UnicodeOracle() {
  std::ifstream file(ENGINE_SOURCE_DIR "/tests/tokenizer/unicode.json");
  return nlohmann::json::parse(file);
}

}  // namespace

TEST_CASE("properties of all code points are the reference library's") {
  const nlohmann::json oracle = UnicodeOracle();
  constexpr const char* kNames[] = {"Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd",
                                    "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm",
                                    "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};
  for (int i = 0; i < 29; ++i) {
    CAPTURE(kNames[i]);
    CHECK(HashOfSet(Of(static_cast<Category>(i))) == oracle.at(kNames[i]).get<std::uint32_t>());
  }
  CHECK(HashOfSet(kWhiteSpace) == oracle.at("white_space").get<std::uint32_t>());
  CHECK(HashOfSet(kWord) == oracle.at("word").get<std::uint32_t>());
  CHECK(HashOfSet(kNumeric) == oracle.at("numeric").get<std::uint32_t>());
  CHECK(HashOfSet(kOldPunctuation) == oracle.at("old_punctuation").get<std::uint32_t>());
}

TEST_CASE("scripts of all code points are the reference library's") {
  Fnv fnv;
  for (char32_t c = 0; c < 0x110000; ++c) fnv.Add(ScriptOf(c));
  CHECK(fnv.hash == UnicodeOracle().at("scripts").get<std::uint32_t>());
}

TEST_CASE("what becomes of each code point is what the reference library makes of it") {
  const nlohmann::json oracle = UnicodeOracle();
  const BertNormalize nothing{
      .clean_text = false, .handle_chinese_chars = false, .strip_accents = false, .lowercase = false};
  BertNormalize clean = nothing;
  BertNormalize accents = nothing;
  BertNormalize chinese = nothing;
  clean.clean_text = accents.strip_accents = chinese.handle_chinese_chars = true;
  const std::pair<const char*, Normalizer> normalizers[] = {{"NFC", ToNormalForm{NormalForm::kNfc}},
                                                            {"NFD", ToNormalForm{NormalForm::kNfd}},
                                                            {"NFKC", ToNormalForm{NormalForm::kNfkc}},
                                                            {"NFKD", ToNormalForm{NormalForm::kNfkd}},
                                                            {"Lowercase", ToLowercase{}},
                                                            {"StripAccents", StripAccents{}},
                                                            {"Nmt", CleanNmt{}},
                                                            {"bert_clean", clean},
                                                            {"bert_accents", accents},
                                                            {"bert_chinese", chinese}};
  for (const auto& [name, normalizer] : normalizers) {
    CAPTURE(name);
    const absl::StatusOr<NormalizerChain> chain = NormalizerChain::Make({normalizer});
    REQUIRE(chain.ok());
    const std::uint32_t hash = HashOfMapping([&](char32_t c, std::string* out) {
      std::string text;
      AppendUtf8(c, &text);
      std::string storage;
      *out = *chain->Apply(text, &storage);
    });
    CHECK(hash == oracle.at(name).get<std::uint32_t>());
  }
}

TEST_CASE("a text that is plainly NFC is its own NFC") {
  std::string out;
  for (const char* text : {"plain", "caf\u00E9", "\u4F60\u597D", "\uAC00", "x\u2028y"}) {
    CAPTURE(text);
    CHECK(IsPlainlyNfc(text));
    out.clear();
    AppendNormalForm(text, NormalForm::kNfc, &out);
    CHECK(out == text);
  }
  for (const char* text : {"e\u0301", "\u212B", "\u1100\u1161", "\u0958"}) CHECK(!IsPlainlyNfc(text));
}

TEST_CASE("normal forms of sequences") {
  const auto form = [](std::string_view text, NormalForm form) {
    std::string out;
    AppendNormalForm(text, form, &out);
    return out;
  };
  CHECK(form("e\u0301x", NormalForm::kNfc) == "\u00E9x");
  CHECK(form("\u1100\u1161\u11A8", NormalForm::kNfc) == "\uAC01");
  CHECK(form("a\u0315\u0300", NormalForm::kNfd) == "a\u0300\u0315");  // ordered by class
  CHECK(form("a\u0315\u0300", NormalForm::kNfc) == "\u00E0\u0315");   // joined over a higher class
  CHECK(form("q\u0307\u0323", NormalForm::kNfc) == "q\u0323\u0307");
  CHECK(form("a\u0333\u0323", NormalForm::kNfc) == "a\u0333\u0323");  // behind one of the same class
  CHECK(form("\uFB01\u2460", NormalForm::kNfkc) == "fi1");
  CHECK(form("\u0344", NormalForm::kNfc) == "\u0308\u0301");  // excluded from composition
  CHECK(form("\u1E9B\u0323", NormalForm::kNfkc) == "\u1E69");
}

}  // namespace engine::tokenizer
