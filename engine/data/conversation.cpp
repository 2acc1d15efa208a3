#include "engine/data/conversation.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "engine/base/shown.h"
#include "engine/base/status.h"

namespace engine::data {
namespace {

using jinja::Dict;
using jinja::List;
using jinja::Value;

struct KeyRow {
  std::string_view name;
  std::string ConversationKeys::*key;
  std::vector<std::string_view> usual;
  bool is_in_turn = false;  // and not in the record
};

// These members of a record are variables of the template, beside its messages.
constexpr std::string_view kDocuments = "documents";
constexpr std::string_view kTemplateVariables = "chat_template_kwargs";

const std::vector<KeyRow>& KeyRows() {
  static const std::vector<KeyRow> rows = {
      {"messages", &ConversationKeys::messages, {"messages", "conversations"}},
      {"role", &ConversationKeys::role, {"role", "from"}, true},
      {"content", &ConversationKeys::content, {"content", "value"}, true},
      {"instruction", &ConversationKeys::instruction, {"instruction", "prompt", "query", "question"}},
      {"input", &ConversationKeys::input, {"input", "context"}},
      {"output", &ConversationKeys::output, {"output", "response", "completion", "answer"}},
      {"system", &ConversationKeys::system, {"system"}},
      {"tools", &ConversationKeys::tools, {"tools"}},
  };
  return rows;
}

// A member of an object and what it is called; null: there is none.
struct Member {
  std::string_view name;
  const Value* value = nullptr;
};

Member Find(const Dict& record, std::string ConversationKeys::*which, const ConversationKeys& keys) {
  const std::string& named = keys.*which;
  if (!named.empty()) return {named, record.Find(named)};
  for (const KeyRow& row : KeyRows()) {
    if (row.key != which) continue;
    for (const std::string_view name : row.usual)
      if (const Value* found = record.Find(name)) return {name, found};
  }
  return {};
}

std::vector<std::string> NamesOf(const KeyRow& row, const ConversationKeys& keys) {
  if (const std::string& named = keys.*row.key; !named.empty()) return {named};
  return {row.usual.begin(), row.usual.end()};
}

std::string Names(std::string ConversationKeys::*which, const ConversationKeys& keys) {
  for (const KeyRow& row : KeyRows())
    if (row.key == which) return fmt::format("\"{}\"", fmt::join(NamesOf(row, keys), "\" or \""));
  return "";
}

absl::StatusOr<std::string> TextOf(const Member& member) {
  if (const std::string* text = member.value->text()) return *text;
  return InvalidArgument("\"{}\" is a {}, and must be a string", member.name, jinja::TypeName(*member.value));
}

Value Turn(std::string_view role, std::string content) {
  Dict turn;
  turn.Set("role", Value(std::string(role)));
  turn.Set("content", Value(std::move(content)));
  return Value(std::move(turn));
}

// ShareGPT's names of who speaks.
absl::StatusOr<std::string> RoleOfSpeaker(const std::string& speaker) {
  constexpr std::pair<std::string_view, std::string_view> kRoles[] = {
      {"human", "user"},      {"user", "user"},         {"gpt", "assistant"},  {"assistant", "assistant"},
      {"model", "assistant"}, {"chatgpt", "assistant"}, {"bing", "assistant"}, {"bard", "assistant"},
      {"system", "system"},   {"tool", "tool"},         {"function", "tool"},  {"observation", "tool"},
  };
  for (const auto& [name, role] : kRoles)
    if (name == speaker) return std::string(role);
  return InvalidArgument(
      "\"from\" is \"{}\", and must be human or user; gpt, assistant, model, chatgpt, bing or bard; system; "
      "tool, function or "
      "observation",
      Shown(speaker));
}

absl::Status CheckContent(const Value& content) {
  if (content.text() != nullptr || content.is_none() || content.list() != nullptr) return absl::OkStatus();
  return InvalidArgument("the content is a {}, and must be a string, a list of parts, or null",
                         jinja::TypeName(content));
}

absl::StatusOr<Value> ReadTurn(const Value& item, const ConversationKeys& keys) {
  const Dict* dict = item.dict();
  if (dict == nullptr) return InvalidArgument("is a {}, and must be an object", jinja::TypeName(item));
  const Member role = Find(*dict, &ConversationKeys::role, keys);
  if (role.value == nullptr) return InvalidArgument("has no key {}", Names(&ConversationKeys::role, keys));
  ASSIGN_OR_RETURN(std::string speaker, TextOf(role));
  if (role.name == "from") {
    ASSIGN_OR_RETURN(speaker, RoleOfSpeaker(speaker));
  }
  const Member content = Find(*dict, &ConversationKeys::content, keys);
  if (content.value != nullptr) {
    RETURN_IF_ERROR(CheckContent(*content.value));
  } else if (dict->Find("tool_calls") == nullptr) {
    return InvalidArgument("has no key {}", Names(&ConversationKeys::content, keys));
  }
  Dict turn;
  for (const auto& [name, value] : dict->entries) {
    if (name == role.name) {
      turn.Set("role", Value(speaker));
    } else {
      turn.Set(content.value != nullptr && name == content.name ? "content" : name, value);
    }
  }
  return Value(std::move(turn));
}

absl::Status ReadTurns(const Member& member, const ConversationKeys& keys, Conversation* conversation) {
  const List* list = member.value->list();
  if (list == nullptr)
    return InvalidArgument("\"{}\" is a {}, and must be a list", member.name, jinja::TypeName(*member.value));
  if (list->items.empty()) return InvalidArgument("\"{}\" is empty", member.name);
  for (std::size_t i = 0; i < list->items.size(); ++i) {
    absl::StatusOr<Value> turn = ReadTurn(list->items[i], keys);
    if (!turn.ok()) return InvalidArgument("{}[{}] {}", member.name, i, Message(turn.status()));
    conversation->messages.push_back(*std::move(turn));
  }
  return absl::OkStatus();
}

absl::Status ReadInstruction(const Dict& record, const ConversationKeys& keys, Conversation* conversation) {
  const Member instruction = Find(record, &ConversationKeys::instruction, keys);
  const Member output = Find(record, &ConversationKeys::output, keys);
  if (instruction.value == nullptr || output.value == nullptr) {
    return InvalidArgument("has neither turns ({}) nor an instruction ({}) with an output ({})",
                           Names(&ConversationKeys::messages, keys),
                           Names(&ConversationKeys::instruction, keys),
                           Names(&ConversationKeys::output, keys));
  }
  ASSIGN_OR_RETURN(std::string question, TextOf(instruction));
  if (const Member input = Find(record, &ConversationKeys::input, keys);
      input.value != nullptr && !input.value->is_none()) {
    ASSIGN_OR_RETURN(const std::string text, TextOf(input));
    if (!text.empty()) question += "\n\n" + text;
  }
  ASSIGN_OR_RETURN(std::string answer, TextOf(output));
  conversation->messages.push_back(Turn("user", std::move(question)));
  conversation->messages.push_back(Turn("assistant", std::move(answer)));
  return absl::OkStatus();
}

bool BeginsWithSystem(const Conversation& conversation) {
  const Value* role = conversation.messages.front().dict()->Find("role");
  return role != nullptr && role->text() != nullptr && *role->text() == "system";
}

absl::Status ReadVariables(const Dict& record, const ConversationKeys& keys, Conversation* conversation) {
  if (const Member tools = Find(record, &ConversationKeys::tools, keys);
      tools.value != nullptr && !tools.value->is_none()) {
    if (tools.value->list() == nullptr)
      return InvalidArgument("\"{}\" is a {}, and must be a list", tools.name, jinja::TypeName(*tools.value));
    conversation->variables.emplace_back("tools", *tools.value);
  }
  if (const Value* documents = record.Find(kDocuments); documents != nullptr && documents->list() != nullptr)
    conversation->variables.emplace_back(kDocuments, *documents);
  const Value* more = record.Find(kTemplateVariables);
  if (more == nullptr || more->is_none()) return absl::OkStatus();
  if (more->dict() == nullptr)
    return InvalidArgument("\"{}\" is a {}, and must be an object", kTemplateVariables,
                           jinja::TypeName(*more));
  for (const auto& [name, value] : more->dict()->entries) conversation->variables.emplace_back(name, value);
  return absl::OkStatus();
}

}  // namespace

std::string KeyNames() {
  std::vector<std::string> rows;
  for (const KeyRow& row : KeyRows())
    rows.push_back(fmt::format("{} ({})", row.name, fmt::join(row.usual, ", ")));
  return fmt::format("{}", fmt::join(rows, "; "));
}

bool SetKey(std::string_view name, const std::string& key, ConversationKeys* keys) {
  for (const KeyRow& row : KeyRows()) {
    if (row.name != name) continue;
    keys->*row.key = key;
    return true;
  }
  return false;
}

std::vector<std::string> SetKeys(const ConversationKeys& keys) {
  std::vector<std::string> set;
  for (const KeyRow& row : KeyRows())
    if (!(keys.*row.key).empty()) set.push_back(fmt::format("{}={}", row.name, keys.*row.key));
  return set;
}

std::vector<std::string> RecordMembers(const ConversationKeys& keys) {
  std::vector<std::string> members;
  for (const KeyRow& row : KeyRows()) {
    if (row.is_in_turn) continue;
    const std::vector<std::string> names = NamesOf(row, keys);
    members.insert(members.end(), names.begin(), names.end());
  }
  members.insert(members.end(), {std::string(kDocuments), std::string(kTemplateVariables)});
  return members;
}

std::vector<std::string> ContentPaths(const ConversationKeys& keys) {
  std::vector<std::string> turns, contents, paths;
  for (const KeyRow& row : KeyRows()) {
    if (row.key == &ConversationKeys::messages) turns = NamesOf(row, keys);
    if (row.key == &ConversationKeys::content) contents = NamesOf(row, keys);
  }
  for (const std::string& turn : turns)
    for (const std::string& content : contents) paths.push_back(fmt::format("{}.{}", turn, content));
  return paths;
}

absl::StatusOr<Conversation> ReadConversation(const Value& record, const ConversationKeys& keys) {
  const Dict* dict = record.dict();
  if (dict == nullptr) return InvalidArgument("is a {}, and must be an object", jinja::TypeName(record));
  Conversation conversation;
  const Member turns = Find(*dict, &ConversationKeys::messages, keys);
  if (turns.value != nullptr) {
    RETURN_IF_ERROR(ReadTurns(turns, keys, &conversation));
  } else {
    RETURN_IF_ERROR(ReadInstruction(*dict, keys, &conversation));
  }
  if (const Member system = Find(*dict, &ConversationKeys::system, keys);
      system.value != nullptr && !system.value->is_none()) {
    ASSIGN_OR_RETURN(std::string text, TextOf(system));
    if (!text.empty() && !BeginsWithSystem(conversation))
      conversation.messages.insert(conversation.messages.begin(), Turn("system", std::move(text)));
  }
  RETURN_IF_ERROR(ReadVariables(*dict, keys, &conversation));
  return conversation;
}

}  // namespace engine::data
