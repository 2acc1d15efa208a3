// Tokenised text on disk: PREFIX.bin holds the tokens of all sequences, one after the other, and PREFIX.idx
// says where each begins. The layout is Megatron's (megatron/core/datasets/indexed_dataset.py),
// little-endian, unpadded:
//
//   .idx   offset      type    meaning
//          0           u8[9]   "MMIDIDX" and two zero bytes
//          9           u64     version, 1
//          17          u8      token type (TokenType)
//          18          u64     N, number of sequences
//          26          u64     M, number of documents + 1
//          34          i32[N]  length of each sequence, in tokens
//          34+4N       i64[N]  byte offset of each sequence in .bin
//          34+12N      i64[M]  first sequence of each document, then N
//
// Documents are half-open ranges of sequences and may be empty. Language modelling works on sequences.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/fingerprint.h"
#include "engine/data/mapped_file.h"
#include "engine/data/temporary_file.h"
#include "engine/data/token_bytes.h"

namespace engine::data {

enum class TokenType : std::uint8_t { kU8 = 1, kI8 = 2, kI16 = 3, kI32 = 4, kI64 = 5, kU16 = 8 };

std::string_view Name(TokenType type);  // "uint16"
std::int64_t SizeOf(TokenType type);    // bytes of one token
TokenType ChooseTokenType(
    std::int64_t vocab_size);  // uint16 below 65500, else int32: the preprocessor's rule

struct TokenScan {  // what one pass over .bin finds; all 0 for a data set without tokens
  std::int64_t min = 0;
  std::int64_t max = 0;
  std::int64_t first_max = 0;  // position of the first token equal to max, in tokens from the start of .bin
  std::int64_t first_min = 0;
};

class IndexedDataset {
 public:
  // Opens PREFIX.bin and PREFIX.idx and checks all of the .idx, and the size of the .bin, against each other. A prefix may be s3:// or
  // http(s)://: then the .idx is copied to this machine (storage/copies.h), and the .bin is read where it lies, by ranges. Only then
  // can reading fail.
  static absl::StatusOr<IndexedDataset> Open(const std::string& prefix);

  const std::string& prefix() const { return prefix_; }
  TokenType type() const { return type_; }
  std::int64_t sequences() const { return static_cast<std::int64_t>(lengths_.size()); }
  std::int64_t documents() const { return documents_; }
  std::int64_t tokens() const { return tokens_; }
  std::int64_t bin_bytes() const { return bin_.size(); }
  bool is_remote() const { return bin_.is_remote(); }
  std::span<const std::int32_t> lengths() const { return lengths_; }
  // First sequence of document `document`; of documents(): the number of sequences.
  std::int64_t first_sequence(std::int64_t document) const;

  // Tokens [offset, offset + out.size()) of a sequence; they must lie inside it. int64 tokens beyond 32 bits
  // are cut: Scan() finds those. Safe to call from many threads.
  absl::Status Read(std::int64_t sequence, std::int64_t offset, std::span<std::int32_t> out) const;
  // Tokens that will be read soon: where that means asking a server, it is asked now. Returns at once.
  void Prefetch(std::int64_t sequence, std::int64_t offset, std::size_t tokens, storage::When when) const;

  absl::StatusOr<TokenScan> Scan() const;
  // Sequence that holds token `position` of .bin.
  std::int64_t SequenceOfToken(std::int64_t position) const;
  // Hashes all bytes of the .idx, and some blocks of the .bin.
  Fingerprints Fingerprint() const;

  // Adds to counts[t] the number of tokens t in sequences [begin, end); tokens outside counts are an
  // invariant broken by the caller, who has scanned.
  absl::Status CountTokens(std::int64_t begin, std::int64_t end, std::span<std::int64_t> counts) const;

 private:
  IndexedDataset(std::string prefix, MappedFile idx, TokenBytes bin)
      : prefix_(std::move(prefix)), idx_(std::move(idx)), bin_(std::move(bin)) {}
  absl::Status ParseHeader();
  absl::Status ParseSequences();
  absl::Status CheckDocuments() const;
  std::int64_t pointer(std::int64_t sequence) const;  // byte offset in .bin

  std::string prefix_;
  MappedFile idx_;
  TokenBytes bin_;
  TokenType type_ = TokenType::kU16;
  std::int64_t documents_ = 0;
  std::int64_t tokens_ = 0;
  std::vector<std::int32_t> lengths_;
};

// Documents as a data set of one type has them: what may be made on many threads, and is appended in order.
struct EncodedDocuments {
  std::vector<unsigned char> tokens;    // as .bin has them
  std::vector<std::int32_t> lengths;    // of sequences
  std::vector<std::int32_t> sequences;  // of documents: how many each has
};
// One sequence more; whoever adds them all pushes their number on `sequences`. A token that the type cannot hold is an error.
absl::Status AppendSequence(TokenType type, std::span<const std::int32_t> tokens,
                            EncodedDocuments* documents);
// One document of any number of sequences.
absl::Status EncodeDocument(TokenType type, std::span<const std::vector<std::int32_t>> sequences,
                            EncodedDocuments* documents);

class DatasetSpool;

// Writes a data set under temporary names beside PREFIX; nothing has the final names before Finish, and
// whatever is unfinished is removed by the destructor. Memory does not grow with the data set.
class IndexedDatasetWriter {
 public:
  static absl::StatusOr<std::unique_ptr<IndexedDatasetWriter>> Create(const std::string& prefix,
                                                                      TokenType type);
  ~IndexedDatasetWriter();

  absl::Status AddDocument(std::span<const std::vector<std::int32_t>> sequences);  // as EncodeDocument
  // Encoded with this type.
  absl::Status Add(const EncodedDocuments& documents);
  absl::Status Finish();

  std::int64_t sequences() const;
  std::int64_t documents() const;
  std::int64_t tokens() const;

 private:
  IndexedDatasetWriter(std::string prefix, TokenType type);

  std::string prefix_;
  TokenType type_;
  std::vector<std::unique_ptr<TemporaryFile>> temporary_files_;
  std::unique_ptr<DatasetSpool> spool_;
  bool finished_ = false;
};

}  // namespace engine::data
