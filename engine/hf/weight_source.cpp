// A folder's tensors as the engine's parameters.
#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>

#include "engine/base/e4m3.h"
#include "engine/base/half.h"
#include "engine/base/status.h"
#include "engine/hf/strided.h"
#include "engine/hf/weights.h"
#include "engine/model/groups.h"

namespace engine::hf {
namespace {

using checkpoint::Box;
using checkpoint::TensorInfo;

constexpr std::int64_t kPiece = std::int64_t{1} << 22;  // elements that are asked of the disk at a time
constexpr std::int64_t kScaledBlock = 128;              // rows, and columns, of FP8 weights with one scale
constexpr std::string_view kScaleSuffix = "_scale_inv";
// A model whose head is its table of tokens, and how a file calls a head that it has nevertheless.
constexpr std::string_view kTable = "embedding.tokens";
constexpr std::array<std::string_view, 2> kHeads = {"lm_head.weight", "embed_out.weight"};

template <typename T>
T LoadAs(const std::byte* at) {  // of no alignment
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// What is read of one of their tensors.
struct Stored {
  const SafetensorsFile* file = nullptr;
  const StoredTensor* tensor = nullptr;
  const std::byte* data = nullptr;
  // Of FP8: the scales [⌈rows/128⌉, ⌈columns/128⌉], and how many columns the tensor has.
  const std::byte* scales = nullptr;
  std::int64_t columns = 0;
};

float ScaleAt(const Stored& stored, std::int64_t element) {
  const std::int64_t blocks = (stored.columns + kScaledBlock - 1) / kScaledBlock;
  const std::int64_t row = element / stored.columns / kScaledBlock;
  return LoadAs<float>(stored.scales + (row * blocks + element % stored.columns / kScaledBlock) * 4);
}

// Elements first, first + step, … of theirs to `out`, times `scale`.
template <StoredType kType>
void Convert(const std::byte* data, std::int64_t first, std::int64_t step, std::int64_t count, float scale,
             float* out, std::int64_t out_step) {
  [[maybe_unused]] const float* e4m3 = E4M3Values().data();
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t at = first + i * step;
    float value = 0;
    if constexpr (kType == StoredType::kBF16) value = FloatFromBFloat16(LoadAs<std::uint16_t>(data + 2 * at));
    if constexpr (kType == StoredType::kF16) value = FloatFromHalf(LoadAs<std::uint16_t>(data + 2 * at));
    if constexpr (kType == StoredType::kF32) value = LoadAs<float>(data + 4 * at);
    if constexpr (kType == StoredType::kF64) value = static_cast<float>(LoadAs<double>(data + 8 * at));
    if constexpr (kType == StoredType::kF8E4M3) value = e4m3[static_cast<std::size_t>(data[at])] * scale;
    out[i * out_step] = value;
  }
}

// Of FP8, elements that have one scale are converted together.
std::int64_t SameScale(const Stored& stored, std::int64_t from, std::int64_t count) {
  const std::int64_t column = from % stored.columns;
  return std::min({count, stored.columns - column, kScaledBlock - column % kScaledBlock});
}

// Elements from, from + run.from_step, … of theirs to `out`, out + run.to_step, …
template <StoredType kType>
void ConvertRun(const Stored& stored, std::int64_t from, const StridedDim& run, float* out) {
  if constexpr (kType == StoredType::kF8E4M3) {
    for (std::int64_t begin = 0, count = 0; begin < run.count; begin += count) {
      const std::int64_t first = from + begin * run.from_step;
      count = run.from_step == 1 ? SameScale(stored, first, run.count - begin) : 1;
      Convert<kType>(stored.data, first, run.from_step, count, ScaleAt(stored, first),
                     out + begin * run.to_step, run.to_step);
    }
  } else if (run.from_step == 1 && run.to_step == 1) {
    const std::byte* at = stored.data + from * (BitsOf(kType) / 8);
    const auto count = static_cast<std::size_t>(run.count);
    if constexpr (kType == StoredType::kBF16)
      FloatsFromBFloat16(at, {out, count});
    else if constexpr (kType == StoredType::kF16)
      FloatsFromHalf(at, {out, count});
    else if constexpr (kType == StoredType::kF32)
      std::memcpy(out, at, count * sizeof(float));
    else
      Convert<kType>(stored.data, from, 1, run.count, 1, out, 1);
  } else {
    Convert<kType>(stored.data, from, run.from_step, run.count, 1, out, run.to_step);
  }
}

using RunFunction = void (*)(const Stored&, std::int64_t, const StridedDim&, float*);

// By way of a buffer, so that both sides are read and written by whole cache lines.
void ConvertTile(RunFunction convert, const Stored& stored, const StridedTile& tile, float* out) {
  if (tile.lines.count == 1) return convert(stored, tile.from, tile.run, out + tile.to);
  std::array<float, kTileLines * kTileRun> buffer;
  for (std::int64_t line = 0; line < tile.lines.count; ++line) {
    convert(stored, tile.from + line * tile.lines.from_step, {tile.run.count, tile.run.from_step, 1},
            buffer.data() + line * kTileRun);
  }
  for (std::int64_t i = 0; i < tile.run.count; ++i) {
    float* to = out + tile.to + i * tile.run.to_step;
    const float* from = buffer.data() + i;
    for (std::int64_t line = 0; line < tile.lines.count; ++line)
      to[line * tile.lines.to_step] = from[line * kTileRun];
  }
}

RunFunction FunctionOf(StoredType type) {
  switch (type) {
    case StoredType::kBF16:
      return ConvertRun<StoredType::kBF16>;
    case StoredType::kF16:
      return ConvertRun<StoredType::kF16>;
    case StoredType::kF32:
      return ConvertRun<StoredType::kF32>;
    case StoredType::kF64:
      return ConvertRun<StoredType::kF64>;
    case StoredType::kF8E4M3:
      return ConvertRun<StoredType::kF8E4M3>;
    default:
      return nullptr;
  }
}

// Without dims of size 1.
Shape Squeezed(const Shape& shape) {
  Shape squeezed;
  for (const std::int64_t size : shape) {
    if (size != 1) squeezed.push_back(size);
  }
  return squeezed;
}

// Asks the disk for what a copy is going to read, before it does. Elements of a copy that goes back and forth are asked for
// once.
class Prefetcher {
 public:
  Prefetcher(const Stored& stored, const StridedCopy& copy)
      : stored_(stored), asked_(copy.from), end_(copy.from + 1) {
    for (const StridedDim& dim : copy.dims) end_ += (dim.count - 1) * dim.from_step;
  }
  // Before the elements up to `last` are read.
  void Reach(std::int64_t last) {
    const std::int64_t bytes = BitsOf(stored_.tensor->type) / 8;
    while (asked_ <= last && asked_ < end_) {
      const std::int64_t count = std::min(kPiece, end_ - asked_);
      stored_.file->Prefetch(*stored_.tensor, asked_ * bytes, count * bytes);
      asked_ += count;
    }
  }

