// Ids of words that came lately, of one thread.
#pragma once

#include <xxhash.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "engine/data/tokenizer/page_array.h"

namespace engine::tokenizer {

// The bytes of a word, 15 at most, and their number in the highest byte. Zero: of a word that is too long.
struct WordKey {
  std::uint64_t low;
  std::uint64_t high;
};

// What of 16 bytes belongs to a word of so many.
inline constexpr std::array<WordKey, 16> kWordKeyMasks = [] {
  std::array<WordKey, 16> masks = {};
  for (std::size_t bytes = 0; bytes < masks.size(); ++bytes) {
    masks[bytes].low = bytes >= 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << 8 * bytes) - 1;
    masks[bytes].high = bytes <= 8 ? 0 : (std::uint64_t{1} << 8 * (bytes - 8)) - 1;
  }
  return masks;
}();

// Words of few bytes that became few ids: nearly all. A word is found or not by one line of the processor's cache.
class WordCache {
 public:
  static constexpr std::size_t kMostBytes = 15;
  static constexpr std::size_t kMostIds = 4;

  using Key = WordKey;

  WordCache() : lines_(kLines) {}

  // Of a word of 1 to kMostBytes bytes; 16 bytes are read.
  static Key KeyOfReadable(const char* word, std::size_t bytes) {
    Key key;
    std::memcpy(&key, word, sizeof key);
    key.low &= kWordKeyMasks[bytes].low;
    key.high = (key.high & kWordKeyMasks[bytes].high) | std::uint64_t{bytes} << 56;
    return key;
  }
  // Of any word, of which nothing behind is read.
  static Key KeyOf(std::string_view word) {
    Key key = {};
    if (word.size() > kMostBytes) return key;
    std::memcpy(&key, word.data(), word.size());
    key.high |= std::uint64_t{word.size()} << 56;
    return key;
  }

  static std::size_t PlaceOf(const Key& key) {
    const std::uint64_t mixed = (key.low ^ (key.high << 29 | key.high >> 35)) * 0x9E3779B97F4A7C15U;
    return (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93U >> (64 - kLineBits);
  }
  void Prefetch(std::size_t place) const { __builtin_prefetch(&lines_[place]); }

  // Writes the ids to out[0] and on, of which kMostIds are overwritten, and returns how many there are; 0: the word is not
  // here.
  std::size_t Find(const Key& key, std::size_t place, std::int32_t* out) const {
    const Line& line = lines_[place];
    // Without a branch, which could not be foreseen.
    const Slot* const slot =
        &line.slots[((line.slots[0].key.low ^ key.low) | (line.slots[0].key.high ^ key.high)) != 0];
    if (((slot->key.low ^ key.low) | (slot->key.high ^ key.high)) != 0) return 0;
    std::memcpy(out, slot->ids, sizeof slot->ids);
    out[0] &= kIdMask;
    return static_cast<std::uint32_t>(slot->ids[0]) >> kCountShift;
  }

  // In place of the older of two words. False where it has no room for such a word.
  bool Put(const Key& key, std::size_t place, std::span<const std::int32_t> ids) {
    if (ids.size() > kMostIds || ids.empty() || key.high == 0) return false;
    Line& line = lines_[place];
    line.slots[1] = line.slots[0];
    Slot& slot = line.slots[0];
    slot.key = key;
    for (std::size_t i = 0; i < ids.size(); ++i) slot.ids[i] = ids[i];
    slot.ids[0] |= static_cast<std::int32_t>(ids.size() << kCountShift);
    return true;
  }

 private:
  static constexpr int kLineBits = 18;  // 16 MiB
  static constexpr std::size_t kLines = std::size_t{1} << kLineBits;
  static constexpr int kCountShift = 24;  // ids have less bits (vocabulary.h)
  static constexpr std::int32_t kIdMask = (1 << kCountShift) - 1;
  struct Slot {
    Key key;                     // zero: empty
    std::int32_t ids[kMostIds];  // the first with their number in its highest byte
  };
  struct alignas(64) Line {  // of the processor's cache
    Slot slots[2];
  };

  PageArray<Line> lines_;
};

// The others, but for the longest. Words and ids stand one behind the other in a buffer; when it is full, all are
// forgotten.
class LongWordCache {
 public:
  static constexpr std::size_t kMostBytes = 512;

  static std::uint64_t HashOf(std::string_view word) { return XXH3_64bits(word.data(), word.size()); }

  // Empty: the word is not here. Valid until the next Put.
  std::span<const std::int32_t> Find(std::string_view word, std::uint64_t hash) const {
    if (places_.empty()) return {};
    const Place& place = places_[hash % kPlaces];
    if (place.hash != hash || place.bytes != word.size() || place.ids == 0) return {};
    const std::int32_t* const ids = buffer_.data() + place.begin;
    if (std::memcmp(ids + place.ids, word.data(), word.size()) != 0) return {};
    return {ids, place.ids};
  }

  void Put(std::string_view word, std::uint64_t hash, std::span<const std::int32_t> ids) {
    const std::size_t size = ids.size() + (word.size() + sizeof(std::int32_t) - 1) / sizeof(std::int32_t);
    if (word.size() > kMostBytes || ids.empty() || ids.size() > 4 * kMostBytes) return;
    if (places_.empty() || used_ + size > kBuffer) {
      places_.assign(kPlaces, {});
      buffer_.resize(kBuffer);
      used_ = 0;
    }
    places_[hash % kPlaces] = {hash, static_cast<std::uint32_t>(used_),
                               static_cast<std::uint16_t>(word.size()),
                               static_cast<std::uint16_t>(ids.size())};
    std::memcpy(&buffer_[used_], ids.data(), ids.size_bytes());
    std::memcpy(&buffer_[used_ + ids.size()], word.data(), word.size());
    used_ += size;
  }

 private:
  static constexpr std::size_t kPlaces = std::size_t{1} << 15;  // 512 KiB
  static constexpr std::size_t kBuffer = std::size_t{1} << 19;  // 2 MiB
  struct Place {
    std::uint64_t hash = 0;
    std::uint32_t begin = 0;  // of its ids, behind which its bytes stand
    std::uint16_t bytes = 0;
    std::uint16_t ids = 0;  // 0: none
  };
  std::vector<Place> places_;
  std::vector<std::int32_t> buffer_;
  std::size_t used_ = 0;
};

}  // namespace engine::tokenizer
