#include <unistd.h>

#include <cstring>
#include <limits>

#include "engine/base/status.h"
#include "engine/data/dataset_spool.h"
#include "engine/data/indexed_dataset.h"
#include "engine/data/indexed_format.h"

namespace engine::data {
namespace {

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
    : prefix_(std::move(prefix)), type_(type) {}

IndexedDatasetWriter::~IndexedDatasetWriter() = default;

absl::StatusOr<std::unique_ptr<IndexedDatasetWriter>> IndexedDatasetWriter::Create(const std::string& prefix,
                                                                                   TokenType type) {
  std::unique_ptr<IndexedDatasetWriter> writer(new IndexedDatasetWriter(prefix, type));
  const std::string path = fmt::format("{}.tmp.{}", prefix, getpid());
  writer->temporary_files_.push_back(std::make_unique<TemporaryFile>(IdxPath(path)));
  for (const char* ending : DatasetSpool::kEndings)
    writer->temporary_files_.push_back(std::make_unique<TemporaryFile>(path + ending));
  ASSIGN_OR_RETURN(DatasetSpool spool, DatasetSpool::Open(path, type, {}));
  writer->spool_ = std::make_unique<DatasetSpool>(std::move(spool));
  return writer;
}

std::int64_t IndexedDatasetWriter::sequences() const { return spool_->sizes().sequences; }
std::int64_t IndexedDatasetWriter::documents() const { return spool_->sizes().documents; }
std::int64_t IndexedDatasetWriter::tokens() const { return spool_->sizes().token_bytes / SizeOf(type_); }

absl::Status IndexedDatasetWriter::AddDocument(std::span<const std::vector<std::int32_t>> sequences) {
  EncodedDocuments document;
  RETURN_IF_ERROR(EncodeDocument(type_, sequences, &document));
  return Add(document);
}

absl::Status IndexedDatasetWriter::Add(const EncodedDocuments& documents) { return spool_->Add(documents); }

absl::Status IndexedDatasetWriter::Finish() {
  ENGINE_CHECK(!finished_, "{} was finished before", prefix_);
  finished_ = true;
  const std::string path = fmt::format("{}.tmp.{}", prefix_, getpid());
  RETURN_IF_ERROR(spool_->WriteIndex(IdxPath(path)));
  RETURN_IF_ERROR(spool_->Sync());
  return PublishDataset(BinPath(path), IdxPath(path), prefix_);
}

}  // namespace engine::data
