// The merges of a byte-pair encoding: which two neighbouring tokens become which one, and how early.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "engine/data/tokenizer/page_array.h"
#include "engine/data/tokenizer/vocabulary.h"

namespace engine::tokenizer {

inline constexpr std::int32_t kNoRank = std::numeric_limits<std::int32_t>::max();

struct Merge {
  std::int32_t left = 0;  // ids
  std::int32_t right = 0;
  std::int32_t product = 0;
  std::int32_t rank = 0;  // the lower the earlier; equal ranks: from left to right
};

// (left, right) → rank and product, by open addressing.
class MergeTable {
 public:
  struct Found {
    std::int32_t rank = kNoRank;
    std::int32_t product = kNoToken;
  };

  MergeTable() : slots_(kFewestSlots), shift_(ShiftOf(kFewestSlots)) {}

  // Room for so many merges altogether.
  void Reserve(std::size_t merges);

  // Puts a merge in the place of the pair's earlier one; whether there was none.
  bool Put(const Merge& merge);

  // The pair's merge, or one with rank kNoRank.
  Found Find(std::int32_t left, std::int32_t right) const {
    const Entry& entry = slots_[SlotOf(left, right)];
    return entry.left_plus_1 == 0 ? Found() : Found{entry.rank, entry.product};
  }
  // Asks for the memory that Find will read.
  void Prefetch(std::int32_t left, std::int32_t right) const {
    __builtin_prefetch(&slots_[HomeOf(left, right)]);
  }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // Calls `function` with each merge, in the order of their slots from the first free one on.
  template <typename Function>
  void ForEach(Function&& function) const {
    const std::size_t first_free = FirstFree();
    ForSlots(first_free, slots_.size(), function);
    ForSlots(0, first_free, function);
  }

  // Puts merges of different pairs into an empty table. In the order in which ForEach of a table with as many slots gives
  // them that takes a fifth of the time of Put.
  void Fill(std::span<const Merge> merges);

 private:
  struct Entry {
    std::int32_t left_plus_1;  // 0: none
    std::int32_t right;
    std::int32_t rank;
    std::int32_t product;
  };

  static constexpr std::size_t kFewestSlots = 16;
  std::size_t FirstFree() const {
    std::size_t slot = 0;
    while (slots_[slot].left_plus_1 != 0) ++slot;
    return slot;
  }
  template <typename Function>
  void ForSlots(std::size_t begin, std::size_t end, Function&& function) const {
    while (begin < end) {
      const std::size_t some = std::min(kFewestSlots, end - begin);
      // Which slots are full no processor can foresee, so that it is not asked slot by slot.
      std::uint32_t full = 0;
      for (std::size_t i = 0; i < some; ++i)
        full |= static_cast<std::uint32_t>(slots_[begin + i].left_plus_1 != 0) << i;
      for (; full != 0; full &= full - 1) {
        const Entry& entry = slots_[begin + static_cast<std::size_t>(std::countr_zero(full))];
        function(Merge{entry.left_plus_1 - 1, entry.right, entry.product, entry.rank});
      }
      begin += some;
    }
  }
  // What of a hash of 64 bits is not needed to tell so many slots apart.
  static int ShiftOf(std::size_t slots) { return 64 - std::countr_zero(slots); }
  std::size_t HomeOf(std::int32_t left, std::int32_t right) const {
    const std::uint64_t key = static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
    return (key * 0x9E3779B97F4A7C15U) >> shift_;
  }
  // Where the pair is, or would be put.
  std::size_t SlotOf(std::int32_t left, std::int32_t right) const {
    std::size_t slot = HomeOf(left, right);
    while (slots_[slot].left_plus_1 != 0 &&
           (slots_[slot].left_plus_1 != left + 1 || slots_[slot].right != right))
      slot = (slot + 1) & (slots_.size() - 1);
    return slot;
  }

  PageArray<Entry> slots_;  // as many as a power of two, at most two thirds of them full
  int shift_;
  std::size_t size_ = 0;
};

}  // namespace engine::tokenizer
