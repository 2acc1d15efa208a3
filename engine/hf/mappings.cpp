// Rows → boxes of ours and where their elements are in theirs.
#include <absl/container/flat_hash_map.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "engine/base/status.h"
#include "engine/hf/weights.h"

namespace engine::hf {
namespace {

using checkpoint::Box;

constexpr std::string_view kLayer = "{l}";
constexpr std::string_view kExpert = "{e}";

std::string With(std::string_view name, std::string_view place, std::int64_t number) {
  const std::size_t at = name.find(place);
  if (at == std::string_view::npos) return std::string(name);
  return fmt::format("{}{}{}", name.substr(0, at), number, name.substr(at + place.size()));
}

// The layer of `name`, if it is of the pattern; 0 for a pattern without one.
std::optional<std::int64_t> LayerInName(std::string_view pattern, std::string_view name) {
  const std::size_t at = pattern.find(kLayer);
  if (at == std::string_view::npos) return pattern == name ? std::optional<std::int64_t>(0) : std::nullopt;
  const std::string_view tail = pattern.substr(at + kLayer.size());
  if (name.size() < at + tail.size() || name.substr(0, at) != pattern.substr(0, at) || !name.ends_with(tail))
    return std::nullopt;
  const std::string_view digits = name.substr(at, name.size() - at - tail.size());
  std::int64_t layer = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), layer);
  if (error != std::errc() || end != digits.data() + digits.size() || layer < 0) return std::nullopt;
  return layer;
}

// The sum of r^position of elements, modulo a prime, which takes no more time for a large box than for a small one: the sum of a
// box with distances is a product of geometric series. Other positions, or other numbers of times, have another sum, but for
// a chance of their number / 2^61.
class PositionSum {
 public:
  // Elements first + Σ i_k · stride_k for i_k in [0, count_k).
  void Add(std::int64_t first, const Shape& count, const Shape& stride) {
    std::uint64_t sum = Power(kRoot, first);
    for (int dim = 0; dim < count.rank(); ++dim) sum = Product(sum, Series(stride[dim], count[dim]));
    sum_ = (sum_ + sum) % kPrime;
  }
  bool IsEachOnceBelow(std::int64_t end) const { return sum_ == Series(1, end); }

 private:
  static constexpr std::uint64_t kPrime = (std::uint64_t{1} << 61) - 1;
  static constexpr std::uint64_t kRoot = 0x0B7E151628AED2A6;  // any number of a large order: digits of e

  static std::uint64_t Product(std::uint64_t a, std::uint64_t b) {
    return static_cast<std::uint64_t>(static_cast<unsigned __int128>(a) * b % kPrime);
  }
  static std::uint64_t Power(std::uint64_t base, std::int64_t exponent) {
    std::uint64_t power = 1;
    for (; exponent > 0; exponent >>= 1, base = Product(base, base)) {
      if ((exponent & 1) != 0) power = Product(power, base);
    }
    return power;
  }
  // 1 + q + … + q^(count - 1) of q = r^stride.
  static std::uint64_t Series(std::int64_t stride, std::int64_t count) {
    const std::uint64_t q = Power(kRoot, stride);
    if (count == 1) return 1;
    if (q == 1) return static_cast<std::uint64_t>(count) % kPrime;
    const std::uint64_t inverse = Power(q + kPrime - 1, kPrime - 2);
    return Product(Power(q, count) + kPrime - 1, inverse);
  }

  std::uint64_t sum_ = 0;
};

bool IsEachElementOnce(const Shape& shape, const std::vector<Part>& parts) {
  Shape strides = shape;
  for (int dim = 0; dim < shape.rank(); ++dim) strides[dim] = shape.elements(dim + 1, shape.rank());
  PositionSum sum;
  for (const Part& part : parts) {
    std::int64_t first = 0;
    for (int dim = 0; dim < shape.rank(); ++dim) first += part.box.start[dim] * strides[dim];
    sum.Add(first, part.box.count, strides);
  }
  return sum.IsEachOnceBelow(shape.elements());
}

// Makes the parts of one parameter by one row.
class Cutter {
 public:
  Cutter(const WeightRow& row, const Sizes& sizes, std::int64_t layer, const Shape& shape)
      : row_(row), sizes_(sizes), layer_(layer), shape_(shape) {}

