// Tests of templates: "value is NAME".
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "engine/data/jinja/interpreter.h"
#include "engine/data/jinja/names.h"
#include "engine/data/jinja/text.h"

namespace engine::jinja {
namespace {

using Run = Value (*)(Interpreter& in, Place place, const Value& self, const Arguments& arguments);

template <bool (*Holds)(const Value&)>
Value Simple(Interpreter&, Place, const Value& self, const Arguments&) {
  return Holds(self);
}

bool IsDefined(const Value& v) { return !v.is_undefined(); }
bool IsUndefined(const Value& v) { return v.is_undefined(); }
bool IsNone(const Value& v) { return v.is_none(); }
bool IsBoolean(const Value& v) { return v.truth() != nullptr; }
bool IsTruth(const Value& v) { return v.truth() != nullptr && *v.truth(); }
bool IsFalsehood(const Value& v) { return v.truth() != nullptr && !*v.truth(); }
bool IsInteger(const Value& v) { return v.is_integer() && v.truth() == nullptr; }
bool IsFloat(const Value& v) { return v.real() != nullptr; }
bool IsNumberValue(const Value& v) { return v.is_number(); }
bool IsString(const Value& v) { return v.text() != nullptr; }
bool IsMapping(const Value& v) { return v.dict() != nullptr; }
bool IsCallable(const Value& v) {
  return v.callable() != nullptr || v.is_undefined();
}  // an Undefined has __call__
bool IsIterable(const Value& v) {
  return v.text() != nullptr || v.list() != nullptr || v.dict() != nullptr || v.is_undefined() ||
         v.loop() != nullptr;
}
bool IsSequence(const Value& v) {
  if (const List* list = v.list()) return list->kind != Sequence::kGenerator && list->kind != Sequence::kView;
  return v.text() != nullptr || v.dict() != nullptr || v.is_undefined();
}

template <bool kEqual>
Value Equal(Interpreter&, Place, const Value& self, const Arguments& a) {
  return AreEqual(self, a.values[0]) == kEqual;
}

// Sign: '<', 'l' for <=, '>', 'g' for >=.
template <char kSign>
Value Ordered(Interpreter& in, Place place, const Value& self, const Arguments& a) {
  const int order = in.Order(place, self, a.values[0]);
  return kSign == '<' ? order < 0 : kSign == 'l' ? order <= 0 : kSign == '>' ? order > 0 : order >= 0;
}

Value In(Interpreter& in, Place place, const Value& self, const Arguments& a) {
  return in.Contains(place, a.values[0], self);
}

template <int kRest>
Value Parity(Interpreter& in, Place place, const Value& self, const Arguments&) {
  const Value rest = in.Arithmetic(place, "%", self, Value(std::int64_t{2}));
  return !in.failed() && AreEqual(rest, Value(std::int64_t{kRest}));
}

Value DivisibleBy(Interpreter& in, Place place, const Value& self, const Arguments& a) {
  const Value rest = in.Arithmetic(place, "%", self, a.values[0]);
  return !in.failed() && AreEqual(rest, Value(std::int64_t{0}));
}

template <bool kUpper>
Value Case(Interpreter& in, Place place, const Value& self, const Arguments&) {
  const std::string text = in.TextOf(place, self);
  if (!IsAscii(text)) return in.Fail(place, "the case of letters that are not ASCII is not supported");
  bool any = false;
  for (const char c : text) {
    const bool upper = c >= 'A' && c <= 'Z';
    const bool lower = c >= 'a' && c <= 'z';
    if (kUpper ? lower : upper) return false;
    any = any || upper || lower;
  }
  return any;
}

// Whether the two are one object: told of none, true and false alone.
Value SameAs(Interpreter& in, Place place, const Value& self, const Arguments& a) {
  const Value& other = a.values[0];
  if (other.is_none()) return self.is_none();
  if (other.truth() == nullptr)
    return in.Fail(place, "the test \"sameas\" is supported of none, true and false alone");
  return self.truth() != nullptr && *self.truth() == *other.truth();
}

const std::map<std::string_view, Builtin>& Tests() {
  static const std::map<std::string_view, Builtin> tests = [] {
    const std::pair<std::string_view, Run> simple[] = {
        {"defined", Simple<IsDefined>},
        {"undefined", Simple<IsUndefined>},
        {"none", Simple<IsNone>},
        {"boolean", Simple<IsBoolean>},
        {"true", Simple<IsTruth>},
        {"false", Simple<IsFalsehood>},
        {"integer", Simple<IsInteger>},
        {"float", Simple<IsFloat>},
        {"number", Simple<IsNumberValue>},
        {"string", Simple<IsString>},
        {"mapping", Simple<IsMapping>},
        {"callable", Simple<IsCallable>},
        {"iterable", Simple<IsIterable>},
        {"sequence", Simple<IsSequence>},
        {"odd", Parity<1>},
        {"even", Parity<0>},
        {"upper", Case<true>},
        {"lower", Case<false>},
    };
    const std::pair<std::string_view, Run> binary[] = {
        {"eq", Equal<true>},          {"equalto", Equal<true>},
        {"==", Equal<true>},          {"ne", Equal<false>},
        {"!=", Equal<false>},         {"lt", Ordered<'<'>},
        {"lessthan", Ordered<'<'>},   {"<", Ordered<'<'>},
        {"le", Ordered<'l'>},         {"<=", Ordered<'l'>},
        {"gt", Ordered<'>'>},         {"greaterthan", Ordered<'>'>},
        {">", Ordered<'>'>},          {"ge", Ordered<'g'>},
        {">=", Ordered<'g'>},         {"in", In},
        {"divisibleby", DivisibleBy}, {"sameas", SameAs},
    };
    std::map<std::string_view, Builtin> all;
    for (const auto& [name, run] : simple) all[name] = {name, {}, 0, run};
    for (const auto& [name, run] : binary) all[name] = {name, {"other"}, 1, run};
    return all;
  }();
  return tests;
}

}  // namespace

const Builtin* FindTest(std::string_view name) {
  const auto found = Tests().find(name);
  return found == Tests().end() ? nullptr : &found->second;
}

bool IsTest(std::string_view name) { return FindTest(name) != nullptr; }

std::string TestNames() {
  std::vector<std::string_view> names;
  for (const auto& [name, test] : Tests())
    if (std::isalpha(static_cast<unsigned char>(name[0])) != 0) names.push_back(name);
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace engine::jinja
