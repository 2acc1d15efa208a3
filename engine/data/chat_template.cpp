#include "engine/data/chat_template.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/base/file.h"
#include "engine/base/hash.h"
#include "engine/base/json.h"
#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/data/tokenizer/config_file.h"

namespace engine::data {
namespace {

namespace fs = std::filesystem;
using jinja::Value;

constexpr std::int64_t kMostTemplateBytes = std::int64_t{1} << 20;

bool IsFile(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

// A template's text and where it is from.
struct Found {
  std::string text;
  std::string source;
};

absl::StatusOr<Found> ReadFile(const std::string& path) {
  ASSIGN_OR_RETURN(std::string text, ReadRegular(path, kMostTemplateBytes));
  return Found{std::move(text), ShownPath(path)};
}

// tokenizer_config.json as far as templates go.
struct Config {
  std::vector<std::pair<std::string, std::string>> templates;  // by name
  jinja::Dict tokens;
};

// The text of a member that is a string, or an object with the string `content`; nullopt: it is null, or not there.
absl::StatusOr<std::optional<std::string>> TextOf(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || found->is_null()) return std::nullopt;
  const nlohmann::json& value =
      found->is_object() && found->contains("content") ? (*found)["content"] : *found;
  if (value.is_string()) return value.get<std::string>();
  return InvalidArgument("{} is {}, and must be a string", name, TypeOf(value));
}

absl::StatusOr<Config> ParseConfig(const nlohmann::json& root) {
  Config config;
  if (!root.is_object()) return InvalidArgument("is {}, and must be an object", TypeOf(root));
  if (const auto chat = root.find("chat_template"); chat != root.end() && chat->is_array()) {
    for (const nlohmann::json& one : *chat) {
      if (!one.is_object())
        return InvalidArgument("chat_template holds {}, and must hold objects", TypeOf(one));
      ASSIGN_OR_RETURN(const std::optional<std::string> name, TextOf(one, "name"));
      ASSIGN_OR_RETURN(const std::optional<std::string> text, TextOf(one, "template"));
      if (!name.has_value() || !text.has_value())
        return InvalidArgument("chat_template holds an object without name and template");
      config.templates.emplace_back(*name, *text);
    }
  } else {
    ASSIGN_OR_RETURN(const std::optional<std::string> text, TextOf(root, "chat_template"));
    if (text.has_value()) config.templates.emplace_back("default", *text);
  }
  for (const char* name :
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    ASSIGN_OR_RETURN(const std::optional<std::string> token, TextOf(root, name));
    if (token.has_value()) config.tokens.Set(name, Value(*token));
  }
  return config;
}

absl::StatusOr<Config> ReadConfig(const std::string& path) {
  ASSIGN_OR_RETURN(const tokenizer::ConfigFile file, tokenizer::ConfigFile::Open(path));
  absl::StatusOr<Config> config = ParseConfig(file.root());
  return config.ok() ? config : file.Fail(Message(config.status()));
}

// The template of that name among the tokenizer's.
absl::StatusOr<Found> FindTemplate(const std::string& which, const fs::path& folder,
                                   const std::string& config_path, const Config& config) {
  const std::string name = which.empty() ? "default" : which;
  const fs::path file = name == "default" ? folder / "chat_template.jinja"
                                          : folder / "additional_chat_templates" / (name + ".jinja");
  if (IsFile(file)) return ReadFile(file.string());
  std::vector<std::string> names;
  for (const auto& [known, text] : config.templates) {
    if (known == name)
      return Found{text, fmt::format("{} (chat_template{})", ShownPath(config_path),
                                     name == "default" ? "" : " " + name)};
    names.push_back(known);
  }
  if (!which.empty() && names.empty())
    return NotFound("{}: is no file, and the tokenizer has no chat templates", ShownPath(which));
  if (names.empty())
    return NotFound(
        "{}: the tokenizer has no chat template, neither chat_template.jinja nor one in "
        "tokenizer_config.json; --chat-template names a file",
        ShownPath(folder.string()));
  return NotFound("the tokenizer has no chat template \"{}\"{}; there are {}", Shown(name),
                  which.empty() ? "" : ", and there is no such file", fmt::join(names, ", "));
}

std::string IdentityOf(std::string_view text, const jinja::Dict& tokens) {
  std::string all = HashHex(text);
  for (const auto& [name, token] : tokens.entries)
    all += fmt::format("\n{} {}", name, HashHex(*token.text()));
  return HashHex(all);
}

bool IsAssistant(const Value& message) {
  const Value* role = message.dict()->Find("role");
  return role != nullptr && role->text() != nullptr && *role->text() == "assistant";
}

}  // namespace

absl::StatusOr<ChatTemplate> ChatTemplate::Open(const std::string& which, const std::string& tokenizer_path,
                                                const std::tm& now) {
  std::error_code error;
  const fs::path folder = fs::is_directory(tokenizer_path, error) ? fs::path(tokenizer_path)
                                                                  : fs::path(tokenizer_path).parent_path();
  const std::string config_path = (folder / "tokenizer_config.json").string();
  Config config;
  if (!tokenizer_path.empty() && IsFile(config_path)) {
    ASSIGN_OR_RETURN(config, ReadConfig(config_path));
  }
  Found found;
  if (!which.empty() && IsFile(which)) {
    ASSIGN_OR_RETURN(found, ReadFile(which));
  } else if (tokenizer_path.empty()) {
    return which.empty()
               ? InvalidArgument(
                     "a tokenizer without a folder has no chat template; --chat-template names a file")
               : NotFound("{}: is no file, and a tokenizer without a folder has no chat templates",
                          ShownPath(which));
  } else {
    ASSIGN_OR_RETURN(found, FindTemplate(which, folder, config_path, config));
  }
  ASSIGN_OR_RETURN(jinja::Template made, jinja::Template::Parse(found.text, found.source));
  ChatTemplate chat(std::move(made), found.source);
  chat.tokens_ = std::move(config.tokens);
  chat.identity_ = IdentityOf(found.text, chat.tokens_);
  chat.asks_time_ = found.text.find("strftime_now") != std::string::npos;
  chat.options_.now = now;
  chat.text_ = std::move(found.text);
  return chat;
}

std::string ChatTemplate::time() const {
  const std::tm& now = options_.now;
  return !asks_time_ ? ""
                     : fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02}", now.tm_year + 1900, now.tm_mon + 1,
                                   now.tm_mday, now.tm_hour, now.tm_min, now.tm_sec);
}

