#include "engine/data/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "engine/data/jinja/text.h"

namespace engine::jinja {
namespace {

constexpr std::size_t kFewEntries = 8;

template <typename T>
int OrderOf(const T& a, const T& b) {
  return a < b ? -1 : (b < a ? 1 : 0);
}

bool AppendItems(const List& list, std::size_t most_bytes, std::string* out) {
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) *out += ", ";
    if (!AppendRepr(list.items[i], most_bytes, out)) return false;
  }
  return true;
}

bool AppendListRepr(const List& list, std::size_t most_bytes, std::string* out) {
  if (list.kind != Sequence::kList && list.kind != Sequence::kTuple) return false;
  const bool is_tuple = list.kind == Sequence::kTuple;
  *out += is_tuple ? '(' : '[';
  if (!AppendItems(list, most_bytes, out)) return false;
  if (is_tuple && list.items.size() == 1) *out += ',';
  *out += is_tuple ? ')' : ']';
  return out->size() <= most_bytes;
}

bool AppendDictRepr(const Dict& dict, std::size_t most_bytes, std::string* out) {
  *out += '{';
  for (std::size_t i = 0; i < dict.entries.size(); ++i) {
    if (i > 0) *out += ", ";
    AppendTextRepr(dict.entries[i].first, out);
    *out += ": ";
    if (!AppendRepr(dict.entries[i].second, most_bytes, out)) return false;
  }
  *out += '}';
  return out->size() <= most_bytes;
}

}  // namespace

Value::Value(List list) : any_(std::make_shared<const List>(std::move(list))) {}
Value::Value(Dict dict) : any_(std::make_shared<const Dict>(std::move(dict))) {}
Value::Value(Callable callable) : any_(std::make_shared<const Callable>(std::move(callable))) {}

std::int64_t Value::integer() const {
  const bool* as_truth = truth();
  return as_truth != nullptr ? (*as_truth ? 1 : 0) : std::get<std::int64_t>(any_);
}

double Value::number() const { return real() != nullptr ? *real() : static_cast<double>(integer()); }

int Value::depth() const {
  if (const List* as_list = list()) return as_list->depth;
  if (const Dict* as_dict = dict()) return as_dict->depth;
  return 0;
}

void List::Add(Value item) {
  depth = std::max(depth, 1 + item.depth());
  items.push_back(std::move(item));
}

const Value* Dict::Find(std::string_view key) const {
  if (!places_.empty()) {
    const auto found = places_.find(absl::string_view(key.data(), key.size()));
    return found == places_.end() ? nullptr : &entries[found->second].second;
  }
  for (const auto& [name, value] : entries)
    if (name == key) return &value;
  return nullptr;
}

void Dict::Set(std::string key, Value value) {
  depth = std::max(depth, 1 + value.depth());
  if (const Value* found = Find(key)) {
    const_cast<Value&>(*found) = std::move(value);
    return;
  }
  entries.emplace_back(std::move(key), std::move(value));
  if (entries.size() <= kFewEntries) return;
  for (std::size_t i = places_.size(); i < entries.size(); ++i) places_.emplace(entries[i].first, i);
}

bool IsTrue(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (value.is_integer()) return value.integer() != 0;
  if (const double* real = value.real()) return *real != 0;
  if (const std::string* text = value.text()) return !text->empty();
  if (const List* list = value.list()) return list->kind == Sequence::kGenerator || !list->items.empty();
  if (const Dict* dict = value.dict()) return !dict->entries.empty();
  return true;
}

