// Filters of templates, "value | NAME", of Jinja 3.1; tojson and its arguments are those that Hugging Face's library puts in its place.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "engine/data/jinja/filters.h"
#include "engine/data/jinja/interpreter.h"
#include "engine/data/jinja/json.h"
#include "engine/data/jinja/names.h"
#include "engine/data/jinja/text.h"

namespace engine::jinja {
namespace {

Value WrongValue(Interpreter& in, Place place, std::string_view filter, const Value& value) {
  return in.Fail(place, fmt::format("the filter \"{}\" is not for a {}", filter, TypeName(value)));
}

Value TrimOf(Interpreter& in, Place place, const Value& self, const Arguments& a) {
  const std::string text = in.TextOf(place, self);
  const Value& chars = a.values[0];
  const bool is_absent = chars.is_none() || (chars.is_undefined() && chars.undefined().what == nullptr);
  if (!is_absent && chars.text() == nullptr) return in.Fail(place, "what is trimmed must be a string");
  if (a.values[0].text() != nullptr && !in.Spend(place, a.values[0].text()->size())) return {};
  return in.MadeText(place, std::string(Strip(text, a.values[0].text(), true, true)));
}

Value LengthOf(Interpreter& in, Place place, const Value& self, const Arguments&) {
  if (self.is_undefined()) return std::int64_t{0};
  if (const std::string* text = self.text())
    return in.Spend(place, text->size() / 64) ? Value(CodePoints(*text)) : Value();
  if (const Dict* dict = self.dict()) return static_cast<std::int64_t>(dict->entries.size());
  if (const Loop* loop = self.loop()) return static_cast<std::int64_t>(loop->items.size());
  const List* list = self.list();
  if (list == nullptr || list->kind == Sequence::kGenerator) return WrongValue(in, place, "length", self);
  return static_cast<std::int64_t>(list->items.size());
}

Value DefaultOf(Interpreter&, Place, const Value& self, const Arguments& a) {
  const bool takes = self.is_undefined() || (IsTrue(a.values[1]) && !IsTrue(self));
  if (!takes) return self;
  return a.values[0].is_undefined() ? Value("") : a.values[0];
}

Value StringOf(Interpreter& in, Place place, const Value& self, const Arguments&) {
  return self.text() != nullptr ? self : in.MadeText(place, in.TextOf(place, self));
}

template <std::string (*kChange)(std::string_view)>
Value ChangedOf(Interpreter& in, Place place, const Value& self, const Arguments&) {
  const std::string text = in.TextOf(place, self);
  return in.failed() ? Value() : ChangedCase(in, place, text, kChange);
}

// The filter's titles, which are not the method's: words begin behind white space, hyphens and opening brackets.
std::string FilterTitle(std::string_view text) {
  std::string result;
  bool begins = true;
  for (const char c : text) {
    const bool parts =
        std::string_view("-({[<").find(c) != std::string_view::npos || IsSpace(static_cast<unsigned char>(c));
    result += begins ? Upper({&c, 1}) : Lower({&c, 1});
    begins = parts;
  }
  return result;
}

Value ReplacedOf(Interpreter& in, Place place, const Value& self, const Arguments& a) {
  std::int64_t most = -1;
  if (!a.values[2].is_undefined() && !a.values[2].is_none()) {
    if (!a.values[2].is_integer()) return in.Fail(place, "the count of \"replace\" must be a whole number");
    most = a.values[2].integer();
  }
  const std::string text = in.TextOf(place, self);
  std::string result;
  Replace(text, in.TextOf(place, a.values[0]), in.TextOf(place, a.values[1]), most, in.most_bytes(), &result);
  return in.MadeText(place, std::move(result));
}

Value JoinedOf(Interpreter& in, Place place, const Value& self, const Arguments& a) {
  const std::string between = in.TextOf(place, a.values[0]);
  std::string text;
  bool is_first = true;
  for (const Value& item : in.ItemsOf(place, self)) {
    if (!is_first) text += between;
    is_first = false;
    text += in.TextOf(place, a.values[1].is_undefined() || a.values[1].is_none()
                                 ? item
                                 : in.Path(place, item, a.values[1]));
    if (in.failed() || text.size() > in.most_bytes()) break;
  }
  return in.MadeText(place, std::move(text));
}

template <bool kLast>
Value EndOf(Interpreter& in, Place place, const Value& self, const Arguments&) {
  if (kLast && self.list() != nullptr && self.list()->kind == Sequence::kGenerator)
    return WrongValue(in, place, "last", self);
  std::vector<Value> items = in.ItemsOf(place, self);
  if (items.empty()) return Value::UndefinedBecause("there is no such item: the sequence is empty");
  return kLast ? items.back() : items.front();
}

Value ListOf(Interpreter& in, Place place, const Value& self, const Arguments&) {
  List list;
  for (Value& item : in.ItemsOf(place, self)) list.Add(std::move(item));
  return in.MadeList(place, std::move(list));
}

Value ReversedOf(Interpreter& in, Place place, const Value& self, const Arguments&) {
  std::vector<Value> items = in.ItemsOf(place, self);
  std::reverse(items.begin(), items.end());
  if (self.text() == nullptr) return Generated(in, place, std::move(items));
  std::string text;
  for (const Value& item : items) text += *item.text();
  return in.MadeText(place, std::move(text));
}

Value ItemsPairs(Interpreter& in, Place place, const Value& self, const Arguments&) {
  std::vector<Value> pairs;
  if (self.is_undefined()) return Generated(in, place, std::move(pairs));
  if (self.dict() == nullptr) return WrongValue(in, place, "items", self);
  for (const auto& [key, value] : self.dict()->entries) {
    List pair{.kind = Sequence::kTuple};
    pair.Add(Value(key));
    pair.Add(value);
    pairs.emplace_back(std::move(pair));
  }
  return Generated(in, place, std::move(pairs));
}

Value IndentedOf(Interpreter& in, Place place, const Value& self, const Arguments& a) {
  std::string indent(4, ' ');
  if (const std::string* given = a.values[0].text()) {
    indent = *given;
  } else if (a.values[0].is_integer()) {
    if (a.values[0].integer() > 10'000) return in.Fail(place, "an indent of more than 10000 blanks");
    indent = std::string(static_cast<std::size_t>(std::max<std::int64_t>(0, a.values[0].integer())), ' ');
  } else if (!a.values[0].is_undefined()) {
    return WrongValue(in, place, "indent", a.values[0]);
  }
  if (self.text() == nullptr) return WrongValue(in, place, "indent", self);
  const std::string text = *self.text() + "\n";
  std::string result = IsTrue(a.values[1]) ? indent : "";
  bool is_first = true;
  for (const std::string_view line : SplitLines(text)) {
    if (!is_first) result += '\n';
    if (!is_first && (!line.empty() || IsTrue(a.values[2]))) result += indent;
    result += line;
    is_first = false;
    if (result.size() > in.most_bytes()) break;
  }
  return in.MadeText(place, std::move(result));
}

Value ToJson(Interpreter& in, Place place, const Value& self, const Arguments& a) {
  JsonForm form;
  form.ascii_only = IsTrue(a.values[0]);
  form.sorts_keys = IsTrue(a.values[3]);
  if (!a.values[1].is_undefined() && !a.values[1].is_none()) {
    form.has_indent = true;
    form.item_separator = ",";
    if (a.values[1].text() != nullptr) {
      form.indent = *a.values[1].text();
    } else if (a.values[1].is_integer() && a.values[1].integer() <= 1000) {
      form.indent =
          std::string(static_cast<std::size_t>(std::max<std::int64_t>(0, a.values[1].integer())), ' ');
    } else {
      return in.Fail(place, "the indent of \"tojson\" must be a string or a number of blanks up to 1000");
    }
  }
  if (!a.values[2].is_undefined() && !a.values[2].is_none()) {
    const List* pair = a.values[2].list();
    if (pair == nullptr || pair->items.size() != 2 || pair->items[0].text() == nullptr ||
        pair->items[1].text() == nullptr)
      return in.Fail(place, "the separators of \"tojson\" must be two strings");
    form.item_separator = *pair->items[0].text();
    form.key_separator = *pair->items[1].text();
  }
  std::string text;
  std::string why;
  if (!AppendJson(self, form, in.most_bytes(), &text, &why)) return in.Fail(place, "tojson: " + why);
  return in.MadeText(place, std::move(text));
}

const std::vector<Builtin>& TextFilters() {
  static const std::vector<Builtin> filters = {
      {"trim", {"chars"}, 0, TrimOf},
      {"length", {}, 0, LengthOf},
      {"count", {}, 0, LengthOf},
      {"default", {"default_value", "boolean"}, 0, DefaultOf},
      {"d", {"default_value", "boolean"}, 0, DefaultOf},
      {"string", {}, 0, StringOf},
      {"safe", {}, 0, StringOf},  // text is never escaped here
      {"upper", {}, 0, ChangedOf<Upper>},
      {"lower", {}, 0, ChangedOf<Lower>},
      {"capitalize", {}, 0, ChangedOf<Capitalize>},
      {"title", {}, 0, ChangedOf<FilterTitle>},
      {"replace", {"old", "new", "count"}, 2, ReplacedOf},
      {"join", {"d", "attribute"}, 0, JoinedOf},
      {"first", {}, 0, EndOf<false>},
      {"last", {}, 0, EndOf<true>},
      {"list", {}, 0, ListOf},
      {"reverse", {}, 0, ReversedOf},
      {"items", {}, 0, ItemsPairs},
      {"indent", {"width", "first", "blank"}, 0, IndentedOf},
      {"tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}, 0, ToJson},
  };
  return filters;
}

}  // namespace

Value Generated(Interpreter& in, Place place, std::vector<Value> items) {
  List list{.kind = Sequence::kGenerator};
  for (Value& item : items) list.Add(std::move(item));
  return in.MadeList(place, std::move(list));
}

const Builtin* FindFilter(std::string_view name) {
  for (const std::vector<Builtin>* table : {&TextFilters(), &ListFilters(), &NumberFilters()})
    for (const Builtin& filter : *table)
      if (filter.name == name) return &filter;
  return nullptr;
}

bool IsFilter(std::string_view name) { return FindFilter(name) != nullptr; }

std::string FilterNames() {
  std::vector<std::string_view> names;
  for (const std::vector<Builtin>* table : {&TextFilters(), &ListFilters(), &NumberFilters()})
    for (const Builtin& filter : *table) names.push_back(filter.name);
  std::sort(names.begin(), names.end());
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace engine::jinja
