// `engine data build --format chat`.
#pragma once

#include <absl/status/statusor.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "engine/data/chat_build.h"

namespace engine::cli {

struct ChatArguments {
  std::string chat_template;          // a file or a name; empty: the tokenizer's
  std::string loss_on = "assistant";  // or "all"
  std::vector<std::string> keys;      // "NAME=KEY"
  std::string time;                   // of strftime_now; empty: today

  bool any() const {
    return !chat_template.empty() || loss_on != "assistant" || !keys.empty() || !time.empty();
  }
};

void AddChatOptions(CLI::App* command, ChatArguments* arguments);

// All that a build of conversations needs, but its tokenizer.
struct Chat {
  data::ChatBuildOptions options;
  data::ChatTemplate chat_template;
};
absl::StatusOr<Chat> PrepareChat(const ChatArguments& arguments, const data::BuildOptions& options);

}  // namespace engine::cli
