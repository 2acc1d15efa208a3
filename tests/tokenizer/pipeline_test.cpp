#include "engine/data/tokenizer/pipeline.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include "engine/base/status.h"
#include "engine/data/tokenizer/read_files.h"

namespace engine::tokenizer {
namespace {

using TokenIds = std::vector<std::int32_t>;

std::unique_ptr<Pipeline> Prepared(Description description) {
  absl::StatusOr<std::unique_ptr<Pipeline>> pipeline = Pipeline::Make(std::move(description));
  REQUIRE_MESSAGE(pipeline.ok(), Message(pipeline.status()));
  return *std::move(pipeline);
}

TokenIds IdsOf(const Pipeline& pipeline, std::string_view text) {
  TokenIds ids;
  const absl::Status status = pipeline.Encode(text, {}, &ids);
  REQUIRE_MESSAGE(status.ok(), Message(status));
  return ids;
}

const std::vector<std::string>& Characters() {
  static const std::vector<std::string> all = {"a", "b", "c", ",", "(", "\u2581", "\u00E9"};
  return all;
}

// Merges of random pairs of tokens, each of which makes a new token; in no order that training would give them.
BpeModel RandomBpe(std::mt19937_64* random, std::size_t characters, std::size_t merges) {
  BpeModel model;
  for (std::size_t i = 0; i < characters; ++i) model.vocabulary.Add(Characters()[i], model.vocabulary.size());
  std::vector<std::int32_t> ranks(merges);
  std::iota(ranks.begin(), ranks.end(), 0);
  if ((*random)() % 2 == 0) std::shuffle(ranks.begin(), ranks.end(), *random);
  while (model.merges.size() < merges) {
    const auto pick = [&] {
      return static_cast<std::int32_t>((*random)() % static_cast<std::size_t>(model.vocabulary.size()));
    };
    const std::int32_t left = pick();
    const std::int32_t right = pick();
    const std::string product =
        std::string(model.vocabulary.Token(left)) + std::string(model.vocabulary.Token(right));
    if (product.size() > 12) continue;
    const std::int32_t id = model.vocabulary.size();
    if (!model.vocabulary.Add(product, id)) continue;
    model.merges.Put({left, right, id, ranks[model.merges.size()]});
  }
  return model;
}

// The definition, word for word: the pair of the lowest rank, the leftmost of equals, until there is none.
TokenIds SlowBpe(const BpeModel& model, const std::vector<std::string>& characters) {
  std::map<std::pair<std::int32_t, std::int32_t>, Merge> merges;
  model.merges.ForEach([&](const Merge& merge) { merges[{merge.left, merge.right}] = merge; });
  TokenIds ids;
  for (const std::string& character : characters) ids.push_back(model.vocabulary.Find(character));
  while (true) {
    const Merge* best = nullptr;
    std::size_t place = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = merges.find({ids[i], ids[i + 1]});
      if (found == merges.end() || (best != nullptr && found->second.rank >= best->rank)) continue;
      best = &found->second;
      place = i;
    }
    if (best == nullptr) return ids;
    ids[place] = best->product;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

}  // namespace

TEST_CASE(
    "random BPEs: ids are those of the definition, in short and long texts, known to the cache or not") {
  std::mt19937_64 random(11);
  for (int round = 0; round < 60; ++round) {
    const std::size_t merges = 5 + random() % 60;
    // Texts of few kinds of characters are cut nowhere, and so are long words.
    const std::size_t kinds = round % 2 == 0 ? Characters().size() : 2 + random() % 2;
    Description description;
    description.model = RandomBpe(&random, kinds, merges);
    const std::unique_ptr<Pipeline> pipeline = Prepared(std::move(description));
    const BpeModel& model = std::get<BpeModel>(pipeline->description().model);
    for (int text = 0; text < 40; ++text) {
      std::vector<std::string> characters(1 + random() % (text % 4 < 2 ? 300 : 20));
      std::string joined;
      for (std::string& character : characters) {
        character = Characters()[random() % kinds];
        joined += character;
      }
      const TokenIds expected = SlowBpe(model, characters);
      CAPTURE(joined);
      REQUIRE(IdsOf(*pipeline, joined) == expected);
      REQUIRE(IdsOf(*pipeline, joined) == expected);
    }
  }
}

namespace {

// A token that is found in normalized text, and is in none of the texts: with it no text is cut before it is normalized.
Description WithoutShortCuts(Description description) {
  AddedToken token;
  token.id = VocabularyOf(description.model).size();
  token.content = "\U0001F999";
  token.normalized = true;
  description.added_tokens.push_back(token);
  return description;
}

void CheckShortCuts(const Description& description, const std::vector<std::string>& parts) {
  const std::unique_ptr<Pipeline> pipeline = Prepared(description);
  const std::unique_ptr<Pipeline> slow = Prepared(WithoutShortCuts(description));
  std::mt19937_64 random(11);
  for (int round = 0; round < 1500; ++round) {
    std::string text;
    const std::size_t length = 1 + random() % 30;
    for (std::size_t i = 0; i < length; ++i) text += parts[random() % parts.size()];
    CAPTURE(text);
    REQUIRE(IdsOf(*pipeline, text) == IdsOf(*slow, text));
  }
}

}  // namespace

TEST_CASE("texts that are cut before they are normalized get the ids that they get whole") {
  const std::vector<std::string> parts = {"a",      "b",      "ab",     "B",      "A",  " ",    " ",
                                          " ",      "  ",     ",",      "\n",     "\t", "\r\n", "\u00E9",
                                          "\u0301", "\u3000", "\u4F60", "\u2581", ".",  "\x01"};
  Description bert;
  WordPieceModel pieces;
  for (const char* token :
       {"[UNK]", "a", "b", "ab", "##a", "##b", "##ab", ",", ".", "e", "##e", "\u4F60", "\u2581"})
    pieces.vocabulary.Add(token, pieces.vocabulary.size());
  pieces.unknown = 0;
  pieces.max_characters = 6;
  bert.model = pieces;
  bert.pre_tokenizers = {SplitBert{}};
  for (const bool flag : {false, true}) {
    bert.normalizers = {BertNormalize{
        .clean_text = flag, .handle_chinese_chars = flag, .strip_accents = flag, .lowercase = flag}};
    CheckShortCuts(bert, parts);
    bert.normalizers = {BertNormalize{.handle_chinese_chars = flag, .strip_accents = !flag}};
    CheckShortCuts(bert, parts);
  }
  bert.normalizers = {};
  CheckShortCuts(bert, parts);

  Description unigram;
  UnigramModel scored;
  for (const char* token :
       {"?", "\u2581", "a", "b", "ab", "\u2581a", "\u2581ab", "e", ",", "\u2581,", "\n", "\u4F60", "ba", "."})
    scored.vocabulary.Add(token, scored.vocabulary.size());
  for (std::int32_t id = 0; id < scored.vocabulary.size(); ++id) scored.scores.push_back(-1.0 - 0.25 * id);
  scored.unknown = 0;
  scored.unknown_score = -20;
  unigram.model = scored;
  for (const PrependScheme scheme : {PrependScheme::kAlways, PrependScheme::kFirst, PrependScheme::kNever}) {
    unigram.pre_tokenizers = {Metaspace{.scheme = scheme}};
    unigram.normalizers = {};
    CheckShortCuts(unigram, parts);
    unigram.normalizers = {CleanNmt{}, ToNormalForm{NormalForm::kNfkc}, ToLowercase{},
                           StripEnds{.left = false}, Replace{{" {2,}", true}, " "}};
    CheckShortCuts(unigram, parts);
    unigram.normalizers = {StripEnds{}};  // which may not be cut
    CheckShortCuts(unigram, parts);
    unigram.pre_tokenizers = {SplitWhitespace{}, Metaspace{.scheme = scheme}};
    unigram.normalizers = {ToLowercase{}};
    CheckShortCuts(unigram, parts);
  }

  std::mt19937_64 random(12);
  for (int round = 0; round < 8; ++round) {
    Description bpe;
    BpeModel model = RandomBpe(&random, Characters().size(), 20);
    if (round % 2 == 0) {
      for (int byte = 0; byte < 256; ++byte)
        model.vocabulary.Add(fmt::format("<0x{:02X}>", byte), model.vocabulary.size());
      model.byte_fallback = true;
    }
    model.unknown = 0;
    model.fuse_unknown = true;
    bpe.model = model;
    bpe.normalizers = {Replace{{" ", false}, "\u2581"}};
    if (round % 4 < 2) bpe.normalizers.insert(bpe.normalizers.begin(), Prepend{"\u2581"});
    if (round % 3 == 0) bpe.pre_tokenizers = {Split{{" ", false}, Behavior::kMergedWithPrevious}};
    CheckShortCuts(bpe, parts);
    if (round % 3 == 0) continue;
    bpe.normalizers = {};
    for (const PrependScheme scheme :
         {PrependScheme::kAlways, PrependScheme::kFirst, PrependScheme::kNever}) {
      bpe.pre_tokenizers = {Metaspace{.scheme = scheme, .split = false}};
      CheckShortCuts(bpe, parts);
    }
    bpe.pre_tokenizers = {};
    SentencePieceNormalize plain;
    plain.add_dummy_prefix = round % 4 < 2;
    plain.remove_extra_whitespaces = false;
    bpe.normalizers = {plain};
    CheckShortCuts(bpe, parts);
  }
}

TEST_CASE("many threads get the ids that one gets") {
  const std::string folder = ENGINE_SOURCE_DIR "/tests/tokenizer/gpt2";
  const absl::StatusOr<Description> description = ReadTokenizer(folder);
  REQUIRE(description.ok());
  const std::unique_ptr<Pipeline> alone = Prepared(*description);
  const std::unique_ptr<Pipeline> pipeline = Prepared(*description);  // which has learned nothing yet
  std::vector<std::string> texts;
  std::mt19937_64 random(3);
  for (int i = 0; i < 200; ++i) {
    std::string text;
    for (std::size_t n = random() % 60; n > 0; --n)
      text += std::string(1 + random() % 12, static_cast<char>('a' + random() % 26)) + " ";
    texts.push_back(text);
  }
  std::vector<TokenIds> expected;
  for (const std::string& text : texts) expected.push_back(IdsOf(*alone, text));
  std::vector<int> differences(4, 0);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < differences.size(); ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < texts.size(); ++i) {
        const std::size_t at = (i * 7 + t * 50) % texts.size();
        TokenIds ids;
        if (!pipeline->Encode(texts[at], {}, &ids).ok() || ids != expected[at]) ++differences[t];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(differences == std::vector<int>(4, 0));
}

#ifdef __SANITIZE_ADDRESS__
constexpr std::clock_t kMostSeconds = 20;  // each access is looked at
#else
constexpr std::clock_t kMostSeconds = 1;
#endif

TEST_CASE("a megabyte of anything takes time in proportion, in every model") {
  std::vector<std::pair<std::string, Description>> descriptions;
  for (const char* kind : {"bpe", "unigram"}) {
    absl::StatusOr<Description> read =
        ReadTokenizer(std::string(ENGINE_SOURCE_DIR "/tests/tokenizer/sentencepiece/") + kind + ".model");
    REQUIRE(read.ok());
    descriptions.emplace_back(kind, *std::move(read));
  }
  WordPieceModel pieces;
  for (const char* token : {"[UNK]", "a", "##a", "##aa", "ab"})
    pieces.vocabulary.Add(token, pieces.vocabulary.size());
  pieces.unknown = 0;
  pieces.max_characters = 1 << 20;
  Description word_piece;
  word_piece.model = std::move(pieces);
  word_piece.normalizers = {BertNormalize{}};
  word_piece.pre_tokenizers = {SplitBert{}};
  descriptions.emplace_back("WordPiece", std::move(word_piece));
  for (auto& [name, description] : descriptions) {
    const std::unique_ptr<Pipeline> pipeline = Prepared(std::move(description));
    for (const std::string_view unit :
         {"a", " ", "\U0001F600", "\n", "\u4F60", "1", "ab", "\u0301", "\u2581", "EOD"}) {
      std::string text;
      while (text.size() < 1'000'000) text += unit;
      CAPTURE(name);
      CAPTURE(unit);
      const std::clock_t begin = std::clock();
      TokenIds ids;
      CHECK(pipeline->Encode(text, {}, &ids).ok());
      CHECK(std::clock() - begin < kMostSeconds * CLOCKS_PER_SEC);
    }
  }
}

}  // namespace engine::tokenizer
