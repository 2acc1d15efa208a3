// tokenizer.json, the format of Hugging Face's tokenizers library, version 1.0.
#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "engine/data/tokenizer/description.h"

namespace engine::tokenizer {

// What the file describes. Truncation and padding are passed over. A part, an option or a key that is unknown, or
// known and not supported, is an error that names it and its place: "PATH: error: normalizer.normalizers[1].type: …".
// `cache`: a folder for a copy of a BPE that is read faster (compiled_model.h); empty: none.
absl::StatusOr<Description> ReadTokenizerJson(const std::string& path, const std::string& cache = "");

}  // namespace engine::tokenizer