  // False: the sizes do not come to the shape.
  bool Cut(std::vector<Part>* parts) {
    parts_ = parts;
    const bool several = row_.how == How::kStacked || row_.how == How::kQkv;
    if (row_.theirs.empty() || (!several && row_.theirs.size() != 1)) return false;
    const bool each_expert = row_.theirs[0].find(kExpert) != std::string::npos;
    if (!each_expert) return CutPlane(checkpoint::WholeBox(shape_), 0, 0);
    if (shape_.rank() < 2) return false;
    for (std::int64_t expert = 0; expert < shape_[0]; ++expert) {
      Box box = checkpoint::WholeBox(shape_);
      box.start[0] = expert;
      box.count[0] = 1;
      if (!CutPlane(box, 1, expert)) return false;
    }
    return true;
  }

 private:
  // `from`: the first dim of ours that theirs has.
  bool CutPlane(const Box& box, int from, std::int64_t expert) {
    switch (row_.how) {
      case How::kSame:
      case How::kHalves:
        return CutSame(box, from, expert);
      case How::kTransposed:
        return CutTransposed(box, from, expert);
      case How::kStacked:
        return CutStacked(box, from, expert);
      case How::kQkv:
      case How::kQkvRows:
      case How::kQkvColumns:
        return CutQkv(box, from, expert);
      case How::kAllExperts:
        return CutAllExperts(box);
      case How::kRopeLast:
        return CutRopeLast(box, from, expert);
      case How::kHeadRows:
        return CutHeadRows(box, from, expert);
    }
    return false;
  }

  std::string Theirs(std::size_t index, std::int64_t expert) const {
    return With(With(row_.theirs[index], kLayer, layer_ + row_.first_layer), kExpert, expert);
  }

  Part NewPart(std::size_t index, std::int64_t expert, const Box& box) const {
    Part part{.tensor = Theirs(index, expert), .shape = {}, .box = box, .their_stride = box.count};
    for (int dim = 0; dim < box.count.rank(); ++dim) part.their_stride[dim] = 0;
    return part;
  }

  // Strides of dims [from, …) of `count` as they lie one after another, the last `unit` apart.
  static void SetStrides(Part& part, int from, int to, std::int64_t unit) {
    for (int dim = to - 1; dim >= from; --dim) {
      part.their_stride[dim] = unit;
      unit *= part.box.count[dim];
    }
  }

  // Their vector of our bias or gain, or their matrix of ours [out…, in…]: the same where ours has two dims at most; else the
  // width of the stream tells which end is the product's input.
  Shape MatrixOf(int from) const {
    const int rank = shape_.rank() - from;
    Shape shape;
    if (row_.ours.ends_with(".bias") || row_.ours.ends_with("norm.weight"))
      return {shape_.elements(from, shape_.rank())};
    if (rank <= 2) {
      for (int dim = from; dim < shape_.rank(); ++dim) shape.push_back(shape_[dim]);
      return shape;
    }
    const bool first = shape_[from] == sizes_.hidden && shape_[shape_.rank() - 1] != sizes_.hidden;
    const int split = first ? from + 1 : shape_.rank() - 1;
    return {shape_.elements(from, split), shape_.elements(split, shape_.rank())};
  }

  bool CutSame(const Box& box, int from, std::int64_t expert) {
    Part part = NewPart(0, expert, box);
    part.shape = MatrixOf(from);
    SetStrides(part, from, shape_.rank(), 1);
    if (row_.slice.count > 0) {
      if (part.shape.rank() == 0 || part.shape[0] != row_.slice.count) return false;
      part.some_rows = true;
      part.their_begin = row_.slice.begin * part.shape.elements(1, part.shape.rank());
      part.shape[0] = row_.slice.begin + row_.slice.count;
    }
    parts_->push_back(std::move(part));
    return true;
  }

  bool CutTransposed(const Box& box, int from, std::int64_t expert) {
    Part part = NewPart(0, expert, box);
    const std::int64_t out = shape_[from];
    part.shape = {shape_.elements(from + 1, shape_.rank()), out};
    part.their_stride[from] = 1;
    SetStrides(part, from + 1, shape_.rank(), out);
    parts_->push_back(std::move(part));
    return shape_.rank() - from >= 2;
  }