 private:
  const Stored& stored_;
  std::int64_t asked_, end_;  // elements
};

class FolderWeights : public checkpoint::TensorSource {
 public:
  FolderWeights(Folder folder, std::vector<Mapping> mappings)
      : folder_(std::move(folder)), mappings_(std::move(mappings)) {
    for (std::size_t i = 0; i < mappings_.size(); ++i) {
      tensors_.push_back({.name = mappings_[i].parameter, .shape = mappings_[i].shape, .dtype = DType::kF32});
      index_.emplace(mappings_[i].parameter, static_cast<int>(i));
    }
  }

  absl::Status Match(const std::vector<std::string>& ignored) {
    ASSIGN_OR_RETURN(const std::vector<TheirTensor> theirs, TheirTensors(mappings_));
    for (const TheirTensor& tensor : theirs) MatchTensor(tensor);
    for (const std::string& name : folder_.names()) {
      if (stored_.contains(name) || used_.contains(name) || IsIgnored(name, ignored)) continue;
      const Stored* table = IsHead(name) ? TiedTable() : nullptr;
      if (table != nullptr && HasBytesOf(name, *table)) continue;
      misfits_.push_back(fmt::format("{} {} is no tensor of this model", name,
                                     folder_.Find(name)->tensor->shape.ToString()));
      if (table != nullptr) {
        misfits_.back() += fmt::format(", whose head is {} {}, and has other values than that",
                                       table->tensor->name, table->tensor->shape.ToString());
      }
    }
    if (misfits_.empty()) return absl::OkStatus();
    constexpr std::size_t kMostNamed = 5;
    std::string text;
    for (std::size_t i = 0; i < std::min(misfits_.size(), kMostNamed); ++i)
      text += (i == 0 ? "" : "; ") + misfits_[i];
    if (misfits_.size() > kMostNamed) text += fmt::format("; and {} more", misfits_.size() - kMostNamed);
    return InvalidArgument("{}: the weights are not those of this model: {}", folder_.path(), text);
  }

  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* Find(const std::string& tensor) const override {
    const auto found = index_.find(tensor);
    return found == index_.end() ? nullptr : &tensors_[static_cast<std::size_t>(found->second)];
  }

  absl::Status Read(const std::string& tensor, const Box& box, void* out) const override {
    const auto found = index_.find(tensor);
    if (found == index_.end()) return NotFound("{} has no parameter {}", folder_.path(), tensor);
    const Mapping& mapping = mappings_[static_cast<std::size_t>(found->second)];
    if (!checkpoint::IsInside(box, mapping.shape)) {
      return InvalidArgument("{} of {} is no part of {}", checkpoint::ToString(box), tensor,
                             mapping.shape.ToString());
    }
    for (const Part& part : mapping.parts) {
      const std::optional<Box> common = checkpoint::Intersect(box, part.box);
      if (!common) continue;
      const Stored& stored = stored_.at(part.tensor);
      const RunFunction convert = FunctionOf(stored.tensor->type);
      const StridedCopy copy = StridedCopyOf(*common, part, box);
      Prefetcher prefetcher(stored, copy);
      ForEachStridedTile(copy, [&](const StridedTile& tile) {
        // A long run in pieces, each of which is asked of the disk before it is read.
        for (std::int64_t begin = 0; begin < tile.run.count; begin += kPiece) {
          StridedTile piece = tile;
          piece.from += begin * tile.run.from_step;
          piece.to += begin * tile.run.to_step;
          piece.run.count = std::min(kPiece, tile.run.count - begin);
          prefetcher.Reach(piece.last_from());
          ConvertTile(convert, stored, piece, static_cast<float*>(out));
        }
      });
      stored.file->Release(*stored.tensor);
    }
    return absl::OkStatus();
  }

