// The unigram model (Kudo 2018): of all ways to cut a word into pieces the one whose scores have the largest sum.
#include <limits>

#include "engine/base/status.h"
#include "engine/data/tokenizer/read_model.h"
#include "engine/data/tokenizer/trie.h"
#include "engine/data/tokenizer/word_encoder.h"

namespace engine::tokenizer {
namespace {

Trie TrieOf(const UnigramModel& model) {
  std::vector<std::pair<std::string_view, std::int32_t>> pieces;
  for (std::int32_t id = 0; id < model.vocabulary.size(); ++id) {
    const std::string_view piece = model.vocabulary.Token(id);
    if (piece.empty() || IsNever(model.never, id)) continue;
    pieces.emplace_back(piece, id);
  }
  return Trie(std::move(pieces));
}

std::size_t CharacterBytes(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

class UnigramEncoder final : public WordEncoder {
 public:
  explicit UnigramEncoder(const UnigramModel& model) : model_(model), trie_(TrieOf(model)) {
    for (std::size_t byte = 0; byte < byte_tokens_.size(); ++byte) {
      byte_tokens_[byte] =
          model.byte_fallback ? model.vocabulary.Find(ByteToken(static_cast<unsigned char>(byte))) : kNoToken;
    }
  }

  // Dynamic programming over the characters' borders. A character that is no piece by itself may also be unknown. Of
  // equal sums the first that is found stays, as in the reference library.
  absl::Status Encode(std::string_view word, WordWorkspace* work,
                      std::vector<std::int32_t>* ids) const override {
    std::vector<WordWorkspace::Node>& best = work->nodes;  // of the ways that end before each byte
    best.assign(word.size() + 1, {0, kNoToken, kNowhere});
    best[0].begin = 0;
    for (std::size_t at = 0; at < word.size();) {
      const std::size_t length = CharacterBytes(word[at]);
      const double score = best[at].score;
      const auto offer = [&](std::size_t end, double sum, std::int32_t id) {
        if (best[end].begin != kNowhere && sum <= best[end].score) return;
        best[end] = {model_.single_precision ? static_cast<float>(sum) : sum, id,
                     static_cast<std::uint32_t>(at)};
      };
      bool is_known = false;
      trie_.ForPrefixes(word.substr(at), [&](std::size_t bytes, std::int32_t id) {
        offer(at + bytes, score + model_.scores[static_cast<std::size_t>(id)], id);
        is_known |= bytes == length;
      });
      if (!is_known) {
        if (model_.unknown == kNoToken) return NoTokenFor(word.substr(at, length));
        const double sum = score + model_.unknown_score;
        offer(at + length, model_.single_precision ? static_cast<float>(sum) : sum, model_.unknown);
      }
      at += length;
    }
    work->ids.clear();  // backwards
    for (std::size_t end = word.size(); end > 0;) {
      std::size_t begin = best[end].begin;
      const std::int32_t id = best[end].id;
      if (id != kNoToken && id == model_.unknown) {  // unknown neighbours are one
        while (begin > 0 && best[begin].id == id) begin = best[begin].begin;
        AddUnknown(word.substr(begin, end - begin), &work->ids);
      } else {
        work->ids.push_back(id);
      }
      end = begin;
    }
    ids->insert(ids->end(), work->ids.rbegin(), work->ids.rend());
    return absl::OkStatus();
  }

 private:
  static constexpr std::uint32_t kNowhere = std::numeric_limits<std::uint32_t>::max();

  void AddUnknown(std::string_view text, std::vector<std::int32_t>* backwards) const {
    if (const std::int32_t id = model_.vocabulary.Find(text); id != kNoToken && !IsNever(model_.never, id)) {
      backwards->push_back(id);
      return;
    }
    const std::size_t before = backwards->size();
    if (model_.byte_fallback) {
      for (std::size_t i = text.size(); i-- > 0;) {
        backwards->push_back(byte_tokens_[static_cast<unsigned char>(text[i])]);
        if (backwards->back() != kNoToken) continue;
        backwards->resize(before);
        break;
      }
    }
    if (backwards->size() == before) backwards->push_back(model_.unknown);
  }

  const UnigramModel& model_;
  Trie trie_;
  std::array<std::int32_t, 256> byte_tokens_ = {};
};

}  // namespace

std::unique_ptr<WordEncoder> MakeUnigramEncoder(const UnigramModel& model) {
  return std::make_unique<UnigramEncoder>(model);
}

}  // namespace engine::tokenizer
