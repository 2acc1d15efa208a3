#include "engine/checkpoint/shard_file.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "engine/base/file_io.h"
#include "engine/base/hash.h"
#include "engine/base/status.h"
#include "engine/checkpoint/hdf5_library.h"
#include "engine/checkpoint/layout.h"

namespace engine::checkpoint {
namespace {

constexpr std::int64_t kBlockBytes = std::int64_t{1}
                                     << 20;  // stays in the second-level cache between hash and write

std::int64_t BytesOf(const TensorInfo& tensor, const Box& box) {
  return box.count.elements() * SizeOf(tensor.dtype);
}

absl::Status CheckPieces(int rank, const std::vector<TensorInfo>& tensors,
                         const std::vector<PieceToWrite>& pieces) {
  if (rank < 0 || rank >= kMostRanks) return InvalidArgument("no shard for rank {}", rank);
  std::set<std::string> datasets;
  for (const PieceToWrite& piece : pieces) {
    if (piece.tensor < 0 || piece.tensor >= static_cast<int>(tensors.size())) {
      return InvalidArgument("rank {} writes tensor {} of {}", rank, piece.tensor, tensors.size());
    }
    const TensorInfo& tensor = tensors[piece.tensor];
    if (!IsInside(piece.box, tensor.shape)) {
      return InvalidArgument("rank {}: tensor {}: piece {} is not inside its shape {}", rank, tensor.name,
                             ToString(piece.box), tensor.shape.ToString());
    }
    if (!datasets.insert(DatasetName(tensor.name, piece.box)).second) {
      return InvalidArgument("rank {}: tensor {}: two pieces start where {} does", rank, tensor.name,
                             ToString(piece.box));
    }
  }
  return absl::OkStatus();
}

// Creates the dataset with its space in the file taken, unwritten; its offset, or -1.
std::int64_t LayOutPiece(const Hid& file, const TensorInfo& tensor, const Box& box, const std::string& name) {
  const Hid properties = DatasetProperties();
  H5Pset_layout(properties.get(), H5D_CONTIGUOUS);
  H5Pset_alloc_time(properties.get(), H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(properties.get(), H5D_FILL_TIME_NEVER);
  const Hid type = FileType(tensor.dtype);
  const Hid space = SpaceOf(box.count);
  const Hid links = LinksWithGroups();
  const Hid dataset(H5Dcreate2(file.get(), name.c_str(), type.get(), space.get(), links.get(),
                               properties.get(), H5P_DEFAULT),
                    H5Dclose);
  if (!dataset.ok() || !PutAttribute(dataset, "tensor", tensor.name) ||
      !PutAttribute(dataset, "dtype", std::string(Name(tensor.dtype))) ||
      !PutAttribute(dataset, "start", box.start) || !PutAttribute(dataset, "count", box.count)) {
    return -1;
  }
  const haddr_t offset = H5Dget_offset(dataset.get());
  return offset == HADDR_UNDEF ? -1 : static_cast<std::int64_t>(offset);
}

// The whole file but the pieces' data, in memory; fills the offsets of record->pieces.
absl::StatusOr<File> LayOut(const std::string& path, const std::vector<TensorInfo>& tensors,
                            ShardRecord* record) {
  ASSIGN_OR_RETURN(File memory, CreateMemoryFile());
  const Hdf5Session session;
  Hid file = CreateHdf5File(memory);
  bool good = file.ok();
  for (std::size_t i = 0; good && i < record->pieces.size(); ++i) {
    Piece& piece = record->pieces[i];
    piece.offset_bytes = LayOutPiece(file, tensors[record->tensors[i]], piece.box, piece.dataset);
    good = piece.offset_bytes >= 0;
  }
  if (!file.Close() || !good) return Internal("HDF5 cannot lay out {}", path);
  return memory;
}

// Takes bytes to the file in order, hashing them on the way.
class HashingAppender {
 public:
  explicit HashingAppender(const File& file) : file_(file) {}

  absl::Status Append(const void* data, std::int64_t bytes) {
    for (std::int64_t done = 0; done < bytes; done += kBlockBytes) {
      const std::int64_t part = std::min(kBlockBytes, bytes - done);
      const char* from = static_cast<const char*>(data) + done;
      hasher_.Update(from, static_cast<std::size_t>(part));
      RETURN_IF_ERROR(file_.WriteAt(from, part, end_));
      end_ += part;
    }
    return absl::OkStatus();
  }

  // Everything of `source` up to `end` that has not been passed yet.
  absl::Status AppendUpTo(const File& source, std::int64_t end) {
    std::vector<char> block(static_cast<std::size_t>(std::clamp<std::int64_t>(end - end_, 0, kBlockBytes)));
    while (end_ < end) {
      const std::int64_t part = std::min(kBlockBytes, end - end_);
      RETURN_IF_ERROR(source.ReadAt(block.data(), part, end_));
      RETURN_IF_ERROR(Append(block.data(), part));
    }
    return absl::OkStatus();
  }

  std::string Checksum() const { return hasher_.HexDigest(); }

 private:
  const File& file_;
  Hasher hasher_;
  std::int64_t end_ = 0;
};

// Generous, to fail early where the disk is too small; the file is cut to its true size afterwards.
std::int64_t EstimatedBytes(const std::vector<TensorInfo>& tensors, const std::vector<PieceToWrite>& pieces) {
  constexpr std::int64_t kFileBytes = 16 << 10;
  constexpr std::int64_t kPieceBytes = 6 << 10;  // header, attributes, name and alignment
  std::int64_t bytes = kFileBytes;
  for (const PieceToWrite& piece : pieces) bytes += BytesOf(tensors[piece.tensor], piece.box) + kPieceBytes;
  return bytes;
}

absl::Status WriteContent(const File& file, const File& layout, const std::vector<TensorInfo>& tensors,
                          const std::vector<PieceToWrite>& pieces, ShardRecord* record) {
  std::vector<int> order(pieces.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int a, int b) { return record->pieces[a].offset_bytes < record->pieces[b].offset_bytes; });
  HashingAppender appender(file);
  for (int i : order) {
    RETURN_IF_ERROR(appender.AppendUpTo(layout, record->pieces[i].offset_bytes));
    RETURN_IF_ERROR(appender.Append(pieces[i].data, BytesOf(tensors[pieces[i].tensor], pieces[i].box)));
  }
  ASSIGN_OR_RETURN(record->file.bytes, layout.Size());
  RETURN_IF_ERROR(appender.AppendUpTo(layout, record->file.bytes));
  record->file.checksum = appender.Checksum();
  RETURN_IF_ERROR(file.Resize(record->file.bytes));
  return file.Sync();
}

}  // namespace

absl::StatusOr<ShardRecord> WriteShardFile(const std::string& folder, int rank,
                                           const std::vector<TensorInfo>& tensors,
                                           const std::vector<PieceToWrite>& pieces) {
  RETURN_IF_ERROR(CheckPieces(rank, tensors, pieces));
  ShardRecord record;
  record.file.name = ShardName(rank);
  for (const PieceToWrite& piece : pieces) {
    record.tensors.push_back(piece.tensor);
    record.pieces.push_back({0, DatasetName(tensors[piece.tensor].name, piece.box), piece.box, 0});
  }
  const std::string path = JoinPath(folder, record.file.name);
  ASSIGN_OR_RETURN(const File file, CreateFile(path));
  RETURN_IF_ERROR(file.Reserve(EstimatedBytes(tensors, pieces)));
  ASSIGN_OR_RETURN(const File layout, LayOut(path, tensors, &record));
  RETURN_IF_ERROR(WriteContent(file, layout, tensors, pieces, &record));
  return record;
}

}  // namespace engine::checkpoint
