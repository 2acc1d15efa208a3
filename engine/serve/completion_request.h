// The body of POST /v1/completions: what may stand in it, after OpenAI's interface and its wider forms in vLLM.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/generate/sampling.h"

namespace engine::serve {

using PromptBody = std::variant<std::string, std::vector<std::int32_t>>;

struct CompletionRequest {
  std::vector<PromptBody> prompts;  // at least one
  std::int64_t max_tokens = 16;
  generate::SamplingOptions sampling;    // its seed is `seed`, where there is one
  std::optional<std::uint64_t> seed;     // the same answer each time
  std::vector<std::string> stops;        // none is empty
  std::int64_t n = 1;                    // answers to each prompt
  std::optional<std::int64_t> logprobs;  // and those of so many likeliest tokens
  bool echo = false;                     // the answer begins with the prompt
  bool stream = false;
  bool includes_usage = false;             // in a stream
  bool returns_ids = false;                // token_ids in each choice
  std::optional<bool> add_special_tokens;  // nullopt: as the model is used
};

// A body as an object. InvalidArgument: "the body:1:9: error: …" where it is no JSON, or no object.
absl::StatusOr<nlohmann::json> ParseBody(std::string_view body);

// InvalidArgument names the key, what is wrong with its value, and what would be right; a key that is not known is one too, as it
// would change the answer where it is meant.
absl::StatusOr<CompletionRequest> ParseCompletion(std::string_view body);

// A list of token ids. InvalidArgument: it is none.
absl::StatusOr<std::vector<std::int32_t>> ParseIds(const nlohmann::json& json, std::string_view key);

}  // namespace engine::serve