absl::StatusOr<jinja::Rendered> ChatTemplate::RenderSome(const Conversation& conversation, std::size_t count,
                                                         bool prompt) const {
  jinja::Dict variables = tokens_;
  for (const auto& [name, value] : conversation.variables) variables.Set(name, value);
  jinja::List messages;
  for (std::size_t i = 0; i < count; ++i) messages.Add(conversation.messages[i]);
  variables.Set("messages", Value(std::move(messages)));
  variables.Set("add_generation_prompt", Value(prompt));
  return template_.Render(variables, options_);
}

absl::StatusOr<ChatText> ChatTemplate::Render(const Conversation& conversation, LossOn loss_on) const {
  ASSIGN_OR_RETURN(jinja::Rendered whole, RenderSome(conversation, conversation.messages.size(), false));
  ChatText text{.text = std::move(whole.text), .learned = {}};
  if (loss_on == LossOn::kAll) {
    if (!text.text.empty()) text.learned.emplace_back(0, text.text.size());
  } else if (template_.marks_generation()) {
    text.learned = std::move(whole.generated);
  } else {
    RETURN_IF_ERROR(FindTurns(conversation, &text));
  }
  return text;
}

absl::StatusOr<std::string> ChatTemplate::RenderPrompt(const Conversation& conversation) const {
  ASSIGN_OR_RETURN(jinja::Rendered rendered, RenderSome(conversation, conversation.messages.size(), true));
  return std::move(rendered.text);
}

absl::Status ChatTemplate::FindTurns(const Conversation& conversation, ChatText* text) const {
  for (std::size_t i = 0; i < conversation.messages.size(); ++i) {
    if (!IsAssistant(conversation.messages[i])) continue;
    // A template may want a turn before this one; then this one begins where the text does.
    std::string before;
    if (i > 0) {
      ASSIGN_OR_RETURN(jinja::Rendered rendered, RenderSome(conversation, i, true));
      before = std::move(rendered.text);
    }
    std::string with;
    if (i + 1 == conversation.messages.size()) {
      with = text->text;
    } else {
      ASSIGN_OR_RETURN(jinja::Rendered rendered, RenderSome(conversation, i + 1, false));
      with = std::move(rendered.text);
    }
    if (!with.starts_with(before) || !text->text.starts_with(with)) {
      return InvalidArgument(
          "which text is the assistant's in turn {} cannot be told: {}; {} has to mark it by {{% generation "
          "%}} and {{% endgeneration %}}, or "
          "--loss-on all takes everything",
          i,
          with.starts_with(before) ? "the turns up to it have another text when more follow"
                                   : "the turns before it, and the beginning of an answer, are not how the "
                                     "text begins that goes on with it",
          source_);
    }
    if (before.size() == with.size()) continue;
    if (!text->learned.empty() && text->learned.back().second > before.size())
      return InvalidArgument(
          "the assistant's turn {} begins within another one of its turns: {} has to mark them by {{% "
          "generation %}} and {{% endgeneration %}}",
          i, source_);
    text->learned.emplace_back(before.size(), with.size());
  }
  return absl::OkStatus();
}

}  // namespace engine::data
