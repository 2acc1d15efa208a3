#include "engine/checkpoint/shard_file.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <set>
#include <system_error>

#include "engine/base/file_io.h"
#include "engine/base/status.h"
#include "engine/checkpoint/block_writer.h"
#include "engine/checkpoint/hdf5_library.h"
#include "engine/checkpoint/layout.h"

namespace engine::checkpoint {
namespace {

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
    if (piece.narrow && tensor.dtype != DType::kF32) {
      return InvalidArgument("rank {}: tensor {} is {}, and has no elements that are widened", rank,
                             tensor.name, Name(tensor.dtype));
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
  RETURN_IF_ERROR(ExpectMemoryForHdf5());
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

// Everything of `layout` up to `end` that `writer` has not yet.
absl::Status AppendUpTo(const File& layout, std::int64_t end, BlockWriter* writer) {
  std::vector<char> bytes(static_cast<std::size_t>(std::max<std::int64_t>(0, end - writer->bytes())));
  RETURN_IF_ERROR(layout.ReadAt(bytes.data(), static_cast<std::int64_t>(bytes.size()), writer->bytes()));
  return writer->Append(bytes.data(), static_cast<std::int64_t>(bytes.size()));
}

absl::Status AppendPiece(const TensorInfo& tensor, const PieceToWrite& piece, BlockWriter* writer) {
  if (!piece.narrow) return writer->Append(piece.data, BytesOf(tensor, piece.box));
  return writer->AppendWidened(static_cast<const std::byte*>(piece.data), *piece.narrow,
                               piece.box.count.elements());
}

// The file is cut to its true size afterwards.
std::int64_t RoomOf(const std::vector<TensorInfo>& tensors, const std::vector<PieceToWrite>& pieces) {
  std::int64_t bytes = 0;
  for (const PieceToWrite& piece : pieces) bytes += BytesOf(tensors[piece.tensor], piece.box);
  return ShardRoom(bytes, static_cast<std::int64_t>(pieces.size()));
}

absl::Status WriteContent(const File& layout, const std::vector<TensorInfo>& tensors,
                          const std::vector<PieceToWrite>& pieces, BlockWriter* writer, ShardRecord* record) {
  std::vector<int> order(pieces.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int a, int b) { return record->pieces[a].offset_bytes < record->pieces[b].offset_bytes; });
  for (int i : order) {
    RETURN_IF_ERROR(AppendUpTo(layout, record->pieces[i].offset_bytes, writer));
    RETURN_IF_ERROR(AppendPiece(tensors[pieces[i].tensor], pieces[i], writer));
  }
  ASSIGN_OR_RETURN(record->file.bytes, layout.Size());
  RETURN_IF_ERROR(AppendUpTo(layout, record->file.bytes, writer));
  RETURN_IF_ERROR(writer->Finish());
  record->file.checksum = writer->Checksum();
  return absl::OkStatus();
}

}  // namespace

std::int64_t ShardRoom(std::int64_t data_bytes, std::int64_t pieces) {
  constexpr std::int64_t kFileBytes = 16 << 10;
  constexpr std::int64_t kPieceBytes = 6 << 10;  // header, attributes, name and alignment
  return kFileBytes + data_bytes + kPieceBytes * pieces;
}

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
  const std::string parent = std::filesystem::path(path).parent_path();
  const bool has_own_folder = rank >= kRanksInFolder;
  std::error_code error;
  if (has_own_folder) std::filesystem::create_directory(parent, error);  // unless another rank has
  if (error) return SystemError("create folder", parent, error.value());
  ASSIGN_OR_RETURN(BlockWriter writer, BlockWriter::Create(path, RoomOf(tensors, pieces)));
  ASSIGN_OR_RETURN(const File layout, LayOut(path, tensors, &record));
  RETURN_IF_ERROR(WriteContent(layout, tensors, pieces, &writer, &record));
  if (has_own_folder) RETURN_IF_ERROR(SyncFolder(parent));
  return record;
}

}  // namespace engine::checkpoint
