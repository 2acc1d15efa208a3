// Tokenizers of files: which reader a file needs, and the readers of the smaller formats.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "engine/data/tokenizer/description.h"

namespace engine::tokenizer {

// The tokenizer of a file, or of a Hugging Face folder, in which the first of these counts that is there: tokenizer.json,
// tokenizer.model (or spiece.model), vocab.json with merges.txt, vocab.txt, and the only *.tiktoken. What a file is, its
// contents say: a tokenizer.json, GPT-2's vocab.json (encoder.json) with its merges.txt (vocab.bpe) beside, a SentencePiece
// model, or tiktoken's ranks; BERT's vocabulary is known by its name, which ends in vocab.txt. tokenizer_config.json or
// special_tokens_map.json beside names the token that ends a document where no special token has one of the usual names of it. NotFound, InvalidArgument, Unimplemented,
// DataLoss.
absl::StatusOr<Description> ReadTokenizer(const std::string& path);

// The files that ReadTokenizer reads for the path, as far as they are there.
std::vector<std::string> TokenizerFiles(const std::string& path);

// GPT-2's two files (Radford et al. 2019): an object from token to id, and a merge a line.
absl::StatusOr<Description> ReadGpt2Files(const std::string& vocab_file, const std::string& merges_file);

// BERT's vocabulary: a line a token, whose number is its id (WordPiece). Which special tokens there are and how text is
// normalized, tokenizer_config.json, special_tokens_map.json and added_tokens.json beside say as far as they are there, as
// transformers' BertTokenizerFast reads them; without them letters become lower case, as there.
absl::StatusOr<Description> ReadBertVocabulary(const std::string& path);

// A SentencePiece model (sentencepiece_model.proto, proto2).
absl::StatusOr<Description> ReadSentencePiece(const std::string& path);

// tiktoken's ranks: a line a token, its bytes in base64 and its rank, which is its id. The pattern and the special tokens
// are in no file; they are known of the published vocabularies, which the number of ranks tells.
absl::StatusOr<Description> ReadTiktoken(const std::string& path);

}  // namespace engine::tokenizer
