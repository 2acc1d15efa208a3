// Ids of words that came lately, of one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace engine::tokenizer {

class WordCache {
 public:
  static constexpr std::size_t kMostBytes = 15;
  static constexpr std::size_t kMostIds = 4;

  // The bytes of a word, and their number in the highest byte.
  struct Key {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
  };

  WordCache() : lines_(std::make_unique<Line[]>(kLines)) {}

  // Zero where the word is too long for the cache. Bytes before `readable` may be read, whatever they are.
  static Key KeyOf(std::string_view word, const char* readable) {
    Key key;
    if (word.size() > kMostBytes) return key;
    if (readable - word.data() >= static_cast<std::ptrdiff_t>(sizeof key)) {
      std::memcpy(&key, word.data(), sizeof key);
      const std::uint64_t bits = 8 * word.size();
      if (bits < 64) {
        key.low &= ~(~std::uint64_t{0} << bits);
        key.high = 0;
      } else {
        key.high &= ~(~std::uint64_t{0} << (bits - 64));
      }
    } else {
      std::memcpy(&key, word.data(), word.size());
    }
    key.high |= std::uint64_t{word.size()} << 56;
    return key;
  }

  void Prefetch(const Key& key) const { __builtin_prefetch(&lines_[IndexOf(key)]); }

  // Writes the ids to out[0] and on, of which kMostIds are overwritten, and returns how many there are; 0: the word is not
  // here.
  std::size_t Find(const Key& key, std::int32_t* out) const {
    const Line& line = lines_[IndexOf(key)];
    // Without a branch, which could not be foreseen.
    const Slot* const slot =
        &line.slots[((line.slots[0].key.low ^ key.low) | (line.slots[0].key.high ^ key.high)) != 0];
    if (((slot->key.low ^ key.low) | (slot->key.high ^ key.high)) != 0) return 0;
    std::memcpy(out, slot->ids, sizeof slot->ids);
    out[0] &= kIdMask;
    return static_cast<std::uint32_t>(slot->ids[0]) >> kCountShift;
  }

  // In place of the older of two words.
  void Put(const Key& key, std::span<const std::int32_t> ids) {
    if (ids.size() > kMostIds || ids.empty() || key.high == 0) return;
    Line& line = lines_[IndexOf(key)];
    line.slots[1] = line.slots[0];
    Slot& slot = line.slots[0];
    slot.key = key;
    for (std::size_t i = 0; i < ids.size(); ++i) slot.ids[i] = ids[i];
    slot.ids[0] |= static_cast<std::int32_t>(ids.size() << kCountShift);
  }

 private:
  static constexpr int kLineBits = 16;  // 4 MiB
  static constexpr std::size_t kLines = std::size_t{1} << kLineBits;
  static constexpr int kCountShift = 24;  // ids have less bits (vocabulary.h)
  static constexpr std::int32_t kIdMask = (1 << kCountShift) - 1;
  struct Slot {
    Key key;                          // zero: empty
    std::int32_t ids[kMostIds] = {};  // the first with their number in its highest byte
  };
  struct alignas(64) Line {  // of the processor's cache
    Slot slots[2];
  };

  static std::size_t IndexOf(const Key& key) {
    const std::uint64_t mixed = (key.low ^ (key.high << 29 | key.high >> 35)) * 0x9E3779B97F4A7C15U;
    return (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93U >> (64 - kLineBits);
  }

  std::unique_ptr<Line[]> lines_;
};

}  // namespace engine::tokenizer
