#include "engine/data/jinja/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/status.h"
#include "engine/base/utf8.h"

namespace engine::jinja {
namespace {

// The value, which is of that type.
template <typename T>
T Of(const simdjson::dom::element& json) {
  T value{};
  const bool is_so = json.get(value) == simdjson::SUCCESS;
  ENGINE_CHECK(is_so, "a value of JSON has another type than its own");
  return value;
}

void AppendEscaped(char32_t c, bool ascii_only, std::string_view bytes, std::string* out) {
  constexpr std::string_view kSpecial = "\"\\\n\r\t\b\f";
  constexpr std::string_view kNames = "\"\\nrtbf";
  const auto unit = [out](std::uint32_t code) { *out += fmt::format("\\u{:04x}", code); };
  const std::size_t special = c < 0x80 ? kSpecial.find(static_cast<char>(c)) : std::string_view::npos;
  if (special != std::string_view::npos) {
    *out += '\\';
    *out += kNames[special];
  } else if (c < 0x20 || (ascii_only && c > 0x7F && c < 0x10000)) {
    unit(static_cast<std::uint32_t>(c));
  } else if (!ascii_only || c <= 0x7F) {
    *out += bytes;
  } else {
    const std::uint32_t rest = static_cast<std::uint32_t>(c) - 0x10000;
    unit(0xD800 + (rest >> 10));
    unit(0xDC00 + (rest & 0x3FF));
  }
}

void AppendJsonText(std::string_view text, bool ascii_only, std::string* out) {
  *out += '"';
  while (!text.empty()) {
    char32_t c = 0;
    const std::size_t length = std::max<std::size_t>(1, DecodeUtf8(text, &c));
    AppendEscaped(c, ascii_only, text.substr(0, length), out);
    text.remove_prefix(length);
  }
  *out += '"';
}

class Writer {
 public:
  Writer(const JsonForm& form, std::size_t most_bytes, std::string* out, std::string* why)
      : form_(form), most_bytes_(most_bytes), out_(*out), why_(*why) {}

  bool Append(const Value& value) {
    if (out_.size() > most_bytes_) return Fail(fmt::format("its JSON has more than {} bytes", most_bytes_));
    if (value.is_none()) {
      out_ += "null";
    } else if (const bool* truth = value.truth()) {
      out_ += *truth ? "true" : "false";
    } else if (value.is_integer()) {
      out_ += fmt::format("{}", value.integer());
    } else if (const double* real = value.real()) {
      out_ += std::isnan(*real)   ? "NaN"
              : std::isinf(*real) ? (*real < 0 ? "-Infinity" : "Infinity")
                                  : ReprOf(*real);
    } else if (const std::string* text = value.text()) {
      AppendJsonText(*text, form_.ascii_only, &out_);
    } else if (const List* list = value.list();
               list != nullptr && (list->kind == Sequence::kList || list->kind == Sequence::kTuple)) {
      return AppendList(*list);
    } else if (const Dict* dict = value.dict()) {
      return AppendDict(*dict);
    } else {
      return Fail(fmt::format("{} is not JSON", value.is_undefined() ? "an undefined value"
                                                                     : fmt::format("a {}", TypeName(value))));
    }
    return true;
  }

 private:
  bool Fail(std::string why) {
    why_ = std::move(why);
    return false;
  }
  void Break() {
    if (!form_.has_indent) return;
    out_ += '\n';
    for (int i = 0; i < level_; ++i) out_ += form_.indent;
  }
  bool AppendList(const List& list) {
    if (list.items.empty()) {
      out_ += "[]";
      return true;
    }
    out_ += '[';
    ++level_;
    for (std::size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out_ += form_.item_separator;
      Break();
      if (!Append(list.items[i])) return false;
    }
    --level_;
    Break();
    out_ += ']';
    return true;
  }
  bool AppendDict(const Dict& dict) {
    if (dict.entries.empty()) {
      out_ += "{}";
      return true;
    }
    std::vector<std::size_t> order(dict.entries.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    if (form_.sorts_keys) {
      std::sort(order.begin(), order.end(),
                [&](std::size_t a, std::size_t b) { return dict.entries[a].first < dict.entries[b].first; });
    }
    out_ += '{';
    ++level_;
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (i > 0) out_ += form_.item_separator;
      Break();
      AppendJsonText(dict.entries[order[i]].first, form_.ascii_only, &out_);
      out_ += form_.key_separator;
      if (!Append(dict.entries[order[i]].second)) return false;
    }
    --level_;
    Break();
    out_ += '}';
    return true;
  }

  const JsonForm& form_;
  std::size_t most_bytes_;
  std::string& out_;
  std::string& why_;
  int level_ = 0;
};

}  // namespace

bool AppendJson(const Value& value, const JsonForm& form, std::size_t most_bytes, std::string* out,
                std::string* why) {
  return Writer(form, most_bytes, out, why).Append(value);
}

absl::StatusOr<Value> FromJson(const simdjson::dom::element& json) {
  using Type = simdjson::dom::element_type;
  switch (json.type()) {
    case Type::NULL_VALUE:
      return Value(None{});
    case Type::BOOL:
      return Value(Of<bool>(json));
    case Type::INT64:
      return Value(Of<std::int64_t>(json));
    case Type::UINT64:
      return InvalidArgument("the number {} does not fit into 64 bits with a sign", Of<std::uint64_t>(json));
    case Type::DOUBLE:
      return Value(Of<double>(json));
    case Type::STRING:
      return Value(std::string(Of<std::string_view>(json)));
    case Type::ARRAY: {
      List list;
      const simdjson::dom::array items = Of<simdjson::dom::array>(json);
      for (const simdjson::dom::element item : items) {
        ASSIGN_OR_RETURN(Value value, FromJson(item));
        list.Add(std::move(value));
      }
      return Value(std::move(list));
    }
    case Type::OBJECT: {
      Dict dict;
      const simdjson::dom::object entries = Of<simdjson::dom::object>(json);
      for (const simdjson::dom::key_value_pair entry : entries) {
        ASSIGN_OR_RETURN(Value value, FromJson(entry.value));
        dict.Set(std::string(entry.key), std::move(value));
      }
      return Value(std::move(dict));
    }
  }
  return Internal("a kind of JSON that is not known");
}

}  // namespace engine::jinja
