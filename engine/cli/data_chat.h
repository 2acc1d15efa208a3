// `engine data build --format chat`.
#pragma once

#include <absl/status/statusor.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "engine/data/preprocess.h"
#include "engine/data/tokenizer.h"

namespace engine::cli {

struct ChatArguments {
  std::string chat_template;          // a file or a name; empty: the tokenizer's
  std::string loss_on = "assistant";  // or "all"
  std::vector<std::string> keys;      // "NAME=KEY"
  std::string time;                   // of strftime_now; empty: now

  bool any() const {
    return !chat_template.empty() || loss_on != "assistant" || !keys.empty() || !time.empty();
  }
};

void AddChatOptions(CLI::App* command, ChatArguments* arguments);

// Builds, and returns what is printed of it. Of `options`, what is not for conversations is an error.
absl::StatusOr<std::string> BuildChat(const ChatArguments& arguments, const data::PreprocessOptions& options,
                                      const data::Tokenizer& tokenizer);

}  // namespace engine::cli