bool AreEqual(const Value& a, const Value& b) {
  if (a.is_undefined() || b.is_undefined()) return a.is_undefined() && b.is_undefined();
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  if (a.is_integer() && b.is_integer()) return a.integer() == b.integer();
  if (a.is_number() && b.is_number()) return a.number() == b.number();
  if (a.text() != nullptr && b.text() != nullptr) return *a.text() == *b.text();
  if (const List* x = a.list(), *y = b.list(); x != nullptr && y != nullptr) {
    if (x == y) return true;
    if (x->kind != y->kind || x->kind == Sequence::kGenerator) return false;
    return std::equal(x->items.begin(), x->items.end(), y->items.begin(), y->items.end(), AreEqual);
  }
  if (const Dict* x = a.dict(), *y = b.dict(); x != nullptr && y != nullptr) {
    if (x->entries.size() != y->entries.size()) return false;
    return std::all_of(x->entries.begin(), x->entries.end(), [y](const auto& entry) {
      const Value* other = y->Find(entry.first);
      return other != nullptr && AreEqual(entry.second, *other);
    });
  }
  if (a.space() != nullptr) return a.space() == b.space();
  if (a.loop() != nullptr) return a.loop() == b.loop();
  return a.callable() != nullptr && a.callable() == b.callable();
}

bool Compare(const Value& a, const Value& b, int* order) {
  if (a.is_integer() && b.is_integer()) {
    *order = OrderOf(a.integer(), b.integer());
  } else if (a.is_number() && b.is_number()) {
    if (std::isnan(a.number()) || std::isnan(b.number())) return false;
    *order = OrderOf(a.number(), b.number());
  } else if (a.text() != nullptr && b.text() != nullptr) {
    *order = OrderOf(*a.text(), *b.text());  // UTF-8 has the order of code points
  } else if (const List* x = a.list(), *y = b.list(); x != nullptr && y != nullptr && x->kind == y->kind) {
    for (std::size_t i = 0; i < x->items.size() && i < y->items.size(); ++i)
      if (!AreEqual(x->items[i], y->items[i])) return Compare(x->items[i], y->items[i], order);
    *order = OrderOf(x->items.size(), y->items.size());
  } else {
    return false;
  }
  return true;
}

std::string_view TypeName(const Value& value) {
  if (value.is_undefined()) return "undefined";
  if (value.is_none()) return "none";
  if (value.truth() != nullptr) return "bool";
  if (value.is_integer()) return "int";
  if (value.real() != nullptr) return "float";
  if (value.text() != nullptr) return "str";
  if (value.dict() != nullptr) return "dict";
  if (value.space() != nullptr) return "namespace";
  if (value.loop() != nullptr) return "loop";
  if (value.callable() != nullptr) return "function";
  constexpr std::string_view kNames[] = {"list", "tuple", "range", "view of a dict", "generator"};
  return kNames[static_cast<std::size_t>(value.list()->kind)];
}

bool AppendString(const Value& value, std::size_t most_bytes, std::string* out) {
  if (value.is_undefined()) return true;
  if (const std::string* text = value.text()) {
    *out += *text;
    return out->size() <= most_bytes;
  }
  return AppendRepr(value, most_bytes, out);
}

bool AppendRepr(const Value& value, std::size_t most_bytes, std::string* out) {
  if (out->size() > most_bytes) return false;
  if (value.is_undefined()) {
    *out += "Undefined";
  } else if (value.is_none()) {
    *out += "None";
  } else if (const bool* truth = value.truth()) {
    *out += *truth ? "True" : "False";
  } else if (value.is_integer()) {
    *out += fmt::format("{}", value.integer());
  } else if (const double* real = value.real()) {
    *out += ReprOf(*real);
  } else if (const std::string* text = value.text()) {
    AppendTextRepr(*text, out);
  } else if (const List* list = value.list()) {
    return AppendListRepr(*list, most_bytes, out);
  } else if (const Dict* dict = value.dict()) {
    return AppendDictRepr(*dict, most_bytes, out);
  } else {
    return false;
  }
  return out->size() <= most_bytes;
}

std::string ReprOf(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  char digits[64];
  const auto end = std::to_chars(digits, digits + sizeof digits, number, std::chars_format::scientific);
  std::string_view text(digits, static_cast<std::size_t>(end.ptr - digits));
  const int exponent = std::atoi(std::string(text.substr(text.find('e') + 1)).c_str());
  if (exponent < -4 || exponent >= 16) return std::string(text);
  const auto fixed = std::to_chars(digits, digits + sizeof digits, number, std::chars_format::fixed);
  std::string shown(digits, fixed.ptr);
  if (shown.find('.') == std::string::npos) shown += ".0";
  return shown;
}

}  // namespace engine::jinja
