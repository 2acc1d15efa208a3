#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>

#include "engine/base/file.h"
#include "engine/base/status.h"
#include "engine/data/indexed_dataset.h"
#include "engine/data/indexed_format.h"

namespace engine::data {
namespace {

absl::Status IoError(std::string_view operation, const std::string& path) {
  return SystemError(operation, path, errno);
}

// Flushes to the disk and closes; *file is null afterwards.
absl::Status SyncAndClose(std::FILE** file, const std::string& path) {
  std::FILE* open_file = *file;
  *file = nullptr;
  const bool synced = std::fflush(open_file) == 0 && fsync(fileno(open_file)) == 0;
  const int error = errno;
  const bool closed = std::fclose(open_file) == 0;
  if (!synced) errno = error;
  return synced && closed ? absl::OkStatus() : IoError("write", path);
}

template <typename T>
void Append(const T& value, std::vector<unsigned char>* buffer) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(&value);
  buffer->insert(buffer->end(), bytes, bytes + sizeof value);
}

struct Limits {
  std::int64_t min;
  std::int64_t max;
};

Limits LimitsOf(TokenType type) {
  const bool is_signed = type != TokenType::kU8 && type != TokenType::kU16;
  const std::int64_t bits = 8 * SizeOf(type) - (is_signed ? 1 : 0);
  const std::int64_t max = std::numeric_limits<std::int64_t>::max() >> (63 - bits);
  return {is_signed ? -max - 1 : 0, max};
}

}  // namespace

absl::Status EncodeDocument(TokenType type, std::span<const std::vector<std::int32_t>> sequences,
                            EncodedDocuments* documents) {
  const Limits limits = LimitsOf(type);
  const auto token_bytes = static_cast<std::size_t>(SizeOf(type));
  for (const std::vector<std::int32_t>& sequence : sequences) {
    if (sequence.size() > std::numeric_limits<std::int32_t>::max()) {
      return InvalidArgument("a sequence of {} tokens; at most {} are possible", sequence.size(),
                             std::numeric_limits<std::int32_t>::max());
    }
    const std::size_t at = documents->tokens.size();
    documents->tokens.resize(at + sequence.size() * token_bytes);
    unsigned char* out = documents->tokens.data() + at;
    for (const std::int64_t token : sequence) {
      if (token < limits.min || token > limits.max) {
        return InvalidArgument("token {} does not fit {}: it holds {} to {}", token, Name(type), limits.min,
                               limits.max);
      }
      std::memcpy(out, &token, token_bytes);  // little-endian: the low bytes come first
      out += token_bytes;
    }
    documents->lengths.push_back(static_cast<std::int32_t>(sequence.size()));
  }
  documents->sequences.push_back(static_cast<std::int32_t>(sequences.size()));
  return absl::OkStatus();
}

IndexedDatasetWriter::IndexedDatasetWriter(std::string prefix, TokenType type)
    : prefix_(std::move(prefix)),
      temporary_bin_(fmt::format("{}.tmp.{}", BinPath(prefix_), getpid())),
      temporary_idx_(fmt::format("{}.tmp.{}", IdxPath(prefix_), getpid())),
      type_(type) {}

IndexedDatasetWriter::~IndexedDatasetWriter() {
  if (bin_ != nullptr) std::fclose(bin_);
}

absl::StatusOr<std::unique_ptr<IndexedDatasetWriter>> IndexedDatasetWriter::Create(const std::string& prefix,
                                                                                   TokenType type) {
  std::unique_ptr<IndexedDatasetWriter> writer(new IndexedDatasetWriter(prefix, type));
  writer->bin_ = std::fopen(writer->temporary_bin_.path().c_str(), "wb");
  if (writer->bin_ == nullptr) return IoError("create", writer->temporary_bin_.path());
  return writer;
}

absl::Status IndexedDatasetWriter::AddDocument(std::span<const std::vector<std::int32_t>> sequences) {
  EncodedDocuments document;
  RETURN_IF_ERROR(EncodeDocument(type_, sequences, &document));
  return Add(document);
}

absl::Status IndexedDatasetWriter::Add(const EncodedDocuments& documents) {
  const std::vector<unsigned char>& bytes = documents.tokens;
  if (!bytes.empty() && std::fwrite(bytes.data(), 1, bytes.size(), bin_) != bytes.size())
    return IoError("write", temporary_bin_.path());
  lengths_.insert(lengths_.end(), documents.lengths.begin(), documents.lengths.end());
  for (const std::int32_t sequences : documents.sequences)
    documents_.push_back(documents_.back() + sequences);
  tokens_ += static_cast<std::int64_t>(bytes.size()) / SizeOf(type_);
  return absl::OkStatus();
}

absl::Status IndexedDatasetWriter::WriteIndex() {
  std::vector<unsigned char> header(kMagic.begin(), kMagic.end());
  Append(kVersion, &header);
  Append(static_cast<std::uint8_t>(type_), &header);
  Append(static_cast<std::uint64_t>(lengths_.size()), &header);
  Append(static_cast<std::uint64_t>(documents_.size()), &header);
  std::vector<std::int64_t> pointers(lengths_.size());
  std::int64_t at = 0;
  for (std::size_t i = 0; i < lengths_.size(); ++i) {
    pointers[i] = at;
    at += lengths_[i] * SizeOf(type_);
  }
  std::FILE* file = std::fopen(temporary_idx_.path().c_str(), "wb");
  if (file == nullptr) return IoError("create", temporary_idx_.path());
  const auto write = [file](const auto& array) {
    return array.empty() || std::fwrite(array.data(), sizeof array[0], array.size(), file) == array.size();
  };
  if (!write(header) || !write(lengths_) || !write(pointers) || !write(documents_)) {
    absl::Status status = IoError("write", temporary_idx_.path());
    std::fclose(file);
    return status;
  }
  return SyncAndClose(&file, temporary_idx_.path());
}

absl::Status IndexedDatasetWriter::Finish() {
  ENGINE_CHECK(bin_ != nullptr, "{} was finished before", prefix_);
  RETURN_IF_ERROR(SyncAndClose(&bin_, temporary_bin_.path()));
  RETURN_IF_ERROR(WriteIndex());
  // An older index goes first: a crash in between leaves no index rather than one of another .bin.
  const std::string bin = BinPath(prefix_);
  const std::string idx = IdxPath(prefix_);
  if (unlink(idx.c_str()) != 0 && errno != ENOENT) return IoError("replace", idx);
  if (std::rename(temporary_bin_.path().c_str(), bin.c_str()) != 0) return IoError("rename to", bin);
  if (std::rename(temporary_idx_.path().c_str(), idx.c_str()) != 0) return IoError("rename to", idx);
  return absl::OkStatus();
}

}  // namespace engine::data
