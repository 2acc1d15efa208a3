#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "engine/base/shown.h"
#include "engine/data/jinja/interpreter.h"
#include "engine/data/jinja/names.h"
#include "engine/data/jinja/text.h"

namespace engine::jinja {
namespace {

std::string Why(const Value& undefined) {
  const auto& what = undefined.undefined().what;
  return what == nullptr ? "the value is undefined" : *what;
}

// Python's % and //, which round down.
std::int64_t FloorMod(std::int64_t a, std::int64_t b) {
  const std::int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

std::int64_t Clamped(std::int64_t index, std::int64_t size, std::int64_t least, std::int64_t most) {
  return std::clamp(index < 0 ? index + size : index, least, most);
}

Value LoopAttribute(const Loop& loop, const std::string& name) {
  const auto index = static_cast<std::int64_t>(loop.index);
  const auto length = static_cast<std::int64_t>(loop.items.size());
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "revindex") return length - index;
  if (name == "revindex0") return length - index - 1;
  if (name == "first") return index == 0;
  if (name == "last") return index + 1 == length;
  if (name == "length") return length;
  if (name == "depth") return std::int64_t{loop.depth};
  if (name == "depth0") return std::int64_t{loop.depth - 1};
  if (name == "previtem")
    return index == 0 ? Value::UndefinedBecause("there is no previous item") : loop.items[loop.index - 1];
  if (name == "nextitem")
    return index + 1 == length ? Value::UndefinedBecause("there is no next item")
                               : loop.items[loop.index + 1];
  return Value::UndefinedBecause(fmt::format("a loop has no attribute \"{}\"", name));
}

Value NoAttribute(const Value& of, const std::string& name) {
  return Value::UndefinedBecause(
      fmt::format("\"{}\" is undefined: a {} has no such attribute", Shown(name), TypeName(of)));
}

}  // namespace

Value Interpreter::Evaluate(const Expression& e) {
  if (!Spend(e.place, 1)) return {};
  const Deeper deeper(this, e.place);
  if (failed()) return {};
  switch (e.kind) {
    case ExpressionKind::kConstant:
      return e.constant;
    case ExpressionKind::kName:
      return EvaluateName(e);
    case ExpressionKind::kList:
    case ExpressionKind::kTuple:
    case ExpressionKind::kDict:
      return EvaluateCollection(e);
    case ExpressionKind::kNot:
      return !IsTrue(Evaluate(*e.parts[0]));
    case ExpressionKind::kNegative:
    case ExpressionKind::kPositive:
      return EvaluateNumberSign(e);
    case ExpressionKind::kAnd: {
      Value left = Evaluate(*e.parts[0]);
      return IsTrue(left) ? Evaluate(*e.parts[1]) : left;
    }
    case ExpressionKind::kOr: {
      Value left = Evaluate(*e.parts[0]);
      return IsTrue(left) ? left : Evaluate(*e.parts[1]);
    }
    case ExpressionKind::kArithmetic: {
      const Value left = Evaluate(*e.parts[0]);
      const Value right = Evaluate(*e.parts[1]);
      return failed() ? Value() : Arithmetic(e.place, e.name, left, right);
    }
    case ExpressionKind::kConcat:
      return EvaluateConcat(e);
    case ExpressionKind::kCompare:
      return EvaluateCompare(e);
    case ExpressionKind::kCondition:
      if (IsTrue(Evaluate(*e.parts[1]))) return Evaluate(*e.parts[0]);
      return e.parts[2] == nullptr
                 ? Value::UndefinedBecause("the condition is false, and there is no \"else\"")
                 : Evaluate(*e.parts[2]);
    case ExpressionKind::kAttribute: {
      const Value of = Evaluate(*e.parts[0]);
      return failed() ? Value() : Attribute(e.place, of, e.name);
    }
    case ExpressionKind::kItem: {
      const Value of = Evaluate(*e.parts[0]);
      const Value index = Evaluate(*e.parts[1]);
      return failed() ? Value() : Item(e.place, of, index);
    }
    case ExpressionKind::kSlice:
      return EvaluateSlice(e);
    case ExpressionKind::kCall: {
      const Value callee = Evaluate(*e.parts[0]);
      Arguments arguments = EvaluateArguments(e.arguments);
      return failed() ? Value() : Call(e.place, callee, std::move(arguments));
    }
    case ExpressionKind::kFilter:
      return EvaluateFilter(e, nullptr);
    case ExpressionKind::kTest: {
      const Value self = Evaluate(*e.parts[0]);
      Arguments arguments = EvaluateArguments(e.arguments);
      return failed() ? Value() : Value(Test(e.place, e.name, self, std::move(arguments)));
    }
  }
  return {};
}

Value Interpreter::EvaluateName(const Expression& e) {
  if (const Value* found = scope_->Find(e.name)) return *found;
  if (IsFunction(e.name)) return Value(Callable{.name = e.name});
  return Value::UndefinedBecause(fmt::format("\"{}\" is undefined", Shown(e.name)));
}

Value Interpreter::EvaluateCollection(const Expression& e) {
  if (e.kind != ExpressionKind::kDict) {
    List list{.kind = e.kind == ExpressionKind::kList ? Sequence::kList : Sequence::kTuple};
    for (const ExpressionPtr& part : e.parts) list.Add(Evaluate(*part));
    return MadeList(e.place, std::move(list));
  }
  Dict dict;
  for (std::size_t i = 0; i < e.parts.size() && !failed(); i += 2) {
    const Value key = Evaluate(*e.parts[i]);
    if (key.text() == nullptr) return Fail(e.parts[i]->place, "keys of a dict are strings here");
    dict.Set(*key.text(), Evaluate(*e.parts[i + 1]));
  }
  return MadeDict(e.place, std::move(dict));
}

Value Interpreter::EvaluateNumberSign(const Expression& e) {
  const Value of = Evaluate(*e.parts[0]);
  if (failed()) return {};
  const bool is_negative = e.kind == ExpressionKind::kNegative;
  if (of.is_undefined()) return Fail(e.place, Why(of));
  if (!of.is_number()) return Fail(e.place, fmt::format("a {} has no sign", TypeName(of)));
  if (const double* real = of.real()) return is_negative ? -*real : *real;
  return is_negative ? IntegerArithmetic(e.place, "-", 0, of.integer()) : Value(of.integer());
}

Value Interpreter::EvaluateConcat(const Expression& e) {
  std::string text;
  for (const ExpressionPtr& part : e.parts) {
    const Value value = Evaluate(*part);
    if (value.text() != nullptr) {
      text += *value.text();
    } else {
      text += TextOf(e.place, value);
    }
    if (failed() || text.size() > options_.most_bytes) break;
  }
  return MadeText(e.place, std::move(text));
}

Value Interpreter::EvaluateCompare(const Expression& e) {
  Value left = Evaluate(*e.parts[0]);
  for (std::size_t i = 0; i < e.names.size(); ++i) {
    Value right = Evaluate(*e.parts[i + 1]);
    if (failed() || !EvaluateComparison(e.place, e.names[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

bool Interpreter::EvaluateComparison(Place place, const std::string& sign, const Value& a, const Value& b) {
  if (sign == "in") return Contains(place, b, a);
  if (sign == "not in") return !Contains(place, b, a);
  if (sign == "==" || sign == "!=") {
    const auto size = [](const Value& v) {
      return v.list() != nullptr ? v.list()->items.size() : v.text() != nullptr ? v.text()->size() / 64 : 0;
    };
    Spend(place, std::min(size(a), size(b)));
    return AreEqual(a, b) == (sign == "==");
  }
  if (a.is_number() && b.is_number() && (std::isnan(a.number()) || std::isnan(b.number()))) return false;
  const int order = Order(place, a, b);
  if (sign == "<") return order < 0;
  if (sign == "<=") return order <= 0;
  return sign == ">" ? order > 0 : order >= 0;
}

int Interpreter::Order(Place place, const Value& a, const Value& b) {
  int order = 0;
  if (a.is_undefined() || b.is_undefined()) {
    Fail(place, Why(a.is_undefined() ? a : b));
  } else if (!Compare(a, b, &order)) {
    Fail(place, fmt::format("a {} and a {} have no order", TypeName(a), TypeName(b)));
  }
  return order;
}

bool Interpreter::Contains(Place place, const Value& container, const Value& item) {
  if (const std::string* text = container.text()) {
    if (item.text() == nullptr) {
      Fail(place, fmt::format("a {} cannot be in a text", TypeName(item)));
      return false;
    }
    return Spend(place, text->size() / 64) && text->find(*item.text()) != std::string::npos;
  }
  if (const Dict* dict = container.dict())
    return item.text() != nullptr && dict->Find(*item.text()) != nullptr;
  const std::vector<Value> items = ItemsOf(place, container);
  return std::any_of(items.begin(), items.end(), [&](const Value& one) { return AreEqual(one, item); });
}

Value Interpreter::EvaluateFilter(const Expression& e, const Value* body) {
  const Value self = e.parts[0] == nullptr ? *body
                     : e.parts[0]->kind == ExpressionKind::kFilter && body != nullptr
                         ? EvaluateFilter(*e.parts[0], body)
                         : Evaluate(*e.parts[0]);
  Arguments arguments = EvaluateArguments(e.arguments);
  return failed() ? Value() : Filter(e.place, e.name, self, std::move(arguments));
}

Value Interpreter::EvaluateSlice(const Expression& e) {
  const Value of = Evaluate(*e.parts[0]);
  std::int64_t bounds[3] = {0, 0, 1};
  bool given[3] = {};
  for (std::size_t i = 0; i < 3; ++i) {
    if (e.parts[i + 1] == nullptr) continue;
    const Value bound = Evaluate(*e.parts[i + 1]);
    if (failed()) return {};
    if (bound.is_none()) continue;
    if (!bound.is_integer())
      return Fail(e.place, fmt::format("a {} cannot be a bound of a slice", TypeName(bound)));
    bounds[i] = bound.integer();
    given[i] = true;
  }
  if (failed()) return {};
  if (of.is_undefined()) return Fail(e.place, Why(of));
  if (bounds[2] == 0) return Fail(e.place, "the step of a slice is 0");
  const List* list = of.list();
  const std::string* text = of.text();
  const bool has_slices =
      text != nullptr ||
      (list != nullptr &&
       (list->kind == Sequence::kList || list->kind == Sequence::kTuple || list->kind == Sequence::kRange));
  if (!has_slices) return Fail(e.place, fmt::format("a {} has no slices", TypeName(of)));
  const std::vector<std::string_view> characters =
      text != nullptr ? Characters(*text) : std::vector<std::string_view>();
  const auto size = static_cast<std::int64_t>(text != nullptr ? characters.size() : list->items.size());
  const bool forward = bounds[2] > 0;
  const std::int64_t step = std::clamp(bounds[2], -size - 1, size + 1);
  const std::int64_t least = forward ? 0 : -1;
  const std::int64_t most = forward ? size : size - 1;
  const std::int64_t from = given[0] ? Clamped(std::clamp(bounds[0], -size - 1, size + 1), size, least, most)
                                     : (forward ? least : most);
  const std::int64_t to = given[1] ? Clamped(std::clamp(bounds[1], -size - 1, size + 1), size, least, most)
                                   : (forward ? most : least);
  if (!Spend(e.place, static_cast<std::size_t>(size) / (text != nullptr ? 64 : 1))) return {};
  std::string part;
  List some;
  if (list != nullptr) some.kind = list->kind;
  for (std::int64_t i = from; forward ? i < to : i > to; i += step) {
    if (text != nullptr) {
      part += characters[static_cast<std::size_t>(i)];
    } else {
      some.Add(list->items[static_cast<std::size_t>(i)]);
    }
  }
  return text != nullptr ? MadeText(e.place, std::move(part)) : MadeList(e.place, std::move(some));
}

Value Interpreter::Attribute(Place place, const Value& of, const std::string& name) {
  if (of.is_undefined()) return Fail(place, Why(of));
  if (name.starts_with("__") && of.dict() == nullptr)
    return Fail(place, fmt::format("the attribute \"{}\" is not for templates", Shown(name)));
  bool is_known = false;
  if (FindMethod(of, name, &is_known) != nullptr || is_known)
    return Value(Callable{.name = name, .is_method = true, .self = of});
  if (of.loop() != nullptr) {
    if (name == "cycle" || name == "changed")
      return Value(Callable{.name = name, .is_method = true, .self = of});
    return LoopAttribute(*of.loop(), name);
  }
  const Dict* attributes = of.space() != nullptr ? &of.space()->attributes : of.dict();
  const Value* found = attributes == nullptr ? nullptr : attributes->Find(name);
  return found == nullptr ? NoAttribute(of, name) : *found;
}

Value Interpreter::Item(Place place, const Value& of, const Value& index) {
  if (of.is_undefined()) return Fail(place, Why(of));
  if (const std::string* key = index.text()) {
    if (const Dict* dict = of.dict())
      if (const Value* found = dict->Find(*key)) return *found;
    return Attribute(place, of, *key);
  }
  const List* list = of.list();
  const std::string* text = of.text();
  const bool has_items = text != nullptr || (list != nullptr && list->kind != Sequence::kGenerator &&
                                             list->kind != Sequence::kView);
  if (index.is_integer() && has_items) {
    std::int64_t size = 0;
    if (text == nullptr) {
      size = static_cast<std::int64_t>(list->items.size());
    } else if (Spend(place, text->size() / 64)) {
      size = CodePoints(*text);
    }
    const std::int64_t at = index.integer() < 0 ? index.integer() + size : index.integer();
    if (at < 0 || at >= size)
      return Value::UndefinedBecause(
          fmt::format("a {} of {} items has no item {}", TypeName(of), size, index.integer()));
    if (text == nullptr) return list->items[static_cast<std::size_t>(at)];
    const std::size_t begin = ByteOfCodePoint(*text, at);
    return Value(std::string(Characters(std::string_view(*text).substr(begin, 4)).front()));
  }
  return Value::UndefinedBecause(fmt::format("a {} has no item by a {}", TypeName(of), TypeName(index)));
}

Value Interpreter::Path(Place place, const Value& of, const Value& path) {
  if (path.is_integer()) return Item(place, of, path);
  if (path.text() == nullptr)
    return Fail(place, fmt::format("\"attribute\" is a {}, and must be a string", TypeName(path)));
  Value at = of;
  for (const std::string_view name : SplitAt(*path.text(), ".", -1, false)) {
    if (failed()) return {};
    std::int64_t number = 0;
    const auto read = std::from_chars(name.data(), name.data() + name.size(), number);
    const bool is_number =
        !name.empty() && name[0] != '-' && read.ec == std::errc() && read.ptr == name.data() + name.size();
    at = Item(place, at, is_number ? Value(number) : Value(std::string(name)));
  }
  return at;
}

Value Interpreter::Repeated(Place place, const Value& of, std::int64_t times) {
  const std::size_t count = times < 0 ? 0 : static_cast<std::size_t>(times);
  const std::size_t size = of.text() != nullptr ? of.text()->size() : of.list()->items.size() * 64;
  if (size > 0 && count > options_.most_bytes / size) {
    Fail(place, fmt::format("{} times a {} would have more than {} bytes", times, TypeName(of),
                            options_.most_bytes));
    mistake_.is_bound = true;
    return {};
  }
  if (of.text() != nullptr) {
    std::string text;
    text.reserve(size * count);
    for (std::size_t i = 0; size > 0 && i < count; ++i) text += *of.text();
    return MadeText(place, std::move(text));
  }
  List list{.kind = of.list()->kind};
  for (std::size_t i = 0; size > 0 && i < count; ++i)
    for (const Value& item : of.list()->items) list.Add(item);
  return MadeList(place, std::move(list));
}

Value Interpreter::Arithmetic(Place place, std::string_view sign, const Value& a, const Value& b) {
  if (failed()) return {};
  if (a.is_undefined() || b.is_undefined()) return Fail(place, Why(a.is_undefined() ? a : b));
  if (a.is_integer() && b.is_integer()) return IntegerArithmetic(place, sign, a.integer(), b.integer());
  if (a.is_number() && b.is_number()) return RealArithmetic(place, sign, a.number(), b.number());
  const auto repeats = [](const Value& v) {
    return v.text() != nullptr ||
           (v.list() != nullptr && (v.list()->kind == Sequence::kList || v.list()->kind == Sequence::kTuple));
  };
  if (sign == "*" && repeats(a) && b.is_integer()) return Repeated(place, a, b.integer());
  if (sign == "*" && a.is_integer() && repeats(b)) return Repeated(place, b, a.integer());
  if (sign == "+" && a.text() != nullptr && b.text() != nullptr)
    return MadeText(place, *a.text() + *b.text());
  if (sign == "+" && repeats(a) && repeats(b) && a.list() != nullptr && b.list() != nullptr &&
      a.list()->kind == b.list()->kind) {
    List list = *a.list();
    for (const Value& item : b.list()->items) list.Add(item);
    return MadeList(place, std::move(list));
  }
  if (sign == "%" && a.text() != nullptr)
    return Fail(place, "text is not formatted by \"%\" here; \"~\" joins values");
  return Fail(place, fmt::format("\"{}\" does not go with a {} and a {}", sign, TypeName(a), TypeName(b)));
}

Value Interpreter::IntegerArithmetic(Place place, std::string_view sign, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool overflows = false;
  if (sign == "+") {
    overflows = __builtin_add_overflow(a, b, &result);
  } else if (sign == "-") {
    overflows = __builtin_sub_overflow(a, b, &result);
  } else if (sign == "*") {
    overflows = __builtin_mul_overflow(a, b, &result);
  } else if (sign == "**") {
    if (b < 0) return RealArithmetic(place, sign, static_cast<double>(a), static_cast<double>(b));
    result = 1;
    for (std::int64_t power = a; b > 0 && !overflows; b >>= 1) {
      if ((b & 1) != 0) overflows = __builtin_mul_overflow(result, power, &result);
      if (b > 1) overflows = overflows || __builtin_mul_overflow(power, power, &power);
    }
  } else if (b == 0) {
    return Fail(place, "a division by zero");
  } else if (sign == "/") {
    return static_cast<double>(a) / static_cast<double>(b);
  } else if (a == std::numeric_limits<std::int64_t>::min() && b == -1) {
    overflows = true;
  } else {
    const bool rounds_down = a % b != 0 && (a % b < 0) != (b < 0);
    result = sign == "%" ? FloorMod(a, b) : a / b - (rounds_down ? 1 : 0);
  }
  if (overflows) return Fail(place, "the result does not fit into 64 bits");
  return result;
}

Value Interpreter::RealArithmetic(Place place, std::string_view sign, double a, double b) {
  if (sign == "+") return a + b;
  if (sign == "-") return a - b;
  if (sign == "*") return a * b;
  if (sign == "**") {
    const double power = std::pow(a, b);
    if (std::isnan(power) || (std::isinf(power) && std::isfinite(a) && std::isfinite(b)))
      return Fail(place, "the power is no number that can be told");
    return power;
  }
  if (b == 0) return Fail(place, "a division by zero");
  if (sign == "/") return a / b;
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (sign == "%") return rest == 0 ? std::copysign(0.0, b) : rest;
  const double quotient = (a - rest) / b;  // a whole number but for its rounding
  const double below = std::floor(quotient);
  return quotient == 0 ? std::copysign(0.0, a / b) : (quotient - below > 0.5 ? below + 1 : below);
}

}  // namespace engine::jinja
