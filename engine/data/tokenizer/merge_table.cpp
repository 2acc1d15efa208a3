#include "engine/data/tokenizer/merge_table.h"

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

}  // namespace engine::tokenizer
