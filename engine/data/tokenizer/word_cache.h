// Ids of words that came lately. All threads that use a tokenizer share them, so that a word is learned once.
#pragma once

#include <xxhash.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
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

// Words of few bytes that became few ids: nearly all. A word is found or not by one line of the processor's cache, and
// without waiting. A line counts how often one of its words was replaced; a reader for whom that changes has not found its
// word (H.-J. Boehm, "Can seqlocks get along with programming language memory models?", 2012).
class WordCache {
  struct Line;

 public:
  static constexpr std::size_t kMostBytes = 15;
  static constexpr std::size_t kMostIds = 4;

  using Key = WordKey;
  using Place = Line*;

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

  // Where the word is if it is here.
  Place PlaceOf(const Key& key) {
    const std::uint64_t mixed = (key.low ^ (key.high << 29 | key.high >> 35)) * 0x9E3779B97F4A7C15U;
    return &lines_[(mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93U >> (64 - kLineBits)];
  }
  static void Prefetch(Place place) { __builtin_prefetch(place); }

  // Writes the ids to out[0] and on, of which kMostIds are overwritten, and returns how many there are; 0: the word is not
  // here.
  static std::size_t Find(const Key& key, Place place, std::int32_t* out) {
    Line& line = *place;
    const std::uint64_t state = Load(line.state);
    // Without a branch, which could not be foreseen.
    const std::size_t at = Difference(line, 0, key) != 0 ? 1 : 0;
    const std::uint64_t difference = Difference(line, at, key);
    const std::uint64_t ids = Load(line.ids[at]);
    const std::uint32_t third = Load(line.third_ids[at]);
    if ((difference | (state ^ Load(line.state))) != 0) return 0;
    std::memcpy(out, &ids, sizeof ids);
    out[0] = static_cast<std::int32_t>(ids & kIdMask);
    out[2] = static_cast<std::int32_t>(third);
    const std::size_t count = static_cast<std::uint32_t>(ids) >> kIdBits;
    if (count == kMostIds) TakeFourth(static_cast<std::uint32_t>(state >> 8 * at), out);
    return count;
  }

  // In place of the older of two words. False where it has no room for such a word. Where another thread is writing the
  // same line, the word is forgotten.
  static bool Put(const Key& key, Place place, std::span<const std::int32_t> ids) {
    if (ids.size() > kMostIds || ids.empty() || key.high == 0) return false;
    Line& line = *place;
    std::uint64_t state = Load(line.state);
    if ((state & kIsWritten) != 0 ||
        !std::atomic_ref(line.state).compare_exchange_strong(state, state | kIsWritten))
      return true;
    // Another thread can have learned the word meanwhile.
    if (Difference(line, 0, key) == 0 || Difference(line, 1, key) == 0) {
      Store(state, &line.state);
      return true;
    }
    const auto id = [&ids](std::size_t i) { return i < ids.size() ? static_cast<std::uint32_t>(ids[i]) : 0; };
    const std::uint32_t fourth = id(3);
    const std::size_t at = (state & kOneMore) != 0 ? 1 : 0;
    state = ((state & ~(std::uint64_t{0xFF} << 8 * at)) | std::uint64_t{fourth >> 16} << 8 * at) + kOneMore;
    // A reader whose first look at the state comes later does not find the old word, and for one whose first look came
    // earlier the state changes before the ids do.
    Store(kNoWord, &line.high[at]);
    Store(state | kIsWritten, &line.state);
    Store(std::uint64_t{id(1) | fourth << kIdBits} << 32 | ids.size() << kIdBits | id(0), &line.ids[at]);
    Store(id(2) | fourth >> 8 << kIdBits, &line.third_ids[at]);
    Store(key.low, &line.low[at]);
    Store(key.high, &line.high[at]);
    Store(state, &line.state);
    return true;
  }

 private:
  static constexpr int kLineBits = 18;  // 16 MiB
  static constexpr std::size_t kLines = std::size_t{1} << kLineBits;
  static constexpr int kIdBits = 24;  // vocabulary.h
  static constexpr std::int32_t kIdMask = (1 << kIdBits) - 1;
  // A line of the processor's cache, which holds two words. A fourth id is in bytes that are left: its lowest is the highest of the second
  // id's, the next the highest of the third id's, and its highest is in the state.
  struct alignas(64) Line {
    std::uint64_t low[2];  // the keys; zero: empty
    std::uint64_t high[2];
    std::uint64_t
        ids[2];  // the first in the low half with their number in that half's highest byte, and the second
    std::uint32_t third_ids[2];
    std::uint64_t state;  // a byte of each word's fourth id, kIsWritten, and how many words came here
  };
  static constexpr std::uint64_t kIsWritten = std::uint64_t{1}
                                              << 16;  // by a thread, for which others do not wait
  static constexpr std::uint64_t kOneMore = std::uint64_t{1} << 17;
  static constexpr std::uint64_t kNoWord = ~std::uint64_t{0};  // no word's key.high

  template <typename T>
  static T Load(T& from) {
    return std::atomic_ref(from).load(std::memory_order_acquire);
  }
  template <typename T>
  static void Store(T value, T* to) {
    std::atomic_ref(*to).store(value, std::memory_order_release);
  }
  static std::uint64_t Difference(Line& line, std::size_t at, const Key& key) {
    return (Load(line.low[at]) ^ key.low) | (Load(line.high[at]) ^ key.high);
  }
  static void TakeFourth(std::uint32_t highest, std::int32_t* out) {
    const auto byte = [out](std::size_t i) { return static_cast<std::uint32_t>(out[i]) >> kIdBits; };
    out[3] = static_cast<std::int32_t>((highest & 0xFF) << 16 | byte(2) << 8 | byte(1));
    out[1] &= kIdMask;
    out[2] &= kIdMask;
  }

  PageArray<Line> lines_;
};

// The others, but for the longest, in parts of which each has a lock, so that threads seldom wait for each other. Words
// and ids of a part stand one behind the other in its buffer; when that is full, all of the part's are forgotten.
class LongWordCache {
 public:
  static constexpr std::size_t kMostBytes = 512;

