#include "engine/checkpoint/coverage.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "engine/base/status.h"
#include "engine/base/units.h"

namespace engine::checkpoint {
namespace {

using Pair = std::pair<int, int>;

class OverlapSearch {
 public:
  explicit OverlapSearch(const std::vector<Box>& boxes) : boxes_(boxes), order_(boxes.size()) {
    std::iota(order_.begin(), order_.end(), 0);
  }

  std::optional<Pair> Run() { return Search(order_, 0, 0, 0); }
  bool gave_up() const { return budget_ < 0; }

 private:
  static constexpr int kMostDepth = 128;

  std::int64_t Start(int box, int dim) const { return boxes_[box].start[dim]; }
  std::int64_t End(int box, int dim) const { return boxes_[box].start[dim] + boxes_[box].count[dim]; }

  // Cuts the group by planes across `dim` that no box crosses and searches each part; `tried` dims in a row
  // have not cut this group.
  std::optional<Pair> Search(std::span<int> group, int dim, int tried, int depth) {
    if (group.size() < 2) return std::nullopt;
    const int rank = boxes_[group[0]].start.rank();
    if (tried == rank || depth == kMostDepth) return Sweep(group);
    std::sort(group.begin(), group.end(), [&](int a, int b) { return Start(a, dim) < Start(b, dim); });
    const int next_dim = (dim + 1) % rank;
    std::size_t part = 0;
    std::int64_t reach = End(group[0], dim);
    for (std::size_t i = 1; i <= group.size(); ++i) {
      if (i < group.size() && Start(group[i], dim) < reach) {
        reach = std::max(reach, End(group[i], dim));
        continue;
      }
      const bool uncut = part == 0 && i == group.size();
      const std::span<int> cut = group.subspan(part, i - part);
      if (auto found = Search(cut, next_dim, uncut ? tried + 1 : 1, depth + 1)) return found;
      part = i;
      if (i < group.size()) reach = End(group[i], dim);
    }
    return std::nullopt;
  }

  // All pairs that share a range of dim 0.
  std::optional<Pair> Sweep(std::span<int> group) {
    const int rank = boxes_[group[0]].start.rank();
    if (rank == 0) return Pair{group[0], group[1]};
    std::sort(group.begin(), group.end(), [&](int a, int b) { return Start(a, 0) < Start(b, 0); });
    for (std::size_t i = 0; i < group.size(); ++i) {
      for (std::size_t j = i + 1; j < group.size() && Start(group[j], 0) < End(group[i], 0); ++j) {
        if (--budget_ < 0) return std::nullopt;
        if (Intersect(boxes_[group[i]], boxes_[group[j]])) return Pair{group[i], group[j]};
      }
    }
    return std::nullopt;
  }

  const std::vector<Box>& boxes_;
  std::vector<int> order_;
  std::int64_t budget_ = 300'000'000;  // comparisons: seconds, where a hostile manifest could ask for years
};

// What is left of `rest` after cutting `hole` out of each of its boxes.
std::vector<Box> Subtract(const std::vector<Box>& rest, const Box& hole) {
  std::vector<Box> left;
  for (Box box : rest) {
    const std::optional<Box> common = Intersect(box, hole);
    if (!common) {
      left.push_back(box);
      continue;
    }
    for (int dim = 0; dim < box.start.rank(); ++dim) {
      const std::int64_t before = common->start[dim] - box.start[dim];
      const std::int64_t after = box.count[dim] - before - common->count[dim];
      Box slab = box;
      slab.count[dim] = before;
      if (before > 0) left.push_back(slab);
      slab.start[dim] = common->start[dim] + common->count[dim];
      slab.count[dim] = after;
      if (after > 0) left.push_back(slab);
      box.start[dim] = common->start[dim];
      box.count[dim] = common->count[dim];
    }
  }
  return left;
}

// One box that no piece covers, for the error message only: the search is quadratic, so it gives up on many
// pieces.
std::string MissingPart(const Shape& shape, const std::vector<Box>& boxes) {
  constexpr std::size_t kMostBoxes = 4096;
  if (boxes.size() > kMostBoxes) return "";
  std::vector<Box> rest = {WholeBox(shape)};
  for (const Box& box : boxes) rest = Subtract(rest, box);
  return rest.empty() ? "" : fmt::format("; {} is missing", ToString(rest.front()));
}

}  // namespace

absl::Status CheckCoverage(const std::string& tensor, const Shape& shape, const std::vector<Box>& boxes) {
  std::int64_t covered = 0;
  bool overflow = false;
  for (const Box& box : boxes) {
    if (!IsInside(box, shape)) {
      return InvalidArgument("tensor {}: piece {} is not inside its shape {}", tensor, ToString(box),
                             shape.ToString());
    }
    overflow = overflow || __builtin_add_overflow(covered, box.count.elements(), &covered);
  }
  OverlapSearch search(boxes);
  if (const std::optional<Pair> pair = search.Run()) {
    return InvalidArgument("tensor {}: pieces {} and {} overlap", tensor, ToString(boxes[pair->first]),
                           ToString(boxes[pair->second]));
  }
  if (search.gave_up())
    return InvalidArgument("tensor {}: {} pieces too entangled to check", tensor, boxes.size());
  ENGINE_CHECK(!overflow, "disjoint boxes inside {} hold more elements than it", shape.ToString());
  if (covered == shape.elements()) return absl::OkStatus();
  return InvalidArgument("tensor {}: its {} pieces cover {} of the {} elements of {}{}", tensor, boxes.size(),
                         WithThousands(covered), WithThousands(shape.elements()), shape.ToString(),
                         MissingPart(shape, boxes));
}

}  // namespace engine::checkpoint
