// A value inside a JSON file with the path that leads to it, for readers of a known form. The first mistake is kept
// and all later ones are dropped; after one, values are defaults, so that readers need not ask after each step.
#pragma once

#include <absl/status/statusor.h>
#include <fmt/format.h>
#include <simdjson.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/status.h"

namespace engine::tokenizer {

class JsonFile;

class JsonPlace {
 public:
  const std::string& path() const { return path_; }
  bool is_missing() const { return !value_.has_value(); }
  bool is_null() const { return is_missing() || value_->is_null(); }
  bool is_object() const { return !is_missing() && value_->is_object(); }
  bool is_array() const { return !is_missing() && value_->is_array(); }
  bool is_string() const { return !is_missing() && value_->is_string(); }

  // A member of an object; missing where there is none. Of a value that is no object: a mistake.
  JsonPlace operator[](std::string_view name) const;
  // Elements of a list; of anything else a mistake.
  std::vector<JsonPlace> Items() const;

  // Values. A missing one is a mistake, but where a default is given, and null is then the default too.
  std::string String() const;
  std::string String(std::string_view otherwise) const;
  bool Bool() const;
  bool Bool(bool otherwise) const;
  std::int64_t Integer(std::int64_t least, std::int64_t most) const;
  std::int64_t Integer(std::int64_t least, std::int64_t most, std::int64_t otherwise) const;

  // A mistake if the object has a member with another name, or one name twice.
  void Only(std::initializer_list<std::string_view> names) const;

  template <typename... Args>
  void Fail(fmt::format_string<Args...> format, Args&&... args) const {
    FailWith(fmt::format(format, std::forward<Args>(args)...));
  }
  bool failed() const;

  const simdjson::dom::element& value() const { return *value_; }

 private:
  friend class JsonFile;
  JsonPlace(JsonFile* file, std::string path, std::optional<simdjson::dom::element> value)
      : file_(file), path_(std::move(path)), value_(value) {}
  void FailWith(const std::string& what) const;
  void Unexpected(std::string_view expected) const;

  JsonFile* file_;
  std::string path_;
  std::optional<simdjson::dom::element> value_;
};

class JsonFile {
 public:
  // InvalidArgument with line and column where the text is not JSON.
  static absl::StatusOr<std::unique_ptr<JsonFile>> Open(const std::string& path);
  // Takes the text of a file, which is not needed afterwards.
  static absl::StatusOr<std::unique_ptr<JsonFile>> Parse(const std::string& path, std::string_view text);

  JsonPlace Root();
  absl::Status status() const { return status_; }

 private:
  friend class JsonPlace;
  std::string path_;
  simdjson::dom::parser parser_;
  simdjson::dom::element root_;
  absl::Status status_;
};

}  // namespace engine::tokenizer
