// WordPiece (Schuster and Nakajima 2012; BERT's form): the longest token that a word begins with, then the longest
// continuing token, and so on; a word for which this fails is unknown as a whole. And word level: a word is a token.
#include <algorithm>

#include "engine/base/status.h"
#include "engine/data/tokenizer/read_model.h"
#include "engine/data/tokenizer/trie.h"
#include "engine/data/tokenizer/word_encoder.h"

namespace engine::tokenizer {
namespace {

Trie TrieBehind(const Vocabulary& vocabulary, std::string_view prefix) {
  std::vector<std::pair<std::string_view, std::int32_t>> tokens;
  for (std::int32_t id = 0; id < vocabulary.size(); ++id) {
    const std::string_view token = vocabulary.Token(id);
    if (token.size() > prefix.size() && token.starts_with(prefix))
      tokens.emplace_back(token.substr(prefix.size()), id);
  }
  return Trie(std::move(tokens));
}

absl::Status AddUnknownWord(std::int32_t unknown, std::string_view word, std::vector<std::int32_t>* ids) {
  if (unknown == kNoToken) return NoTokenFor(word);
  ids->push_back(unknown);
  return absl::OkStatus();
}

class WordPieceEncoder final : public WordEncoder {
 public:
  explicit WordPieceEncoder(const WordPieceModel& model)
      : model_(model),
        first_(TrieBehind(model.vocabulary, "")),
        continuing_(TrieBehind(model.vocabulary, model.continuing_prefix)) {}

  absl::Status Encode(std::string_view word, WordWorkspace* /*work*/,
                      std::vector<std::int32_t>* ids) const override {
    const auto characters = std::count_if(
        word.begin(), word.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
    if (characters > model_.max_characters) return AddUnknownWord(model_.unknown, word, ids);
    const std::size_t before = ids->size();
    for (std::size_t at = 0; at < word.size();) {
      std::size_t longest = 0;
      std::int32_t token = kNoToken;
      (at == 0 ? first_ : continuing_).ForPrefixes(word.substr(at), [&](std::size_t bytes, std::int32_t id) {
        longest = bytes;
        token = id;
      });
      if (token == kNoToken) {
        ids->resize(before);
        return AddUnknownWord(model_.unknown, word, ids);
      }
      ids->push_back(token);
      at += longest;
    }
    return absl::OkStatus();
  }

 private:
  const WordPieceModel& model_;
  Trie first_;
  Trie continuing_;
};

class WordLevelEncoder final : public WordEncoder {
 public:
  explicit WordLevelEncoder(const WordLevelModel& model) : model_(model) {}
  absl::Status Encode(std::string_view text, WordWorkspace* /*work*/,
                      std::vector<std::int32_t>* ids) const override {
    bool was_unknown = false;
    while (!text.empty()) {
      const std::string_view word =
          text.substr(0, model_.cuts_at_blanks ? text.find(kBlankSymbol, 1) : text.size());
      text.remove_prefix(word.size());
      const std::int32_t id = model_.vocabulary.Find(word);
      const bool is_unknown = id == kNoToken || IsNever(model_.never, id);
      if (!is_unknown) {
        ids->push_back(id);
      } else if (model_.byte_fallback) {
        for (const char byte : word)
          ids->push_back(model_.vocabulary.Find(ByteToken(static_cast<unsigned char>(byte))));
      } else if (!was_unknown) {
        RETURN_IF_ERROR(AddUnknownWord(model_.unknown, word, ids));
      }
      was_unknown = is_unknown;
    }
    return absl::OkStatus();
  }

 private:
  const WordLevelModel& model_;
};

}  // namespace

std::unique_ptr<WordEncoder> MakeWordPieceEncoder(const WordPieceModel& model) {
  return std::make_unique<WordPieceEncoder>(model);
}

std::unique_ptr<WordEncoder> MakeWordLevelEncoder(const WordLevelModel& model) {
  return std::make_unique<WordLevelEncoder>(model);
}

}  // namespace engine::tokenizer
