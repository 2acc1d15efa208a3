#include "engine/data/tokenizer/config_file.h"

#include <filesystem>

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/shown.h"
#include "engine/base/status.h"

namespace engine::tokenizer {
namespace {

constexpr std::int64_t kMostConfigBytes = std::int64_t{64} << 20;

}  // namespace

absl::StatusOr<ConfigFile> ConfigFile::Open(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return ConfigFile(path, nlohmann::json::object());
  ASSIGN_OR_RETURN(const std::string text, ReadRegular(path, kMostConfigBytes));
  // These files hold 10^30 as an integer (model_max_length), which simdjson does not take.
  ASSIGN_OR_RETURN(nlohmann::json root, ParseStrictJson(text, ShownPath(path)));
  ConfigFile file(path, std::move(root));
  if (!file.root_.is_object())
    return file.Fail(fmt::format("must be an object, and is {}", TypeOf(file.root_)));
  return file;
}

const nlohmann::json* ConfigFile::Find(const std::string& key) const {
  const auto found = root_.find(key);
  return found == root_.end() || found->is_null() ? nullptr : &*found;
}

absl::StatusOr<std::optional<bool>> ConfigFile::Bool(const std::string& key) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) return WrongType(key, "true or false", *value);
  return value->get<bool>();
}

absl::StatusOr<std::string> ConfigFile::String(const std::string& key) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return "";
  if (!value->is_string()) return WrongType(key, "a string", *value);
  return value->get<std::string>();
}

absl::StatusOr<AddedToken> ConfigFile::Token(const std::string& key, bool special) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return AddedToken{};
  return TokenOf(*value, key, special);
}

absl::StatusOr<AddedToken> ConfigFile::TokenOf(const nlohmann::json& value, const std::string& place,
                                               bool special) const {
  const bool has_content = value.is_object() && value.contains("content");
  const nlohmann::json& content = has_content ? value["content"] : value;
  if (!content.is_string()) return WrongType(has_content ? place + ".content" : place, "a string", content);
  AddedToken token{.content = content.get<std::string>(), .special = special};
  const auto set = [&](const char* flag, bool* to) -> absl::Status {
    if (!has_content || !value.contains(flag)) return absl::OkStatus();
    if (!value[flag].is_boolean()) return WrongType(place + "." + flag, "true or false", value[flag]);
    *to = value[flag].get<bool>();
    return absl::OkStatus();
  };
  if (!special) RETURN_IF_ERROR(set("special", &token.special));
  token.normalized = !token.special;
  RETURN_IF_ERROR(set("single_word", &token.single_word));
  RETURN_IF_ERROR(set("lstrip", &token.lstrip));
  RETURN_IF_ERROR(set("rstrip", &token.rstrip));
  RETURN_IF_ERROR(set("normalized", &token.normalized));
  return token;
}

absl::Status ConfigFile::Fail(const std::string& what) const {
  return InvalidArgument("{}: error: {}", ShownPath(path_), what);
}

absl::Status ConfigFile::WrongType(const std::string& place, std::string_view type,
                                   const nlohmann::json& value) const {
  return Fail(fmt::format("{} must be {}, and is {}", Shown(place), type, TypeOf(value)));
}

}  // namespace engine::tokenizer
