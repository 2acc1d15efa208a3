#include "engine/data/tokenizer/merge_table.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace engine::tokenizer {

void MergeTable::Reserve(std::size_t merges) {
  const std::size_t slots = std::bit_ceil(merges + merges / 2);
  if (slots <= slots_.size()) return;
  MergeTable larger;
  larger.slots_ = PageArray<Entry>(slots);
  larger.shift_ = ShiftOf(slots);
  ForEach([&larger](const Merge& merge) { larger.Put(merge); });
  *this = std::move(larger);
}

bool MergeTable::Put(const Merge& merge) {
  if (slots_.size() < size_ + 1 + (size_ + 1) / 2) Reserve(2 * size_ + 1);
  Entry& entry = slots_[SlotOf(merge.left, merge.right)];
  const bool is_new = entry.left_plus_1 == 0;
  entry = {merge.left + 1, merge.right, merge.rank, merge.product};
  size_ += is_new;
  return is_new;
}

void MergeTable::Fill(std::span<const Merge> merges) {
  Reserve(merges.size());
  // A merge lies in its home slot, or where all slots from there on to the one before it are full. While merges come in the
  // order of their slots, that is the home slot or the one behind the last merge.
  std::size_t next = 0;  // all slots from here on are free
  std::size_t full = 0;  // those from here to `next` are full
  std::size_t count = 0;
  for (; count < merges.size(); ++count) {
    const Merge& merge = merges[count];
    const std::size_t home = HomeOf(merge.left, merge.right);
    const std::size_t slot = std::max(home, next);
    if (home < full || slot == slots_.size()) break;
    full = home > next ? home : full;
    next = slot + 1;
    slots_[slot] = {merge.left + 1, merge.right, merge.rank, merge.product};
  }
  size_ = count;
  for (const Merge& merge : merges.subspan(count)) Put(merge);
}

}  // namespace engine::tokenizer
