// Byte-pair encoding (Sennrich et al. 2016): a word is cut into its characters or bytes; then, as long as two neighbours
// have a merge, the pair with the lowest rank becomes one token, the leftmost of equals first (or, in rounds, all equals).
#include <algorithm>
#include <array>
#include <functional>
#include <limits>

#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/base/utf8.h"
#include "engine/data/tokenizer/byte_characters.h"
#include "engine/data/tokenizer/merge_table.h"
#include "engine/data/tokenizer/read_model.h"
#include "engine/data/tokenizer/word_encoder.h"

namespace engine::tokenizer {
namespace {

constexpr std::size_t kShortWord = 40;  // symbols up to which looking at all pairs beats a heap

// Whether no merge uses a token before the last merge that makes it.
bool MergesAreInOrder(const BpeModel& model) {
  std::vector<std::int32_t> first_use(static_cast<std::size_t>(model.vocabulary.size()), kNoRank);
  const auto use = [&](std::int32_t id) -> std::int32_t& { return first_use[static_cast<std::size_t>(id)]; };
  model.merges.ForEach([&](const Merge& merge) {
    use(merge.left) = std::min(use(merge.left), merge.rank);
    use(merge.right) = std::min(use(merge.right), merge.rank);
  });
  bool are_in_order = true;
  model.merges.ForEach([&](const Merge& merge) { are_in_order &= merge.rank < use(merge.product); });
  return are_in_order;
}

class BpeEncoder final : public WordEncoder {
 public:
  BpeEncoder(const BpeModel& model, bool of_bytes)
      : model_(model),
        of_bytes_(of_bytes),
        in_rounds_(model.in_rounds && !MergesAreInOrder(model)),
        merges_(model.merges) {
    for (int byte = 0; byte < 256; ++byte) {
      const auto index = static_cast<std::size_t>(byte);
      std::string shown;
      AppendByteCharacter(static_cast<unsigned char>(byte), &shown);
      id_of_byte_[index] = model.vocabulary.Find(shown);
      id_of_byte_token_[index] =
          model.byte_fallback ? model.vocabulary.Find(ByteToken(static_cast<unsigned char>(byte))) : kNoToken;
    }
    if (of_bytes && model.ignore_merges) AddWords();
    if (of_bytes) AddBytePairs();
    if (of_bytes && IsPlain()) return;
    id_of_character_.assign(0xD800, kNoToken);
    for (std::int32_t id = 0; id < model.vocabulary.size(); ++id) {
      const std::string_view token = model.vocabulary.Token(id);
      char32_t c = 0;
      if (token.empty() || token.size() > 3 || DecodeUtf8(token, &c) != token.size()) continue;
      if (c < id_of_character_.size()) id_of_character_[c] = id;
    }
  }

  absl::Status Encode(std::string_view word, WordWorkspace* work,
                      std::vector<std::int32_t>* ids) const override {
    if (model_.ignore_merges) {
      const std::int32_t id = of_bytes_ ? words_.Find(word) : model_.vocabulary.Find(word);
      if (id != kNoToken) {
        ids->push_back(id);
        return absl::OkStatus();
      }
    }
    work->ids.clear();
    RETURN_IF_ERROR(of_bytes_ ? StartWithBytes(word, &work->ids) : StartWithCharacters(word, &work->ids));
    if (work->ids.size() <= kShortWord && !in_rounds_ && model_.unused.empty()) {
      MergeShort(byte_pairs_.empty() ? std::string_view() : word, &work->ids, ids);
    } else {
      MergeLong(work, ids);
    }
    return absl::OkStatus();
  }

 private:
  bool IsPlain() const { return model_.continuing_prefix.empty() && model_.end_suffix.empty(); }

  // Tokens by the bytes that they show; one with a character that shows none is no word.
  void AddWords() {
    words_.Reserve(static_cast<std::size_t>(model_.vocabulary.tokens()),
                   8 * static_cast<std::size_t>(model_.vocabulary.tokens()));
    std::string bytes;
    for (std::int32_t id = 0; id < model_.vocabulary.size(); ++id) {
      if (model_.vocabulary.Has(id) && BytesShownBy(model_.vocabulary.Token(id), &bytes) && !bytes.empty())
        words_.Add(bytes, id);
    }
  }

