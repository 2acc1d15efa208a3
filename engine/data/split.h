// Train, validation and test as consecutive ranges of one data set's sequences, from a string such as
// "949,50,1" (Megatron's --split).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace engine::data {

enum class Split { kTrain, kValid, kTest };
inline constexpr std::array<Split, 3> kSplits = {Split::kTrain, Split::kValid, Split::kTest};
std::string_view Name(Split split);  // "train", "validation", "test"

struct SequenceRange {  // [begin, end)
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
};

// Book-ends 0 = c0 <= c1 <= c2 <= c3 of the three splits as fractions: running float64 sums of the shares
// (recipe::ParseSplit) over their total.
std::array<double, 4> SplitBookEnds(const std::array<double, 3>& shares);

// Range of each split over `sequences` sequences: book-end × sequences, rounded half to even.
std::array<SequenceRange, 3> SplitRanges(const std::array<double, 4>& book_ends, std::int64_t sequences);

}  // namespace engine::data
