// Text files to a tokenised data set, as Megatron's tools/preprocess_data.py makes it.
#pragma once

#include <absl/status/statusor.h>

#include <optional>
#include <string>
#include <vector>

#include "engine/data/dataset_build.h"
#include "engine/data/tokenizer.h"

namespace engine::data {

struct PreprocessOptions : BuildOptions {
  InputFormat format = InputFormat::kJsonLines;
  std::vector<std::string> json_keys = {"text"};  // each makes a data set of its own (text_inputs.h)
  // Text: a line between documents, which may be blank; none: a file is a document.
  std::optional<std::string> document_separator = std::nullopt;
};

// Makes of each key the data set OUTPUT_PREFIX_KEY_document, and a manifest, as BuildDatasets does. Texts that make no tokens become no
// sequence; a document of none stays, as one of zero sequences, and gets no end token. Documents are duplicates where all their texts
// are equal.
absl::StatusOr<BuildResult> Preprocess(const PreprocessOptions& options, const Tokenizer& tokenizer);

}  // namespace engine::data
