// Text files to a tokenised data set, as Megatron's tools/preprocess_data.py makes it.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/data/indexed_dataset.h"
#include "engine/data/text_inputs.h"
#include "engine/data/tokenizer.h"

namespace engine::data {

enum class InputFormat { kJsonLines, kText };

struct PreprocessOptions {
  std::vector<std::string> inputs;  // files and directories (text_inputs.h)
  std::string output_prefix;
  InputFormat format = InputFormat::kJsonLines;
  std::vector<std::string> json_keys = {"text"};  // each makes a data set of its own (text_inputs.h)
  std::string document_separator;  // text: a line between documents; empty: a file is a document
  bool append_eod = false;         // an end-of-document token after each document that has tokens
  bool drop_duplicates = false;    // documents that stood before, text by text: the first one stays
  recipe::Tokenizer tokenizer;     // for the manifest
  int workers = 1;                 // threads that tokenise; the data set is the same with any number of them
  std::size_t part_bytes = std::size_t{1} << 20;  // of text, that a worker takes at a time
};

struct MadeDataset {
  std::string prefix;  // <output_prefix>_<json_key>_document, for [data] paths
  std::int64_t documents = 0;
  std::int64_t sequences = 0;
  std::int64_t tokens = 0;
};

struct ReadInput {
  std::string path;
  std::int64_t bytes = 0;   // as they are on disk
  std::string fingerprint;  // of all of them (fingerprint.h)
  std::int64_t documents = 0;
  std::int64_t duplicates =
      0;  // of documents before, in this file or in others; documents without text are none
};

struct PreprocessResult {
  TokenType type = TokenType::kU16;
  std::vector<ReadInput> inputs;
  PassedOver passed_over;
  std::vector<MadeDataset> datasets;  // of each key
};

// <output_prefix>.json: what was read and made, with checksums and counts of each input.
std::string ManifestPath(const std::string& output_prefix);

// Files may be compressed (text_parts.h). Texts that make no tokens become no sequence; a document of none stays, as one of zero
// sequences, and gets no end token. Writes nothing unless everything succeeds; inputs without any document are an error. Memory
// grows with the number of sequences, 12 bytes each, and of documents, some 30 bytes each, and with no text but the longest one.
absl::StatusOr<PreprocessResult> Preprocess(const PreprocessOptions& options, const Tokenizer& tokenizer);

}  // namespace engine::data
