// tokenizer_config.json and the other JSON files that transformers keeps beside a tokenizer.
#pragma once

#include <absl/status/statusor.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "engine/data/tokenizer/description.h"

namespace engine::tokenizer {

// An object, whose keys are asked for one by one: these files hold much that concerns no tokens. Errors of its members
// are InvalidArgument and name their place: "PATH: error: eos_token must be a string, and is a number".
class ConfigFile {
 public:
  // Where there is no such file, an object without members. InvalidArgument, OutOfRange: no JSON, or no object.
  static absl::StatusOr<ConfigFile> Open(const std::string& path);

  const nlohmann::json& root() const { return root_; }
  // The member, or null (a key with null counts as one that is not there).
  const nlohmann::json* Find(const std::string& key) const;
  absl::StatusOr<std::optional<bool>> Bool(const std::string& key) const;
  absl::StatusOr<std::string> String(const std::string& key) const;  // "" where there is none
  // A token: its string, or an object with its `content` and the flags of an added token; one that is not there has
  // no content. `place` is what an error calls `value`; `special`: it is one, whatever its object says.
  absl::StatusOr<AddedToken> Token(const std::string& key, bool special) const;
  absl::StatusOr<AddedToken> TokenOf(const nlohmann::json& value, const std::string& place,
                                     bool special) const;

  // "PATH: error: WHAT".
  absl::Status Fail(const std::string& what) const;

 private:
  ConfigFile(std::string path, nlohmann::json root) : path_(std::move(path)), root_(std::move(root)) {}
  absl::Status WrongType(const std::string& place, std::string_view type, const nlohmann::json& value) const;
  std::string path_;
  nlohmann::json root_;
};

}  // namespace engine::tokenizer
