// Ids of words that came lately, of one thread.
#pragma once

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

  WordCache() : slots_(std::make_unique<Slot[]>(kSlots)) {}

  // False where the word is too long for the cache.
  static bool MakeKey(std::string_view word, Key* key) {
    if (word.size() > kMostBytes) return false;
    char bytes[16] = {};
    std::memcpy(bytes, word.data(), word.size());
    bytes[15] = static_cast<char>(word.size());
    std::memcpy(key, bytes, sizeof bytes);
    return true;
  }

  bool Find(const Key& key, std::vector<std::int32_t>* ids) const {
    const Slot& slot = slots_[IndexOf(key)];
    if (slot.key.low != key.low || slot.key.high != key.high) return false;
    for (const std::int32_t id : slot.ids) {
      if (id < 0) break;
      ids->push_back(id);
    }
    return true;
  }

  void Put(const Key& key, std::span<const std::int32_t> ids) {
    if (ids.size() > kMostIds) return;
    Slot& slot = slots_[IndexOf(key)];
    slot.key = key;
    for (std::size_t i = 0; i < kMostIds; ++i) slot.ids[i] = i < ids.size() ? ids[i] : -1;
  }

 private:
  static constexpr int kSlotBits = 17;  // 4 MiB
  static constexpr std::size_t kSlots = std::size_t{1} << kSlotBits;
  struct Slot {
    Key key;  // zero: empty
    std::int32_t ids[kMostIds] = {};
  };

  static std::size_t IndexOf(const Key& key) {
    const std::uint64_t mixed = (key.low ^ (key.high << 29 | key.high >> 35)) * 0x9E3779B97F4A7C15U;
    return (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93U >> (64 - kSlotBits);
  }

  std::unique_ptr<Slot[]> slots_;
};

}  // namespace engine::tokenizer
