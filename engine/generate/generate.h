// Text from a trained model, on one rank, whatever layout wrote the checkpoint.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "engine/base/status.h"
#include "engine/state/ranks.h"

namespace engine::generate {

// Token ids as they were written (data/token_ids.h), and what errors call the place.
struct WrittenIds {
  std::string name;
  std::string text;
};

struct GenerateOptions {
  std::string prompt;
  std::optional<WrittenIds> prompt_ids;  // instead of the prompt
  bool ids_out = false;                  // ids separated by blanks, not text
  std::string vocab_file;                // of the gpt2 tokenizer, instead of the recipe's; both or none
  std::string merges_file;
  std::int64_t end_token = -1;  // ends the text; −1: the tokenizer's end of a document
  std::int64_t tokens = 200;
  double temperature = 0.8;  // 0: always the likeliest token
  std::int64_t top_k = 40;   // 0: all tokens
  std::int64_t seed = 1234;
  // Where not empty: a file for the logits that follow each token of the prompt, in NumPy's form, float32
  // [tokens, vocabulary]; nothing is generated or emitted then, and the prompt must fit in the window.
  std::string logits_file;
};

// Feeds the text of the prompt and of each new token to `emit`, until `tokens` new ones or the end of a
// document. The window of the model is its training sequence; older tokens fall out of it. `folder` is one
// checkpoint. No tokenizer is opened where ids come in and go out; then only `end_token` ends the text early.
absl::Status Generate(const std::string& folder, const GenerateOptions& options, const state::Device& device,
                      const std::function<void(std::string_view)>& emit);

}  // namespace engine::generate