  bool CutStacked(const Box& box, int from, std::int64_t expert) {
    if (shape_.rank() - from < 2 || shape_[from] != static_cast<std::int64_t>(row_.theirs.size()))
      return false;
    for (std::size_t plane = 0; plane < row_.theirs.size(); ++plane) {
      Box of_plane = box;
      of_plane.start[from] = static_cast<std::int64_t>(plane);
      of_plane.count[from] = 1;
      Part part = NewPart(plane, expert, of_plane);
      part.shape = MatrixOf(from + 1);
      SetStrides(part, from + 1, shape_.rank(), 1);
      parts_->push_back(std::move(part));
    }
    return true;
  }

  // Ours [K, H/K + 2, E, in…].
  bool CutQkv(const Box& box, int from, std::int64_t expert) {
    const bool fused = row_.how != How::kQkv;
    if (shape_.rank() - from < 3 || row_.theirs.size() != (fused ? 1U : 3U)) return false;
    const std::int64_t groups = shape_[from], queries = shape_[from + 1] - 2, head = shape_[from + 2];
    if (groups != sizes_.kv_heads || groups * queries != sizes_.heads || head != sizes_.head_dim)
      return false;
    const int in = from + 3;
    const std::int64_t width = shape_.elements(in, shape_.rank());
    const bool columns = row_.how == How::kQkvColumns && in < shape_.rank();
    const std::int64_t all_rows = groups * (queries + 2) * head;
    const std::int64_t row = columns ? 1 : width;  // from a row of theirs to the next
    for (int which = 0; which < 3; ++which) {
      const std::int64_t heads = which == 0 ? queries : 1;
      const std::int64_t rows = groups * heads * head;
      Box some = box;
      some.start[from + 1] = which == 0 ? 0 : queries + which - 1;
      some.count[from + 1] = heads;
      Part part = NewPart(fused ? 0 : static_cast<std::size_t>(which), expert, some);
      part.their_stride[from] = heads * head * row;
      part.their_stride[from + 1] = head * row;
      part.their_stride[from + 2] = row;
      SetStrides(part, in, shape_.rank(), columns ? all_rows : 1);
      const std::int64_t height = fused ? all_rows : rows;
      if (in == shape_.rank())
        part.shape = {height};
      else
        part.shape = columns ? Shape{width, height} : Shape{height, width};
      if (fused && which > 0)
        part.their_begin = (which == 1 ? sizes_.heads * head : (sizes_.heads + groups) * head) * row;
      parts_->push_back(std::move(part));
    }
    return true;
  }

  bool CutAllExperts(const Box& box) {
    const int last = shape_.rank() - 1;
    if (last < 2) return false;
    Part part = NewPart(0, 0, box);
    part.shape = {shape_[0], shape_.elements(1, last), shape_[last]};
    SetStrides(part, 0, shape_.rank(), 1);
    parts_->push_back(std::move(part));
    return true;
  }

  // Ours [H, R + N, in…], theirs [H · (N + R), in].
  bool CutRopeLast(const Box& box, int from, std::int64_t expert) {
    if (shape_.rank() - from < 2) return false;
    const std::int64_t head = shape_[from + 1], rotated = sizes_.rope_dim;
    const std::int64_t width = shape_.elements(from + 2, shape_.rank());
    if (rotated <= 0 || rotated > head) return false;
    for (const bool of_rope : {true, false}) {
      Box some = box;
      some.start[from + 1] = of_rope ? 0 : rotated;
      some.count[from + 1] = of_rope ? rotated : head - rotated;
      if (some.count[from + 1] == 0) continue;
      Part part = NewPart(0, expert, some);
      part.their_begin = of_rope ? (head - rotated) * width : 0;
      part.their_stride[from] = head * width;
      part.their_stride[from + 1] = width;
      SetStrides(part, from + 2, shape_.rank(), 1);
      part.shape = shape_.rank() == from + 2 ? Shape{shape_[from] * head} : Shape{shape_[from] * head, width};
      parts_->push_back(std::move(part));
    }
    return true;
  }