 private:
  void MatchTensor(const TheirTensor& tensor) {
    const std::optional<Folder::Entry> entry = folder_.Find(tensor.name);
    if (!entry) {
      misfits_.push_back(fmt::format("{} {} is not there", tensor.name, tensor.shape.ToString()));
      return;
    }
    const StoredTensor& found = *entry->tensor;
    if (Squeezed(found.shape) != Squeezed(tensor.shape)) {
      misfits_.push_back(fmt::format("{} is {}, and the config asks for {}", tensor.name,
                                     found.shape.ToString(), tensor.shape.ToString()));
    }
    Stored stored{.file = entry->file, .tensor = &found, .data = entry->file->DataOf(found).data()};
    if (FunctionOf(found.type) == nullptr) {
      misfits_.push_back(
          fmt::format("{} is of type {}, and weights are F64, F32, F16, BF16 or F8_E4M3 "
                      "with scales",
                      tensor.name, Name(found.type)));
    } else if (found.type == StoredType::kF8E4M3) {
      MatchScales(tensor, found, &stored);
    }
    stored_.emplace(tensor.name, stored);
  }

  void MatchScales(const TheirTensor& tensor, const StoredTensor& found, Stored* stored) {
    const std::string name = tensor.name + std::string(kScaleSuffix);
    const std::optional<Folder::Entry> scales = folder_.Find(name);
    used_.insert(name);
    if (!scales || found.shape.rank() != 2) {
      misfits_.push_back(fmt::format("{} is of type F8_E4M3, and {} is not there", tensor.name, name));
      return;
    }
    const auto blocks = [](std::int64_t size) { return (size + kScaledBlock - 1) / kScaledBlock; };
    const Shape expected = {blocks(found.shape[0]), blocks(found.shape[1])};
    if (scales->tensor->type != StoredType::kF32 || scales->tensor->shape != expected) {
      misfits_.push_back(fmt::format("{} is {} {}, and blocks of 128 × 128 have scales F32 {}", name,
                                     Name(scales->tensor->type), scales->tensor->shape.ToString(),
                                     expected.ToString()));
      return;
    }
    stored->scales = scales->file->DataOf(*scales->tensor).data();
    stored->columns = found.shape[1];
  }

  static bool IsIgnored(const std::string& name, const std::vector<std::string>& ignored) {
    return std::any_of(ignored.begin(), ignored.end(),
                       [&](const std::string& pattern) { return model::Matches(pattern, name); });
  }

  static bool IsHead(const std::string& name) {
    return std::any_of(kHeads.begin(), kHeads.end(),
                       [&](std::string_view head) { return std::string_view(name).ends_with(head); });
  }

  // Their table of tokens; null if there is none.
  const Stored* TiedTable() const {
    const auto table = index_.find(std::string(kTable));
    if (table == index_.end()) return nullptr;
    const std::vector<Part>& parts = mappings_[static_cast<std::size_t>(table->second)].parts;
    const auto found = parts.empty() ? stored_.end() : stored_.find(parts[0].tensor);
    return found == stored_.end() ? nullptr : &found->second;
  }

  bool HasBytesOf(const std::string& name, const Stored& other) const {
    const Folder::Entry entry = *folder_.Find(name);
    if (other.tensor->type != entry.tensor->type || other.tensor->shape != entry.tensor->shape) return false;
    const auto bytes = entry.file->DataOf(*entry.tensor);
    const bool equal = bytes.empty() || std::memcmp(other.data, bytes.data(), bytes.size()) == 0;
    other.file->Release(*other.tensor);
    entry.file->Release(*entry.tensor);
    return equal;
  }

  Folder folder_;
  std::vector<Mapping> mappings_;
  std::vector<TensorInfo> tensors_;
  absl::flat_hash_map<std::string, int> index_;
  absl::flat_hash_map<std::string, Stored> stored_;  // by their name
  absl::flat_hash_set<std::string> used_;            // beside those
  std::vector<std::string> misfits_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<checkpoint::TensorSource>> OpenWeights(
    Folder folder, std::vector<Mapping> mappings, const std::vector<std::string>& ignored) {
  auto weights = std::make_unique<FolderWeights>(std::move(folder), std::move(mappings));
  RETURN_IF_ERROR(weights->Match(ignored));
  return weights;
}

}  // namespace engine::hf
