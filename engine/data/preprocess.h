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
  int workers = 1;                 // threads that tokenise; the data set is the same with any number of them
  std::size_t part_bytes = std::size_t{1} << 20;  // of text, that a worker takes at a time
};

struct MadeDataset {
  std::string prefix;  // <output_prefix>_<json_key>_document, for [data] paths
  std::int64_t documents = 0;
  std::int64_t sequences = 0;
  std::int64_t tokens = 0;
};

struct PreprocessResult {
  TokenType type = TokenType::kU16;
  std::int64_t files = 0;
  PassedOver passed_over;
  std::int64_t input_bytes = 0;       // of files, as they are on disk
  std::vector<MadeDataset> datasets;  // of each key
};

// Files may be compressed (text_parts.h). Texts that make no tokens become no sequence; a document of none stays, as one of zero
// sequences, and gets no end token. Writes nothing unless everything succeeds; inputs without any document are an error. Memory
// grows with the number of sequences, 12 bytes each, and with no text but the longest document.
absl::StatusOr<PreprocessResult> Preprocess(const PreprocessOptions& options, const Tokenizer& tokenizer);

}  // namespace engine::data
