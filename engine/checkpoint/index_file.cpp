#include "engine/checkpoint/index_file.h"

#include "engine/base/file_io.h"
#include "engine/base/hash.h"
#include "engine/base/status.h"
#include "engine/checkpoint/hdf5_library.h"
#include "engine/checkpoint/layout.h"

namespace engine::checkpoint {
namespace {

bool AddScalar(const Hid& file, const Manifest& manifest, std::size_t tensor) {
  const Piece& piece = manifest.pieces[tensor].front();
  const Hid links = LinksWithGroups();
  return H5Lcreate_external(manifest.files[piece.file].name.c_str(), ("/" + piece.dataset).c_str(),
                            file.get(), manifest.tensors[tensor].name.c_str(), links.get(), H5P_DEFAULT) >= 0;
}

bool MapPiece(const Hid& properties, const Hid& whole, const Manifest& manifest, const Piece& piece) {
  const std::vector<hsize_t> start(piece.box.start.begin(), piece.box.start.end());
  const std::vector<hsize_t> count(piece.box.count.begin(), piece.box.count.end());
  const Hid source = SpaceOf(piece.box.count);
  return H5Sselect_hyperslab(whole.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr) >=
             0 &&
         H5Pset_virtual(properties.get(), whole.get(), manifest.files[piece.file].name.c_str(),
                        ("/" + piece.dataset).c_str(), source.get()) >= 0;
}

bool AddTensor(const Hid& file, const Manifest& manifest, std::size_t index) {
  const TensorInfo& tensor = manifest.tensors[index];
  if (tensor.shape.rank() == 0) return AddScalar(file, manifest, index);
  const Hid properties = DatasetProperties();
  const Hid whole = SpaceOf(tensor.shape);
  for (const Piece& piece : manifest.pieces[index]) {
    if (!MapPiece(properties, whole, manifest, piece)) return false;
  }
  H5Sselect_all(whole.get());
  const Hid type = FileType(tensor.dtype);
  const Hid links = LinksWithGroups();
  const Hid dataset(H5Dcreate2(file.get(), tensor.name.c_str(), type.get(), whole.get(), links.get(),
                               properties.get(), H5P_DEFAULT),
                    H5Dclose);
  return dataset.ok() && PutAttribute(dataset, "dtype", std::string(Name(tensor.dtype)));
}

absl::StatusOr<std::string> BuildIndex(const Manifest& manifest, const std::string& path) {
  RETURN_IF_ERROR(ExpectMemoryForHdf5());
  ASSIGN_OR_RETURN(File memory, CreateMemoryFile());
  {
    const Hdf5Session session;
    Hid file = CreateHdf5File(memory);
    bool good = file.ok();
    for (std::size_t i = 0; good && i < manifest.tensors.size(); ++i) good = AddTensor(file, manifest, i);
    if (!file.Close() || !good) return Internal("HDF5 cannot lay out {}", path);
  }
  ASSIGN_OR_RETURN(const std::int64_t bytes, memory.Size());
  std::string content(static_cast<std::size_t>(bytes), '\0');
  RETURN_IF_ERROR(memory.ReadAt(content.data(), bytes, 0));
  return content;
}

}  // namespace

// Generous: a disk or a limit that is too small must be met here and not inside HDF5.
std::int64_t IndexRoom(std::int64_t tensors, std::int64_t pieces) {
  constexpr std::int64_t kFileBytes = 16 << 10;
  constexpr std::int64_t kEntryBytes = 4 << 10;
  return kFileBytes + kEntryBytes * (tensors + pieces);
}

absl::StatusOr<FileInfo> WriteIndexFile(const std::string& folder, const Manifest& manifest) {
  const std::string path = JoinPath(folder, kIndexName);
  ASSIGN_OR_RETURN(const File file, CreateFile(path));
  std::int64_t pieces = 0;
  for (const std::vector<Piece>& of_tensor : manifest.pieces)
    pieces += static_cast<std::int64_t>(of_tensor.size());
  RETURN_IF_ERROR(file.Reserve(IndexRoom(static_cast<std::int64_t>(manifest.tensors.size()), pieces)));
  ASSIGN_OR_RETURN(const std::string content, BuildIndex(manifest, path));
  const auto bytes = static_cast<std::int64_t>(content.size());
  RETURN_IF_ERROR(file.WriteAt(content.data(), bytes, 0));
  RETURN_IF_ERROR(file.Resize(bytes));
  RETURN_IF_ERROR(file.Sync());
  return FileInfo{std::string(kIndexName), bytes, HashHex(content)};
}

}  // namespace engine::checkpoint
