// What `engine generate` is to go on with, from its options and files.
#pragma once

#include <absl/status/statusor.h>

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/data/conversation.h"
#include "engine/data/tokenizer.h"
#include "engine/generate/generate.h"
#include "engine/generate/trained_model.h"

namespace engine::cli {

struct PromptArguments {
  // One of these, or none.
  std::vector<std::string> prompts;
  std::optional<std::string> tokens_in, prompts_file, chat_file, message;
  std::string chat_template;          // a file or a name
  bool special = false;               // special tokens in prompts are tokens
  std::optional<bool> adds_template;  // nullopt: as the model is used (ModelSource)
};

void AddPromptOptions(CLI::App* command, PromptArguments* arguments);

// A prompt as it was written.
struct WrittenIds {
  std::string name;  // of the place, for errors
  std::string text;  // data/token_ids.h
};
struct WrittenPrompt {
  std::variant<std::string, WrittenIds, data::Conversation> content;
  std::string name;  // "prompts.jsonl:3"; empty of options
};

// Errors are located where they are in a file.
absl::StatusOr<std::vector<WrittenPrompt>> ReadPrompts(const PromptArguments& arguments);

// The prompts as ids. `tokenizer` may be null where they all are ids and `shows_ids`: where ids come out, the shown
// text is ids too.
absl::StatusOr<std::vector<generate::Prompt>> MakePrompts(const std::vector<WrittenPrompt>& written,
                                                          const PromptArguments& arguments,
                                                          const generate::ModelSource& source,
                                                          const data::Tokenizer* tokenizer, bool shows_ids);

}  // namespace engine::cli
