#include "engine/checkpoint/piece_reader.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

#include "engine/base/half.h"
#include "engine/base/status.h"

namespace engine::checkpoint {
namespace {

constexpr std::int64_t kWindowBytes = std::int64_t{1}
                                      << 18;  // one read of the file serves all short runs within
constexpr std::int64_t kLongRunBytes = std::int64_t{1} << 14;
constexpr std::int64_t kFarStrideBytes = std::int64_t{1} << 16;  // runs further apart are read one by one

// Element strides of a row-major box.
Shape StridesOf(const Shape& count) {
  Shape strides = count;
  std::int64_t stride = 1;
  for (int dim = count.rank() - 1; dim >= 0; --dim) {
    strides[dim] = stride;
    stride *= count[dim];
  }
  return strides;
}

// Reads a piece's file at rising offsets: long runs straight to their place, short ones through a window.
class RunReader {
 public:
  // `stride`: bytes between the starts of neighbouring runs; `end`: of the last byte that will be asked for.
  RunReader(const PieceReader::ReadAt& read_at, std::int64_t stride, std::int64_t end)
      : read_at_(read_at), stride_(stride), end_(end) {}

  absl::Status Read(std::int64_t offset, std::int64_t bytes, void* out) {
    if (bytes >= kLongRunBytes || stride_ > kFarStrideBytes) return read_at_(out, bytes, offset);
    if (offset < window_start_ || offset + bytes > window_start_ + window_bytes_) {
      window_start_ = offset;
      window_bytes_ = std::min(kWindowBytes, end_ - offset);
      window_.resize(static_cast<std::size_t>(window_bytes_));
      RETURN_IF_ERROR(read_at_(window_.data(), window_bytes_, offset));
    }
    std::memcpy(out, window_.data() + (offset - window_start_), static_cast<std::size_t>(bytes));
    return absl::OkStatus();
  }

 private:
  const PieceReader::ReadAt& read_at_;
  std::int64_t stride_;
  std::int64_t end_;
  std::int64_t window_start_ = 0;
  std::int64_t window_bytes_ = 0;
  std::vector<char> window_;
};

// Copies `common`, a part of both, from the piece's place in its file to its place in the wanted box's
// memory: the innermost dims that are whole in both, and the next one out, make one run; the dims further out
// are counted through.
absl::Status CopyFromPiece(const PieceReader::ReadAt& read_at, const Piece& piece, const Box& common,
                           const Box& wanted, std::int64_t element_bytes, char* out) {
  const int rank = common.start.rank();
  const Shape from_strides = StridesOf(piece.box.count);
  const Shape to_strides = StridesOf(wanted.count);
  int outer = rank;  // dims [outer, rank) are in the run
  std::int64_t run = element_bytes;
  bool whole = true;
  while (outer > 0 && whole) {
    --outer;
    run *= common.count[outer];
    whole = common.count[outer] == piece.box.count[outer] && common.count[outer] == wanted.count[outer];
  }
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t last = 0;
  for (int dim = 0; dim < rank; ++dim) {
    from += (common.start[dim] - piece.box.start[dim]) * from_strides[dim];
    to += (common.start[dim] - wanted.start[dim]) * to_strides[dim];
    if (dim < outer) last += (common.count[dim] - 1) * from_strides[dim];
  }
  const std::int64_t stride = outer > 0 ? from_strides[outer - 1] * element_bytes : 0;
  RunReader reader(read_at, stride, piece.offset_bytes + (from + last) * element_bytes + run);
  Shape index = WholeBox(common.count).start;
  while (true) {
    RETURN_IF_ERROR(reader.Read(piece.offset_bytes + from * element_bytes, run, out + to * element_bytes));
    int dim = outer - 1;
    for (; dim >= 0 && ++index[dim] == common.count[dim]; --dim) {
      index[dim] = 0;
      from -= (common.count[dim] - 1) * from_strides[dim];
      to -= (common.count[dim] - 1) * to_strides[dim];
    }
    if (dim < 0) return absl::OkStatus();
    from += from_strides[dim];
    to += to_strides[dim];
  }
}

}  // namespace

void PieceReader::SetManifest(Manifest manifest) {
  manifest_ = std::move(manifest);
  for (const TensorInfo& tensor : manifest_.tensors)
    index_.emplace(tensor.name, static_cast<int>(index_.size()));
}

const TensorInfo* PieceReader::Find(const std::string& tensor) const {
  const auto found = index_.find(tensor);
  return found == index_.end() ? nullptr : &manifest_.tensors[static_cast<std::size_t>(found->second)];
}

absl::Status PieceReader::Read(const std::string& tensor, const Box& box, void* out) const {
  const auto found = index_.find(tensor);
  if (found == index_.end()) return NotFound("{} has no tensor {}", Name(), tensor);
  const TensorInfo& info = manifest_.tensors[static_cast<std::size_t>(found->second)];
  if (!IsInside(box, info.shape)) {
    return InvalidArgument("tensor {}: {} is not inside its shape {}", tensor, ToString(box),
                           info.shape.ToString());
  }
  const DType stored = StoredAs(info);
  if (stored == info.dtype) return ReadPieces(found->second, box, stored, static_cast<char*>(out));
  std::vector<std::uint16_t> narrow(static_cast<std::size_t>(box.count.elements()));
  RETURN_IF_ERROR(ReadPieces(found->second, box, stored, reinterpret_cast<char*>(narrow.data())));
  std::transform(narrow.begin(), narrow.end(), static_cast<float*>(out),
                 stored == DType::kBF16 ? FloatFromBFloat16 : FloatFromHalf);
  return absl::OkStatus();
}

absl::Status PieceReader::ReadPieces(int tensor, const Box& box, DType dtype, char* out) const {
  ReadAt read_at;
  int open_file = -1;
  for (const Piece& piece : manifest_.pieces[static_cast<std::size_t>(tensor)]) {
    const std::optional<Box> common = Intersect(piece.box, box);
    if (!common) continue;
    if (open_file != piece.file) {
      ASSIGN_OR_RETURN(read_at, OpenFile(piece.file));
      open_file = piece.file;
    }
    RETURN_IF_ERROR(CopyFromPiece(read_at, piece, *common, box, SizeOf(dtype), out));
  }
  return absl::OkStatus();
}

}  // namespace engine::checkpoint
