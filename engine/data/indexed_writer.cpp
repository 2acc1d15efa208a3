#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "engine/base/status.h"
#include "engine/data/dataset_spool.h"
#include "engine/data/indexed_dataset.h"
#include "engine/data/indexed_format.h"

namespace engine::data {
namespace {

// The first token that a T does not hold; null: it holds all.
template <typename T>
const std::int32_t* Write(std::span<const std::int32_t> tokens, unsigned char* out) {
  constexpr bool kHoldsAll = sizeof(T) >= sizeof(std::int32_t);
  bool fits = true;  // looked at for all, so that the loop has no way out and can be done many at a time
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto token = static_cast<T>(tokens[i]);
    fits &= kHoldsAll || static_cast<std::int32_t>(token) == tokens[i];
    std::memcpy(out + i * sizeof(T), &token, sizeof token);  // little-endian
  }
  if (fits) return nullptr;
  return &*std::find_if(tokens.begin(), tokens.end(), [](std::int32_t token) {
    return static_cast<std::int32_t>(static_cast<T>(token)) != token;
  });
}

const std::int32_t* WriteAs(TokenType type, std::span<const std::int32_t> tokens, unsigned char* out) {
  switch (type) {
    case TokenType::kU8:
      return Write<std::uint8_t>(tokens, out);
    case TokenType::kI8:
      return Write<std::int8_t>(tokens, out);
    case TokenType::kI16:
      return Write<std::int16_t>(tokens, out);
    case TokenType::kU16:
      return Write<std::uint16_t>(tokens, out);
    case TokenType::kI32:
      return Write<std::int32_t>(tokens, out);
    case TokenType::kI64:
      return Write<std::int64_t>(tokens, out);
  }
  return nullptr;
}

// "0 to 255"
std::string RangeOf(TokenType type) {
  const bool is_signed = type != TokenType::kU8 && type != TokenType::kU16;
  const std::int64_t bits = 8 * SizeOf(type) - (is_signed ? 1 : 0);
  const std::int64_t max = std::numeric_limits<std::int64_t>::max() >> (63 - bits);
  return fmt::format("{} to {}", is_signed ? -max - 1 : 0, max);
}

}  // namespace

absl::Status AppendSequence(TokenType type, std::span<const std::int32_t> tokens,
                            EncodedDocuments* documents) {
  constexpr std::size_t kMost = std::numeric_limits<std::int32_t>::max();
  if (tokens.size() > kMost)
    return InvalidArgument("a sequence of {} tokens; at most {} are possible", tokens.size(), kMost);
  const std::size_t at = documents->tokens.size();
  documents->tokens.resize(at + tokens.size() * static_cast<std::size_t>(SizeOf(type)));
  if (const std::int32_t* misfit = WriteAs(type, tokens, documents->tokens.data() + at)) {
    return InvalidArgument("token {} does not fit {}: it holds {}", *misfit, Name(type), RangeOf(type));
  }
  documents->lengths.push_back(static_cast<std::int32_t>(tokens.size()));
  return absl::OkStatus();
}

absl::Status EncodeDocument(TokenType type, std::span<const std::vector<std::int32_t>> sequences,
                            EncodedDocuments* documents) {
  for (const std::vector<std::int32_t>& sequence : sequences)
    RETURN_IF_ERROR(AppendSequence(type, sequence, documents));
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
