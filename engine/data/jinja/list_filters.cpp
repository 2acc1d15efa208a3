// Filters that go through the items of a list.
#include <fmt/format.h>

#include <algorithm>

#include "engine/base/shown.h"
#include "engine/data/jinja/filters.h"
#include "engine/data/jinja/names.h"
#include "engine/data/jinja/text.h"

namespace engine::jinja {
namespace {

bool IsGivenValue(const Value& value) { return !value.is_undefined() && !value.is_none(); }

// The item, or what it has at the path; of a string that is compared without its case, the lower one.
Value KeyOf(Interpreter& in, Place place, const Value& item, const Value& path, bool with_case) {
  if (path.text() != nullptr && path.text()->find(',') != std::string::npos)
    return in.Fail(place, "several attributes, parted by commas, are not supported");
  Value key = IsGivenValue(path) ? in.Path(place, item, path) : item;
  if (with_case || key.text() == nullptr || in.failed()) return key;
  return ChangedCase(in, place, *key.text(), Lower);
}

// Sorts by the keys, which stand beside the values; equal ones keep their order.
bool SortByKey(Interpreter& in, Place place, bool reverse, std::vector<std::pair<Value, Value>>* pairs) {
  if (!in.Spend(place, 16 * pairs->size())) return false;
  // Python sorts backwards so that equal ones keep their order then too.
  std::stable_sort(pairs->begin(), pairs->end(), [&](const auto& a, const auto& b) {
    if (in.failed()) return false;
    return reverse ? in.Order(place, b.first, a.first) < 0 : in.Order(place, a.first, b.first) < 0;
  });
  return !in.failed();
}

Value SortedOf(Interpreter& in, Place place, const Value& self, const Arguments& a) {
  std::vector<std::pair<Value, Value>> pairs;
  for (Value& item : in.ItemsOf(place, self)) {
    Value key = KeyOf(in, place, item, a.values[2], IsTrue(a.values[1]));
    pairs.emplace_back(std::move(key), std::move(item));
    if (in.failed()) return {};
  }
  if (!SortByKey(in, place, IsTrue(a.values[0]), &pairs)) return {};
  List list;
  for (auto& [key, item] : pairs) list.Add(std::move(item));
  return in.MadeList(place, std::move(list));
}

Value DictSorted(Interpreter& in, Place place, const Value& self, const Arguments& a) {
  if (self.dict() == nullptr)
    return in.Fail(place, fmt::format("the filter \"dictsort\" is not for a {}", TypeName(self)));
  const bool by_value = a.values[1].text() != nullptr && *a.values[1].text() == "value";
  if (!by_value && IsGivenValue(a.values[1]) &&
      (a.values[1].text() == nullptr || *a.values[1].text() != "key"))
    return in.Fail(place, "\"dictsort\" sorts by \"key\" or \"value\"");
  std::vector<std::pair<Value, Value>> pairs;
  for (const auto& [key, value] : self.dict()->entries) {
    List pair{.kind = Sequence::kTuple};
    pair.Add(Value(key));
    pair.Add(value);
    pairs.emplace_back(KeyOf(in, place, by_value ? value : Value(key), {}, IsTrue(a.values[0])),
                       Value(std::move(pair)));
    if (in.failed()) return {};
  }
  if (!SortByKey(in, place, IsTrue(a.values[2]), &pairs)) return {};
  List list;
  for (auto& [key, pair] : pairs) list.Add(std::move(pair));
  return in.MadeList(place, std::move(list));
}

Value UniqueOf(Interpreter& in, Place place, const Value& self, const Arguments& a) {
  std::vector<Value> kept;
  std::vector<Value> keys;
  for (const Value& item : in.ItemsOf(place, self)) {
    const Value key = KeyOf(in, place, item, a.values[1], IsTrue(a.values[0]));
    if (in.failed() || !in.Spend(place, keys.size())) return {};
    if (key.dict() != nullptr || (key.list() != nullptr && key.list()->kind == Sequence::kList))
      return in.Fail(place, fmt::format("the filter \"unique\" is not for a {}", TypeName(key)));
    if (std::any_of(keys.begin(), keys.end(), [&](const Value& k) { return AreEqual(k, key); })) continue;
    keys.push_back(key);
    kept.push_back(item);
  }
  return Generated(in, place, std::move(kept));
}

template <bool kMax>
Value ExtremeOf(Interpreter& in, Place place, const Value& self, const Arguments& a) {
  const std::vector<Value> items = in.ItemsOf(place, self);
  if (items.empty()) return Value::UndefinedBecause("there is no such item: the sequence is empty");
  Value best = items[0];
  Value best_key = KeyOf(in, place, best, a.values[1], IsTrue(a.values[0]));
  for (std::size_t i = 1; i < items.size() && !in.failed(); ++i) {
    const Value key = KeyOf(in, place, items[i], a.values[1], IsTrue(a.values[0]));
    const int order = in.failed() ? 0 : in.Order(place, key, best_key);
    if (kMax ? order <= 0 : order >= 0) continue;
    best = items[i];
    best_key = key;
  }
  return best;
}

Value SumOf(Interpreter& in, Place place, const Value& self, const Arguments& a) {
  Value sum = a.values[1].is_undefined() ? Value(std::int64_t{0}) : a.values[1];
  for (const Value& item : in.ItemsOf(place, self)) {
    if (in.failed()) break;
    sum =
        in.Arithmetic(place, "+", sum, IsGivenValue(a.values[0]) ? in.Path(place, item, a.values[0]) : item);
  }
  return sum;
}

// The name of a filter or test, which is the first argument, taken out of the others.
bool TakeFunction(Interpreter& in, Place place, bool (*is_known)(std::string_view), std::string_view what,
                  Arguments* a, std::string* name) {
  if (a->values.empty() || a->values[0].text() == nullptr) {
    in.Fail(place, fmt::format("the name of a {} must come first", what));
    return false;
  }
  *name = *a->values[0].text();
  a->values.erase(a->values.begin());
  if (is_known(*name)) return true;
  in.Fail(place, fmt::format("the {} \"{}\" is not supported", what, Shown(*name)));
  return false;
}

Value MapOf(Interpreter& in, Place place, const Value& self, const Arguments& arguments) {
  Arguments a = arguments;
  std::vector<Value> made;
  if (a.values.empty() && !a.named.empty()) {
    Value path;
    Value otherwise;
    for (auto& [name, value] : a.named) {
      if (name != "attribute" && name != "default")
        return in.Fail(place, fmt::format("the filter \"map\" has no parameter \"{}\"", Shown(name)));
      (name == "attribute" ? path : otherwise) = value;
    }
    if (path.is_undefined())
      return in.Fail(place, "the filter \"map\" needs a filter's name or \"attribute\"");
    if (!IsTrue(self)) return Generated(in, place, {});  // Jinja does not ask whether it has items
    for (const Value& item : in.ItemsOf(place, self)) {
      Value value = in.Path(place, item, path);
      if (in.failed()) return {};
      made.push_back(value.is_undefined() && !otherwise.is_undefined() ? otherwise : std::move(value));
    }
    return Generated(in, place, std::move(made));
  }
  std::string name;
  if (!TakeFunction(in, place, IsFilter, "filter", &a, &name)) return {};
  if (!IsTrue(self)) return Generated(in, place, {});
  for (const Value& item : in.ItemsOf(place, self)) {
    made.push_back(in.Filter(place, name, item, a));
    if (in.failed()) return {};
  }
  return Generated(in, place, std::move(made));
}

// select, reject, selectattr and rejectattr.
template <bool kKeeps, bool kOfAttribute>
Value Selected(Interpreter& in, Place place, const Value& self, const Arguments& arguments) {
  Arguments a = arguments;
  Value path;
  if (kOfAttribute) {
    if (a.values.empty()) return in.Fail(place, "the name of an attribute must come first");
    path = a.values[0];
    a.values.erase(a.values.begin());
  }
  std::string name;
  const bool has_test = !a.values.empty();
  if (has_test && !TakeFunction(in, place, IsTest, "test", &a, &name)) return {};
  std::vector<Value> kept;
  if (!IsTrue(self)) return Generated(in, place, {});  // Jinja does not ask whether it has items
  for (const Value& item : in.ItemsOf(place, self)) {
    const Value value = kOfAttribute ? in.Path(place, item, path) : item;
    if (in.failed()) return {};
    if ((has_test ? in.Test(place, name, value, a) : IsTrue(value)) == kKeeps) kept.push_back(item);
    if (in.failed()) return {};
  }
  return Generated(in, place, std::move(kept));
}

}  // namespace

const std::vector<Builtin>& ListFilters() {
  static const std::vector<Builtin> filters = {
      {"sort", {"reverse", "case_sensitive", "attribute"}, 0, SortedOf},
      {"dictsort", {"case_sensitive", "by", "reverse"}, 0, DictSorted},
      {"unique", {"case_sensitive", "attribute"}, 0, UniqueOf},
      {"min", {"case_sensitive", "attribute"}, 0, ExtremeOf<false>},
      {"max", {"case_sensitive", "attribute"}, 0, ExtremeOf<true>},
      {"sum", {"attribute", "start"}, 0, SumOf},
      {"map", {"*"}, 0, MapOf},
      {"select", {"*"}, 0, Selected<true, false>},
      {"reject", {"*"}, 0, Selected<false, false>},
      {"selectattr", {"*"}, 0, Selected<true, true>},
      {"rejectattr", {"*"}, 0, Selected<false, true>},
  };
  return filters;
}

}  // namespace engine::jinja