  // Where each byte is a token, the merges of two bytes are found without a search.
  void AddBytePairs() {
    if (!IsPlain() || std::count(id_of_byte_.begin(), id_of_byte_.end(), kNoToken) > 0) return;
    std::vector<std::int16_t> byte_of(static_cast<std::size_t>(model_.vocabulary.size()), -1);
    for (std::size_t byte = 0; byte < id_of_byte_.size(); ++byte)
      byte_of[static_cast<std::size_t>(id_of_byte_[byte])] = static_cast<std::int16_t>(byte);
    byte_pairs_.resize(std::size_t{1} << 16);
    model_.merges.ForEach([&](const Merge& merge) {
      const std::int16_t left = byte_of[static_cast<std::size_t>(merge.left)];
      const std::int16_t right = byte_of[static_cast<std::size_t>(merge.right)];
      if (left >= 0 && right >= 0)
        byte_pairs_[static_cast<std::size_t>(left << 8 | right)] = {merge.rank, merge.product};
    });
  }

  bool Unknown(std::size_t position, std::size_t* last_unknown, std::vector<std::int32_t>* symbols) const {
    if (model_.unknown == kNoToken) return false;
    if (!(model_.fuse_unknown && *last_unknown + 1 == position)) symbols->push_back(model_.unknown);
    *last_unknown = position;
    return true;
  }

  absl::Status StartWithBytes(std::string_view word, std::vector<std::int32_t>* symbols) const {
    const bool is_plain = IsPlain();
    if (!is_plain) {
      std::string shown;
      for (const char c : word) AppendByteCharacter(static_cast<unsigned char>(c), &shown);
      return StartWithCharacters(shown, symbols);
    }
    std::size_t last_unknown = std::numeric_limits<std::size_t>::max() - 1;
    for (std::size_t at = 0; at < word.size(); ++at) {
      const std::int32_t id = id_of_byte_[static_cast<unsigned char>(word[at])];
      if (id != kNoToken) {
        symbols->push_back(id);
      } else if (!Unknown(at, &last_unknown, symbols)) {
        return NoTokenFor(word.substr(at, 1));
      }
    }
    return absl::OkStatus();
  }

  absl::Status StartWithCharacters(std::string_view word, std::vector<std::int32_t>* symbols) const {
    const bool is_plain = IsPlain();
    std::size_t last_unknown = std::numeric_limits<std::size_t>::max() - 1;
    std::size_t position = 0;
    std::string character;
    for (std::size_t at = 0; at < word.size(); ++position) {
      char32_t c = 0;
      const std::size_t length = DecodeUtf8(word.substr(at), &c);
      std::string_view text = word.substr(at, length);
      std::int32_t id = kNoToken;
      if (is_plain && c < id_of_character_.size()) {
        id = id_of_character_[c];
      } else if (is_plain) {
        id = model_.vocabulary.Find(text);
      } else {
        character = at > 0 ? model_.continuing_prefix : "";
        character += text;
        if (at + length == word.size()) character += model_.end_suffix;
        text = character;
        id = model_.vocabulary.Find(text);
      }
      at += length;
      if (id != kNoToken) {
        symbols->push_back(id);
        continue;
      }
      const auto byte_token = [this](char byte) {
        return id_of_byte_token_[static_cast<unsigned char>(byte)];
      };
      if (model_.byte_fallback &&
          std::all_of(text.begin(), text.end(), [&](char byte) { return byte_token(byte) != kNoToken; })) {
        for (const char byte : text) symbols->push_back(byte_token(byte));
      } else if (!Unknown(position, &last_unknown, symbols)) {
        return NoTokenFor(text);
      }
    }
    return absl::OkStatus();
  }

  // Looks at all ranks for the lowest each time; quadratic, for few symbols. `bytes`: those that the symbols are, or none.
  void MergeShort(std::string_view bytes, std::vector<std::int32_t>* symbols,
                  std::vector<std::int32_t>* out) const {
    std::int32_t* const ids = symbols->data();
    std::size_t count = symbols->size();
    MergeTable::Found found[kShortWord];  // of merging the symbol with the next
    for (std::size_t i = 0; i + 1 < count; ++i) {
      found[i] = !bytes.empty() ? OfBytes(bytes[i], bytes[i + 1]) : merges_.Find(ids[i], ids[i + 1]);
    }
    while (count > 1) {
      std::size_t best = 0;
      for (std::size_t i = 1; i + 1 < count; ++i) {
        if (found[i].rank < found[best].rank) best = i;
      }
      if (found[best].rank == kNoRank) break;
      ids[best] = found[best].product;
      --count;
      if (best + 1 < count) merges_.Prefetch(ids[best], ids[best + 2]);
      if (best > 0) merges_.Prefetch(ids[best - 1], ids[best]);
      for (std::size_t i = best + 1; i < count; ++i) {
        ids[i] = ids[i + 1];
        found[i] = found[i + 1];
      }
      if (best + 1 < count) found[best] = merges_.Find(ids[best], ids[best + 1]);
      if (best > 0) found[best - 1] = merges_.Find(ids[best - 1], ids[best]);
    }
    out->insert(out->end(), ids, ids + count);
  }