  // Ours [H, n, in…], of theirs [H · (N + U), in].
  bool CutHeadRows(const Box& box, int from, std::int64_t expert) {
    const std::int64_t head = sizes_.nope_dim + sizes_.value_dim;
    if (shape_.rank() - from < 2 || shape_[from + 1] != row_.slice.count ||
        row_.slice.begin + row_.slice.count > head)
      return false;
    const std::int64_t width = shape_.elements(from + 2, shape_.rank());
    Part part = NewPart(0, expert, box);
    part.their_begin = row_.slice.begin * width;
    part.their_stride[from] = head * width;
    part.their_stride[from + 1] = width;
    SetStrides(part, from + 2, shape_.rank(), 1);
    part.shape = {shape_[from] * head, width};
    parts_->push_back(std::move(part));
    return true;
  }

  const WeightRow& row_;
  const Sizes& sizes_;
  const std::int64_t layer_;
  const Shape& shape_;
  std::vector<Part>* parts_ = nullptr;
};

std::string Listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

absl::StatusOr<std::vector<Mapping>> MappingsOf(const std::vector<WeightRow>& rows, const Sizes& sizes,
                                                const std::vector<checkpoint::TensorInfo>& parameters) {
  std::vector<Mapping> mappings;
  for (const checkpoint::TensorInfo& parameter : parameters) {
    Mapping mapping{.parameter = parameter.name, .shape = parameter.shape, .parts = {}};
    bool found = false;
    for (const WeightRow& row : rows) {
      const std::optional<std::int64_t> layer = LayerInName(row.ours, parameter.name);
      if (!layer) continue;
      found = true;
      if (!Cutter(row, sizes, *layer, parameter.shape).Cut(&mapping.parts) ||
          !IsEachElementOnce(parameter.shape, mapping.parts)) {
        return InvalidArgument(
            "parameter {} {} is not made of {} in this family: its sizes are others than the config's",
            parameter.name, parameter.shape.ToString(), Listed(row.theirs));
      }
      break;
    }
    if (!found) {
      return InvalidArgument("parameter {} {} is none that this family has a tensor for", parameter.name,
                             parameter.shape.ToString());
    }
    mappings.push_back(std::move(mapping));
  }
  return mappings;
}

absl::StatusOr<std::vector<TheirTensor>> TheirTensors(const std::vector<Mapping>& mappings) {
  std::vector<TheirTensor> tensors;
  absl::flat_hash_map<std::string, int> index;
  std::vector<std::int64_t> covered;
  std::vector<PositionSum> positions;
  for (std::size_t m = 0; m < mappings.size(); ++m) {
    for (std::size_t p = 0; p < mappings[m].parts.size(); ++p) {
      const Part& part = mappings[m].parts[p];
      const auto [at, added] = index.emplace(part.tensor, static_cast<int>(tensors.size()));
      if (added) {
        tensors.push_back({.name = part.tensor, .shape = part.shape, .parts = {}});
        covered.push_back(0);
        positions.emplace_back();
      }
      const auto place = static_cast<std::size_t>(at->second);
      TheirTensor& tensor = tensors[place];
      Shape shape = part.shape;
      if (part.some_rows && tensor.shape.rank() == shape.rank()) {
        shape[0] = tensor.shape[0] = std::max(tensor.shape[0], shape[0]);
      }
      if (shape != tensor.shape) {
        return InvalidArgument("tensor {} is {} for {}, but {} for {}", part.tensor, shape.ToString(),
                               mappings[m].parameter, tensor.shape.ToString(),
                               mappings[static_cast<std::size_t>(tensor.parts[0].first)].parameter);
      }
      tensor.parts.emplace_back(static_cast<int>(m), static_cast<int>(p));
      covered[place] += part.box.count.elements();
      positions[place].Add(part.their_begin, part.box.count, part.their_stride);
    }
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (covered[i] != tensors[i].shape.elements()) {
      return InvalidArgument("of the {} elements of tensor {} {}, {} are parameters of this model",
                             tensors[i].shape.elements(), tensors[i].name, tensors[i].shape.ToString(),
                             covered[i]);
    }
    if (!positions[i].IsEachOnceBelow(covered[i])) {
      std::vector<std::string> names;
      for (const auto& [mapping, part] : tensors[i].parts) {
        const std::string& name = mappings[static_cast<std::size_t>(mapping)].parameter;
        if (names.empty() || names.back() != name) names.push_back(name);
      }
      return InvalidArgument("of the elements of tensor {} {}, some are twice in {}, and some nowhere",
                             tensors[i].name, tensors[i].shape.ToString(), Listed(names));
    }
  }
  return tensors;
}

}  // namespace engine::hf
