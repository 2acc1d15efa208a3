#include "engine/checkpoint/read.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "engine/base/file_io.h"
#include "engine/base/status.h"
#include "engine/checkpoint/layout.h"

namespace engine::checkpoint {
namespace {

constexpr std::int64_t kMostManifestBytes = std::int64_t{1} << 30;
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
  RunReader(const File& file, std::int64_t stride, std::int64_t end)
      : file_(file), stride_(stride), end_(end) {}

  absl::Status Read(std::int64_t offset, std::int64_t bytes, void* out) {
    if (bytes >= kLongRunBytes || stride_ > kFarStrideBytes) return file_.ReadAt(out, bytes, offset);
    if (offset < window_start_ || offset + bytes > window_start_ + window_bytes_) {
      window_start_ = offset;
      window_bytes_ = std::min(kWindowBytes, end_ - offset);
      window_.resize(static_cast<std::size_t>(window_bytes_));
      RETURN_IF_ERROR(file_.ReadAt(window_.data(), window_bytes_, offset));
    }
    std::memcpy(out, window_.data() + (offset - window_start_), static_cast<std::size_t>(bytes));
    return absl::OkStatus();
  }

 private:
  const File& file_;
  std::int64_t stride_;
  std::int64_t end_;
  std::int64_t window_start_ = 0;
  std::int64_t window_bytes_ = 0;
  std::vector<char> window_;
};

// Copies `common`, a part of both, from the piece's place in its file to its place in the wanted box's
// memory: the innermost dims that are whole in both, and the next one out, make one run; the dims further out
// are counted through.
absl::Status CopyFromPiece(const File& file, const Piece& piece, const Box& common, const Box& wanted,
                           std::int64_t element_bytes, char* out) {
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
  RunReader reader(file, stride, piece.offset_bytes + (from + last) * element_bytes + run);
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

absl::Status CheckFileSize(const std::string& path, std::int64_t bytes) {
  ASSIGN_OR_RETURN(const File file, OpenForReading(path));
  ASSIGN_OR_RETURN(const std::int64_t actual, file.Size());
  if (actual != bytes) return DataLoss("{} has {} bytes; the manifest says {}", path, actual, bytes);
  return absl::OkStatus();
}

absl::StatusOr<Manifest> ReadManifest(const std::string& folder) {
  const std::string path = JoinPath(folder, kManifestName);
  ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, kMostManifestBytes));
  absl::StatusOr<Manifest> manifest = ParseManifest(text);
  if (!manifest.ok()) return DataLoss("{}: {}", path, Message(manifest.status()));
  return manifest;
}

}  // namespace

absl::StatusOr<std::int64_t> ReadIteration(const std::string& folder) {
  ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(folder));
  return manifest.metadata.iteration;
}

absl::StatusOr<Reader> Reader::Open(const std::string& folder) {
  ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(folder));
  const std::int64_t iteration = manifest.metadata.iteration;
  if (const std::optional<std::int64_t> named = IterationOfPath(folder); named && *named != iteration) {
    return DataLoss(
        "{} is named for iteration {}, but its manifest is of iteration {}: give it the name {} back", folder,
        *named, iteration, IterationName(iteration));
  }
  Reader reader;
  reader.folder_ = folder;
  reader.manifest_ = std::move(manifest);
  for (const FileInfo& file : reader.manifest_.files) {
    RETURN_IF_ERROR(CheckFileSize(JoinPath(folder, file.name), file.bytes));
  }
  for (const TensorInfo& tensor : reader.tensors()) {
    reader.index_.emplace(tensor.name, static_cast<int>(reader.index_.size()));
  }
  return reader;
}

absl::Status Reader::Verify() const {
  for (const FileInfo& file : manifest_.files) {
    const std::string path = JoinPath(folder_, file.name);
    ASSIGN_OR_RETURN(const std::string checksum, ChecksumOf(path, file.bytes));
    if (checksum != file.checksum) {
      return DataLoss("{} has checksum {}; the manifest says {}", path, checksum, file.checksum);
    }
  }
  return absl::OkStatus();
}

const TensorInfo* Reader::Find(const std::string& tensor) const {
  const auto found = index_.find(tensor);
  return found == index_.end() ? nullptr : &manifest_.tensors[found->second];
}

absl::Status Reader::Read(const std::string& tensor, const Box& box, void* out) const {
  const auto found = index_.find(tensor);
  if (found == index_.end()) return NotFound("{} has no tensor {}", folder_, tensor);
  const TensorInfo& info = manifest_.tensors[found->second];
  if (!IsInside(box, info.shape)) {
    return InvalidArgument("tensor {}: {} is not inside its shape {}", tensor, ToString(box),
                           info.shape.ToString());
  }
  std::optional<File> file;
  int open_file = -1;
  for (const Piece& piece : manifest_.pieces[found->second]) {  // sorted by file
    const std::optional<Box> common = Intersect(piece.box, box);
    if (!common) continue;
    if (open_file != piece.file) {
      ASSIGN_OR_RETURN(file, OpenForReading(JoinPath(folder_, manifest_.files[piece.file].name)));
      open_file = piece.file;
    }
    RETURN_IF_ERROR(CopyFromPiece(*file, piece, *common, box, SizeOf(info.dtype), static_cast<char*>(out)));
  }
  return absl::OkStatus();
}

std::int64_t Reader::bytes() const {
  std::int64_t bytes = 0;
  for (const FileInfo& file : manifest_.files) bytes += file.bytes;
  return bytes;
}

}  // namespace engine::checkpoint
