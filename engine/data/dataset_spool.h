// Documents of a data set that is being made, on disk as they come, so that no memory grows with their number.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/file_io.h"
#include "engine/data/indexed_dataset.h"

namespace engine::data {

// A file that is appended to.
class GrowingFile {
 public:
  // Goes on behind its first `bytes` bytes; what stands behind them is cut off. A file that is shorter is DataLoss.
  static absl::StatusOr<GrowingFile> Open(const std::string& path, std::int64_t bytes);
  absl::Status Append(const void* data, std::size_t bytes);
  std::int64_t bytes() const { return bytes_; }
  const File& file() const { return file_; }

 private:
  explicit GrowingFile(File file, std::int64_t bytes) : file_(std::move(file)), bytes_(bytes) {}
  File file_;
  std::int64_t bytes_;
};

// PATH.bin has the tokens, as the data set's .bin will; PATH.lengths an i32 for each sequence, the number of its tokens;
// PATH.documents an i32 for each document, the number of its sequences.
class DatasetSpool {
 public:
  struct Sizes {
    std::int64_t token_bytes = 0;
    std::int64_t sequences = 0;
    std::int64_t documents = 0;
  };

  static constexpr const char* kEndings[] = {".bin", ".lengths", ".documents"};

  // Goes on behind so many (GrowingFile::Open).
  static absl::StatusOr<DatasetSpool> Open(const std::string& path, TokenType type, const Sizes& sizes);

  absl::Status Add(const EncodedDocuments& documents);  // encoded with this type
  Sizes sizes() const;
  absl::Status Sync() const;  // safe while another thread adds: what was added before is on the disk then
  // The .idx of all that was added, synced.
  absl::Status WriteIndex(const std::string& path) const;
  // Appends to `to` the documents that are kept, of which there is one for each document here.
  absl::Status CopyKept(const std::vector<bool>& kept, DatasetSpool* to) const;

 private:
  DatasetSpool(TokenType type, GrowingFile bin, GrowingFile lengths, GrowingFile documents)
      : type_(type), bin_(std::move(bin)), lengths_(std::move(lengths)), documents_(std::move(documents)) {}

  TokenType type_;
  GrowingFile bin_;
  GrowingFile lengths_;
  GrowingFile documents_;
};

// Gives a whole data set its name: PREFIX.bin and PREFIX.idx are what `bin` and `idx`, files of the same file system that are
// synced, were. An older index goes first: a crash in between leaves no index rather than one of another .bin. Where a crash has
// left the two renamed, or the first of them, the rest is made up for.
absl::Status PublishDataset(const std::string& bin, const std::string& idx, const std::string& prefix);
// The first step of that alone.
absl::Status RemoveOldIndex(const std::string& idx, const std::string& prefix);

}  // namespace engine::data
