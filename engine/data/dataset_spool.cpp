#include "engine/data/dataset_spool.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>

#include "engine/base/status.h"
#include "engine/data/indexed_format.h"

namespace engine::data {
namespace {

constexpr std::int64_t kBlockItems = std::int64_t{1} << 18;  // 1 MiB of i32

template <typename T>
void AppendValue(const T& value, std::string* buffer) {
  buffer->append(reinterpret_cast<const char*>(&value), sizeof value);
}

// The i32 of a spooled file, block by block.
class Items {
 public:
  explicit Items(const GrowingFile& file) : file_(file) {}
  // The next one; there must be one.
  absl::StatusOr<std::int32_t> Next() {
    if (at_ == block_.size()) {
      const std::int64_t left = (file_.bytes() - read_) / static_cast<std::int64_t>(sizeof(std::int32_t));
      block_.resize(static_cast<std::size_t>(std::min(left, kBlockItems)));
      const auto bytes = static_cast<std::int64_t>(block_.size() * sizeof(std::int32_t));
      RETURN_IF_ERROR(file_.file().ReadAt(block_.data(), bytes, read_));
      read_ += bytes;
      at_ = 0;
    }
    return block_[at_++];
  }

 private:
  const GrowingFile& file_;
  std::int64_t read_ = 0;
  std::vector<std::int32_t> block_;
  std::size_t at_ = 0;
};

// Appends what is made of each of `count` items to the file.
template <typename Make>
absl::Status AppendEach(const GrowingFile& from, std::int64_t count, Make make, GrowingFile* to) {
  Items items(from);
  std::string buffer;
  for (std::int64_t i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(const std::int32_t item, items.Next());
    make(item, &buffer);
    if (buffer.size() < static_cast<std::size_t>(kBlockItems) && i + 1 < count) continue;
    RETURN_IF_ERROR(to->Append(buffer.data(), buffer.size()));
    buffer.clear();
  }
  return absl::OkStatus();
}

bool IsThere(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

}  // namespace

absl::StatusOr<GrowingFile> GrowingFile::Open(const std::string& path, std::int64_t bytes) {
  ASSIGN_OR_RETURN(File file, OpenForWriting(path));
  ASSIGN_OR_RETURN(const std::int64_t there, file.Size());
  if (there < bytes) return DataLoss("{} has {} bytes of {}", path, there, bytes);
  if (there > bytes) RETURN_IF_ERROR(file.Resize(bytes));
  return GrowingFile(std::move(file), bytes);
}

absl::Status GrowingFile::Append(const void* data, std::size_t bytes) {
  RETURN_IF_ERROR(file_.WriteAt(data, static_cast<std::int64_t>(bytes), bytes_));
  bytes_ += static_cast<std::int64_t>(bytes);
  return absl::OkStatus();
}

absl::StatusOr<DatasetSpool> DatasetSpool::Open(const std::string& path, TokenType type, const Sizes& sizes) {
  constexpr std::int64_t kItem = sizeof(std::int32_t);
  ASSIGN_OR_RETURN(GrowingFile bin, GrowingFile::Open(path + kEndings[0], sizes.token_bytes));
  ASSIGN_OR_RETURN(GrowingFile lengths, GrowingFile::Open(path + kEndings[1], sizes.sequences * kItem));
  ASSIGN_OR_RETURN(GrowingFile documents, GrowingFile::Open(path + kEndings[2], sizes.documents * kItem));
  return DatasetSpool(type, std::move(bin), std::move(lengths), std::move(documents));
}

absl::Status DatasetSpool::Add(const EncodedDocuments& documents) {
  RETURN_IF_ERROR(bin_.Append(documents.tokens.data(), documents.tokens.size()));
  RETURN_IF_ERROR(lengths_.Append(documents.lengths.data(), documents.lengths.size() * sizeof(std::int32_t)));
  return documents_.Append(documents.sequences.data(), documents.sequences.size() * sizeof(std::int32_t));
}

DatasetSpool::Sizes DatasetSpool::sizes() const {
  constexpr std::int64_t kItem = sizeof(std::int32_t);
  return {bin_.bytes(), lengths_.bytes() / kItem, documents_.bytes() / kItem};
}

absl::Status DatasetSpool::Sync() const {
  RETURN_IF_ERROR(bin_.file().Sync());
  RETURN_IF_ERROR(lengths_.file().Sync());
  return documents_.file().Sync();
}

absl::Status DatasetSpool::WriteIndex(const std::string& path) const {
  const Sizes all = sizes();
  ASSIGN_OR_RETURN(GrowingFile index, GrowingFile::Open(path, 0));
  std::string header(kMagic);
  AppendValue(kVersion, &header);
  AppendValue(static_cast<std::uint8_t>(type_), &header);
  AppendValue(static_cast<std::uint64_t>(all.sequences), &header);
  AppendValue(static_cast<std::uint64_t>(all.documents) + 1, &header);
  RETURN_IF_ERROR(index.Append(header.data(), header.size()));
  const auto same = [](std::int32_t length, std::string* out) { AppendValue(length, out); };
  RETURN_IF_ERROR(AppendEach(lengths_, all.sequences, same, &index));
  const auto pointer = [at = std::int64_t{0}, size = SizeOf(type_)](std::int32_t length,
                                                                    std::string* out) mutable {
    AppendValue(at, out);
    at += length * size;
  };
  RETURN_IF_ERROR(AppendEach(lengths_, all.sequences, pointer, &index));
  const auto last = [sequences = std::int64_t{0}](std::int32_t count, std::string* out) mutable {
    AppendValue(sequences += count, out);
  };
  constexpr std::int64_t kFirst = 0;
  RETURN_IF_ERROR(index.Append(&kFirst, sizeof kFirst));
  RETURN_IF_ERROR(AppendEach(documents_, all.documents, last, &index));
  return index.file().Sync();
}

absl::Status DatasetSpool::CopyKept(const std::vector<bool>& kept, DatasetSpool* to) const {
  constexpr std::int64_t kCopiedBytes = std::int64_t{4} << 20;  // at a time
  Items documents(documents_);
  Items lengths(lengths_);
  EncodedDocuments some;
  std::int64_t at = 0;     // in bin_
  std::int64_t begin = 0;  // of what is kept and not copied yet
  const auto copy = [&]() -> absl::Status {
    while (begin < at) {
      some.tokens.resize(static_cast<std::size_t>(std::min(at - begin, kCopiedBytes)));
      const auto bytes = static_cast<std::int64_t>(some.tokens.size());
      RETURN_IF_ERROR(bin_.file().ReadAt(some.tokens.data(), bytes, begin));
      begin += bytes;
      RETURN_IF_ERROR(to->Add(some));
      some = {};
    }
    RETURN_IF_ERROR(to->Add(some));
    some = {};
    return absl::OkStatus();
  };
  for (const bool stays : kept) {
    ASSIGN_OR_RETURN(const std::int32_t sequences, documents.Next());
    if (!stays) RETURN_IF_ERROR(copy());
    if (stays) some.sequences.push_back(sequences);
    for (std::int32_t i = 0; i < sequences; ++i) {
      ASSIGN_OR_RETURN(const std::int32_t length, lengths.Next());
      at += length * SizeOf(type_);
      if (stays) some.lengths.push_back(length);
    }
    if (!stays) begin = at;
    if (at - begin >= kCopiedBytes) RETURN_IF_ERROR(copy());
  }
  return copy();
}

absl::Status RemoveOldIndex(const std::string& idx, const std::string& prefix) {
  if (!IsThere(idx)) return absl::OkStatus();  // it has its name
  const std::string old = IdxPath(prefix);
  return unlink(old.c_str()) != 0 && errno != ENOENT ? SystemError("replace", old, errno) : absl::OkStatus();
}

absl::Status PublishDataset(const std::string& bin, const std::string& idx, const std::string& prefix) {
  if (!IsThere(idx)) return absl::OkStatus();  // it has its name
  RETURN_IF_ERROR(RemoveOldIndex(idx, prefix));
  if (IsThere(bin)) RETURN_IF_ERROR(Rename(bin, BinPath(prefix)));
  RETURN_IF_ERROR(Rename(idx, IdxPath(prefix)));
  const std::string folder = std::filesystem::path(prefix).parent_path();
  return SyncFolder(folder.empty() ? "." : folder);
}

}  // namespace engine::data
