#include "engine/data/tokenizer/json_place.h"

#include <algorithm>

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/shown.h"

namespace engine::tokenizer {
namespace {

constexpr std::int64_t kMostJsonBytes = std::int64_t{1} << 30;

std::string_view KindOf(const simdjson::dom::element& value) {
  switch (value.type()) {
    case simdjson::dom::element_type::ARRAY:
      return "a list";
    case simdjson::dom::element_type::OBJECT:
      return "an object";
    case simdjson::dom::element_type::STRING:
      return "a string";
    case simdjson::dom::element_type::BOOL:
      return "a boolean";
    case simdjson::dom::element_type::NULL_VALUE:
      return "null";
    default:
      return "a number";
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<JsonFile>> JsonFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadRegular(path, kMostJsonBytes));
  return Parse(path, text);
}

absl::StatusOr<std::unique_ptr<JsonFile>> JsonFile::Parse(const std::string& path, std::string_view text) {
  auto file = std::make_unique<JsonFile>();
  file->path_ = ShownPath(path);
  if (file->parser_.allocate(text.size() + 1, kMostJsonDepth) != simdjson::SUCCESS) {
    return ResourceExhausted("{}: no memory for {} bytes of JSON", file->path_, text.size());
  }
  const simdjson::error_code error = file->parser_.parse(text.data(), text.size()).get(file->root_);
  if (error == simdjson::SUCCESS) return file;
  // The other parser knows where.
  RETURN_IF_ERROR(ParseJson(std::string(text), file->path_).status());
  return InvalidArgument("{}: error: {}", file->path_, simdjson::error_message(error));
}

JsonPlace JsonFile::Root() { return {this, "", root_}; }

JsonPlace JsonPlace::operator[](std::string_view name) const {
  std::string path;
  path.reserve(path_.size() + 1 + name.size());
  if (!path_.empty()) path.append(path_).append(".");
  path.append(name);
  JsonPlace member(file_, std::move(path), std::nullopt);
  if (is_missing()) return member;
  simdjson::dom::object object;
  if (value_->get(object) != simdjson::SUCCESS) {
    Unexpected("an object");
    return member;
  }
  simdjson::dom::element found;
  if (object.at_key(name).get(found) == simdjson::SUCCESS) member.value_ = found;
  return member;
}

std::vector<JsonPlace> JsonPlace::Items() const {
  std::vector<JsonPlace> items;
  simdjson::dom::array list;
  if (is_missing() || value_->get(list) != simdjson::SUCCESS) {
    Unexpected("a list");
    return items;
  }
  for (const simdjson::dom::element item : list) {
    items.push_back({file_, fmt::format("{}[{}]", path_, items.size()), item});
  }
  return items;
}

std::string JsonPlace::String() const {
  std::string_view text;
  if (is_missing() || value_->get(text) != simdjson::SUCCESS) Unexpected("a string");
  return std::string(text);
}

std::string JsonPlace::String(std::string_view otherwise) const {
  return is_null() ? std::string(otherwise) : String();
}

bool JsonPlace::Bool() const {
  bool truth = false;
  if (is_missing() || value_->get(truth) != simdjson::SUCCESS) Unexpected("true or false");
  return truth;
}

bool JsonPlace::Bool(bool otherwise) const { return is_null() ? otherwise : Bool(); }

std::int64_t JsonPlace::Integer(std::int64_t least, std::int64_t most) const {
  std::int64_t number = 0;
  if (is_missing() || value_->get(number) != simdjson::SUCCESS || number < least || number > most) {
    Unexpected(fmt::format("a whole number from {} to {}", least, most));
    return least;
  }
  return number;
}

std::int64_t JsonPlace::Integer(std::int64_t least, std::int64_t most, std::int64_t otherwise) const {
  return is_null() ? otherwise : Integer(least, most);
}

void JsonPlace::Only(std::initializer_list<std::string_view> names) const {
  simdjson::dom::object object;
  if (is_missing() || value_->get(object) != simdjson::SUCCESS) return Unexpected("an object");
  std::vector<std::string_view> seen;
  seen.reserve(names.size());
  for (const simdjson::dom::key_value_pair field : object) {
    if (std::find(names.begin(), names.end(), field.key) == names.end()) {
      return Fail("the key \"{}\" is unknown; there are {}", Shown(field.key), fmt::join(names, ", "));
    }
    if (std::find(seen.begin(), seen.end(), field.key) != seen.end()) {
      return Fail("the key \"{}\" stands twice", Shown(field.key));
    }
    seen.push_back(field.key);
  }
}

bool JsonPlace::failed() const { return !file_->status_.ok(); }

void JsonPlace::FailWith(const std::string& what) const {
  if (failed()) return;
  file_->status_ = InvalidArgument("{}: error: {}{}{}", file_->path_, path_, path_.empty() ? "" : ": ", what);
}

void JsonPlace::Unexpected(std::string_view expected) const {
  if (is_missing()) return Fail("is missing, and must be {}", expected);
  std::string shown = std::string(KindOf(*value_));
  if (!value_->is_array() && !value_->is_object()) shown = Shown(simdjson::minify(*value_), 40);
  Fail("must be {}, and is {}", expected, shown);
}

}  // namespace engine::tokenizer
