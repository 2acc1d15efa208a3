// Conversations: what fine-tuning data holds.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/data/jinja/value.h"

namespace engine::data {

// What a key of a record is called. Where a name is empty, the usual names are looked for, in their order (KeyNames).
struct ConversationKeys {
  std::string messages;     // a list of turns
  std::string role;         // in a turn
  std::string content;      // in a turn
  std::string instruction;  // of records that are one question and one answer
  std::string input;        // that may stand beside an instruction
  std::string output;
  std::string system;  // a text for the model, before all turns
  std::string tools;   // a list of what the model may call
};

// Names for an option's help and errors: "messages: messages or conversations", …
std::string KeyNames();
// Sets the key of `name` ("role") to `key`; false: there is no such name.
bool SetKey(std::string_view name, const std::string& key, ConversationKeys* keys);

// One "NAME=KEY" ("role=who") for each name of which the caller has set the key.
std::vector<std::string> SetKeys(const ConversationKeys& keys);
// The members of a record that ReadConversation looks at.
std::vector<std::string> RecordMembers(const ConversationKeys& keys);

// Where the content of a turn may be, by the names of the turns and of the content: "messages.content".
std::vector<std::string> ContentPaths(const ConversationKeys& keys);

struct Conversation {
  // Dicts with `role`, which is one of "system", "user", "assistant", "tool" and whatever else the record says, mostly with `content`, and
  // with all other members of the turn as they are (tool_calls, …).
  std::vector<jinja::Value> messages;
  // Other variables of the template: tools, documents, and the members of chat_template_kwargs.
  std::vector<std::pair<std::string, jinja::Value>> variables;
};

// The conversation of a record, by what it has, first match wins:
//   a list of turns: `messages` with `role` and `content`, as the APIs of language models have it, or `conversations` with `from` and
//   `value` (ShareGPT), whose roles human, gpt and so on become user, assistant, system and tool;
//   an instruction with an output, and perhaps an input, which stands behind the instruction after a blank line (Alpaca).
// InvalidArgument says what of the record will not do.
absl::StatusOr<Conversation> ReadConversation(const jinja::Value& record, const ConversationKeys& keys);

}  // namespace engine::data
