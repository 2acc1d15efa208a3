// GPT-2's byte-level byte-pair encoding (Radford et al. 2019) with its two files: vocab.json, one object from
// token string to id, and merges.txt, one pair of token strings a line, the earlier the stronger. Token
// strings show each byte as one printable character. "<|endoftext|>" ends a document; in text it is ordinary
// characters.
#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/status/statusor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/data/pretokenizer.h"
#include "engine/data/tokenizer.h"

namespace engine::data {

class Gpt2Bpe final : public Tokenizer {
 public:
  static absl::StatusOr<std::unique_ptr<Gpt2Bpe>> Load(const std::string& vocab_file,
                                                       const std::string& merges_file);

  absl::Status EncodeTo(std::string_view text, std::vector<std::int32_t>* ids) const override;
  std::string Decode(std::span<const std::int32_t> ids) const override;
  std::int64_t vocab_size() const override { return static_cast<std::int64_t>(bytes_of_id_.size()); }
  std::int32_t end_of_document() const override { return end_of_document_; }

 private:
  using Vocabulary = std::unordered_map<std::string, std::int32_t>;
  struct Merge {
    std::int32_t rank;
    std::int32_t id;  // of the joined token
  };
  struct Workspace;  // of one EncodeTo, so that pieces do not allocate

  explicit Gpt2Bpe(Pretokenizer pretokenizer) : pretokenizer_(std::move(pretokenizer)) {}
  absl::Status UseVocabulary(const std::string& path, const Vocabulary& vocabulary);
  absl::Status LoadMerges(const std::string& path, const Vocabulary& vocabulary);
  absl::Status AddMerge(std::string_view line, const Vocabulary& vocabulary);
  void EncodePiece(std::string_view piece, Workspace* work, std::vector<std::int32_t>* ids) const;
  const Merge* FindMerge(std::int32_t left, std::int32_t right) const;

  Pretokenizer pretokenizer_;
  std::array<std::int32_t, 256> id_of_byte_ = {};
  std::vector<std::string> bytes_of_id_;
  absl::flat_hash_map<std::uint64_t, Merge> merges_;  // by (left id, right id)
  std::int32_t end_of_document_ = 0;
};

}  // namespace engine::data
