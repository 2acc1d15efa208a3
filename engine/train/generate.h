// Text from a trained model, on one rank, whatever layout wrote the checkpoint.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "engine/base/status.h"
#include "engine/train/ranks.h"

namespace engine::train {

struct GenerateOptions {
  std::string prompt;
  std::int64_t tokens = 200;
  double temperature = 0.8;  // 0: always the likeliest token
  std::int64_t top_k = 40;   // 0: all tokens
  std::int64_t seed = 1234;
};

// Feeds the text of the prompt and of each new token to `emit`, until `tokens` new ones or the end of a
// document. The window of the model is its training sequence; older tokens fall out of it. `folder` is one
// checkpoint.
absl::Status Generate(const std::string& folder, const GenerateOptions& options, const Device& device,
                      const std::function<void(std::string_view)>& emit);

}  // namespace engine::train
