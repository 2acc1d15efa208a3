// Values and JSON.
#pragma once

#include <absl/status/statusor.h>

#include <simdjson.h>

#include <string>
#include <string_view>

#include "engine/data/jinja/value.h"

namespace engine::jinja {

struct JsonForm {  // the arguments of Python's json.dumps
  bool ascii_only = false;
  bool sorts_keys = false;
  bool has_indent = false;
  std::string indent;  // of one level
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};

// Appends what json.dumps gives; false: *why says what cannot be JSON, or that it has more than `most_bytes`.
bool AppendJson(const Value& value, const JsonForm& form, std::size_t most_bytes, std::string* out,
                std::string* why);

// JSON as values, with the keys of objects in their order; of keys that stand twice the last value counts, as in Python. InvalidArgument:
// an integer beyond 64 bits.
absl::StatusOr<Value> FromJson(const simdjson::dom::element& json);

}  // namespace engine::jinja