  static std::uint64_t HashOf(std::string_view word) { return XXH3_64bits(word.data(), word.size()); }

  // Appends the word's ids; false: the word is not here, for which no thread waits.
  bool Find(std::string_view word, std::uint64_t hash, std::vector<std::int32_t>* ids) {
    Part& part = PartOf(hash);
    Place& place = part.places[hash % kPlaces];
    if (std::atomic_ref(place.hash).load(std::memory_order_relaxed) != hash) return false;
    const std::lock_guard lock(part.mutex);
    if (place.hash != hash || place.bytes != word.size() || place.ids == 0) return false;
    const std::int32_t* const found = part.buffer.data() + place.begin;
    if (std::memcmp(found + place.ids, word.data(), word.size()) != 0) return false;
    ids->insert(ids->end(), found, found + place.ids);
    return true;
  }

  void Put(std::string_view word, std::uint64_t hash, std::span<const std::int32_t> ids) {
    const std::size_t size = ids.size() + (word.size() + sizeof(std::int32_t) - 1) / sizeof(std::int32_t);
    if (word.size() > kMostBytes || ids.empty() || ids.size() > 4 * kMostBytes) return;
    Part& part = PartOf(hash);
    const std::lock_guard lock(part.mutex);
    if (part.used + size > part.buffer.size()) Clear(&part);
    Place& place = part.places[hash % kPlaces];
    std::atomic_ref(place.hash).store(hash, std::memory_order_relaxed);
    place.begin = static_cast<std::uint32_t>(part.used);
    place.bytes = static_cast<std::uint16_t>(word.size());
    place.ids = static_cast<std::uint16_t>(ids.size());
    std::memcpy(&part.buffer[part.used], ids.data(), ids.size_bytes());
    std::memcpy(&part.buffer[part.used + ids.size()], word.data(), word.size());
    part.used += size;
  }

 private:
  static constexpr int kPartBits = 5;
  static constexpr std::size_t kPlaces = std::size_t{1} << (15 - kPartBits);  // 512 KiB in all parts
  static constexpr std::size_t kBuffer = std::size_t{1} << (19 - kPartBits);  // 2 MiB in all parts
  struct Place {
    std::uint64_t hash = 0;
    std::uint32_t begin = 0;  // of its ids, behind which its bytes stand
    std::uint16_t bytes = 0;
    std::uint16_t ids = 0;  // 0: none
  };
  struct alignas(64) Part {  // no two locks are in one line of the processor's cache
    std::mutex mutex;
    std::array<Place, kPlaces> places;  // whose hashes are also read without the lock
    std::vector<std::int32_t> buffer;
    std::size_t used = 0;
  };

  Part& PartOf(std::uint64_t hash) { return parts_[hash >> (64 - kPartBits)]; }
  static void Clear(Part* part) {
    for (Place& place : part->places) place.ids = 0;
    part->buffer.resize(kBuffer);
    part->used = 0;
  }

  std::vector<Part> parts_{std::size_t{1} << kPartBits};
};

}  // namespace engine::tokenizer