  const MergeTable::Found& OfBytes(char left, char right) const {
    return byte_pairs_[static_cast<std::size_t>(static_cast<unsigned char>(left)) << 8 |
                       static_cast<unsigned char>(right)];
  }

  // A heap of pairs: n log n in the symbols.
  void MergeLong(WordWorkspace* work, std::vector<std::int32_t>* out) const {
    std::vector<WordWorkspace::Symbol>& symbols = work->symbols;
    std::vector<std::uint64_t>& heap = work->candidates;
    const auto size = static_cast<std::int32_t>(work->ids.size());
    symbols.resize(work->ids.size());
    heap.clear();
    const auto at = [&](std::int32_t i) -> WordWorkspace::Symbol& {
      return symbols[static_cast<std::size_t>(i)];
    };
    work->parts.clear();
    const auto look = [&](std::int32_t i) {
      WordWorkspace::Symbol& symbol = at(i);
      symbol.rank = kNoRank;
      if (symbol.next >= size) return false;
      const MergeTable::Found found = merges_.Find(symbol.id, at(symbol.next).id);
      symbol.rank = found.rank;
      if (found.rank == kNoRank) return false;
      if (IsNever(model_.unused, found.product)) work->parts[found.product] = {symbol.id, at(symbol.next).id};
      return true;
    };
    const auto entry = [&](std::int32_t i) {
      return static_cast<std::uint64_t>(at(i).rank) << 32 | static_cast<std::uint32_t>(i);
    };
    const auto later = std::greater<std::uint64_t>();
    for (std::int32_t i = 0; i < size; ++i)
      at(i) = {work->ids[static_cast<std::size_t>(i)], i - 1, i + 1, kNoRank};
    for (std::int32_t i = 0; i < size; ++i) {
      if (look(i)) heap.push_back(entry(i));
    }
    std::make_heap(heap.begin(), heap.end(), later);
    const auto consider = [&](std::int32_t i) {
      if (!look(i)) return;
      heap.push_back(entry(i));
      std::push_heap(heap.begin(), heap.end(), later);
    };
    const auto pop = [&] {
      std::pop_heap(heap.begin(), heap.end(), later);
      const std::uint64_t candidate = heap.back();
      heap.pop_back();
      return candidate;
    };
    std::vector<std::uint64_t>& round = work->round;
    while (!heap.empty()) {
      round.assign(1, pop());
      const auto rank = static_cast<std::int32_t>(round[0] >> 32);
      while (in_rounds_ && !heap.empty() && static_cast<std::int32_t>(heap.front() >> 32) == rank)
        round.push_back(pop());
      for (const std::uint64_t candidate : round) {
        const auto i = static_cast<std::int32_t>(candidate & 0xFFFFFFFF);
        WordWorkspace::Symbol& left = at(i);
        if (left.rank != rank) continue;  // an earlier merge took one of the two, or made another pair of it
        WordWorkspace::Symbol& right = at(left.next);
        left.id = merges_.Find(left.id, right.id).product;
        left.next = right.next;
        right.rank = kNoRank;
        if (left.next < size) at(left.next).previous = i;
        consider(i);
        if (left.previous >= 0) consider(left.previous);
      }
    }
    for (std::int32_t i = 0; i < size; i = at(i).next) {
      work->parts.empty() ? out->push_back(at(i).id) : AddUsed(at(i).id, work, out);
    }
  }

  // The id, or what an unused one is made of.
  static void AddUsed(std::int32_t id, WordWorkspace* work, std::vector<std::int32_t>* out) {
    for (std::vector<std::int32_t> rest = {id}; !rest.empty();) {
      const auto parts = work->parts.find(rest.back());
      if (parts == work->parts.end()) {
        out->push_back(rest.back());
        rest.pop_back();
      } else {
        const auto [left, right] = parts->second;
        rest.back() = right;
        rest.push_back(left);
      }
    }
  }

  const BpeModel& model_;
  const bool of_bytes_;
  const bool in_rounds_;
  const MergeTable& merges_;
  std::vector<MergeTable::Found> byte_pairs_;  // by both bytes; empty: not all bytes are tokens
  Vocabulary words_;                           // of ignore_merges over bytes
  std::array<std::int32_t, 256> id_of_byte_ = {};
  std::array<std::int32_t, 256> id_of_byte_token_ = {};
  std::vector<std::int32_t> id_of_character_;  // where words are of characters: of the first ones
};

}  // namespace

absl::StatusOr<std::unique_ptr<WordEncoder>> MakeBpeEncoder(const BpeModel& model, bool of_bytes) {
  return std::make_unique<BpeEncoder>(model, of_bytes);
}

}  // namespace engine::tokenizer
