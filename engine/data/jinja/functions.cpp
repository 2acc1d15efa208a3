// Functions of templates.
#include <fmt/format.h>

#include "engine/data/jinja/interpreter.h"
#include "engine/data/jinja/names.h"

namespace engine::jinja {
namespace {

Value RangeOf(Interpreter& in, Place place, const Value&, const Arguments& a) {
  constexpr std::int64_t kMostItems = 100'000;  // as Jinja's sandbox has it
  std::int64_t bounds[3] = {0, 0, 1};
  const std::size_t count = a.values[1].is_undefined() ? 1 : a.values[2].is_undefined() ? 2 : 3;
  for (std::size_t i = 0; i < count; ++i) {
    if (!a.values[i].is_integer())
      return in.Fail(place, fmt::format("range takes whole numbers, and no {}", TypeName(a.values[i])));
    bounds[count == 1 ? 1 : i] = a.values[i].integer();
  }
  if (bounds[2] == 0) return in.Fail(place, "the step of a range is 0");
  List list{.kind = Sequence::kRange};
  for (std::int64_t i = bounds[0]; bounds[2] > 0 ? i < bounds[1] : i > bounds[1];) {
    if (static_cast<std::int64_t>(list.items.size()) == kMostItems)
      return in.Fail(place, fmt::format("a range has at most {} numbers", kMostItems));
    list.Add(i);
    if (__builtin_add_overflow(i, bounds[2], &i)) break;
  }
  return in.MadeList(place, std::move(list));
}

// The entries of a dict and those by name.
bool Entries(Interpreter& in, Place place, const Arguments& a, Dict* dict) {
  if (a.values.size() > 1 || (a.values.size() == 1 && a.values[0].dict() == nullptr)) {
    in.Fail(place, "takes arguments by name, and before them at most one dict");
    return false;
  }
  if (!a.values.empty()) *dict = *a.values[0].dict();
  for (const auto& [name, value] : a.named) dict->Set(name, value);
  return true;
}

Value NamespaceOf(Interpreter& in, Place place, const Value&, const Arguments& a) {
  auto space = std::make_shared<Namespace>();
  if (!Entries(in, place, a, &space->attributes)) return {};
  for (const auto& [name, value] : space->attributes.entries)
    if (!value.is_data())
      return in.Fail(place, fmt::format("a namespace cannot hold a {} here", TypeName(value)));
  return Value(std::move(space));
}

Value DictOf(Interpreter& in, Place place, const Value&, const Arguments& a) {
  Dict dict;
  return Entries(in, place, a, &dict) ? in.MadeDict(place, std::move(dict)) : Value();
}

Value RaiseException(Interpreter& in, Place place, const Value&, const Arguments& a) {
  return in.Fail(place, fmt::format("the template says: {}", in.TextOf(place, a.values[0])));
}

Value StrftimeNow(Interpreter& in, Place place, const Value&, const Arguments& a) {
  const std::string* format = a.values[0].text();
  if (format == nullptr) return in.Fail(place, "strftime_now takes a format, as \"%d %b %Y\"");
  if (format->empty()) return Value("");
  if (format->size() > 1000) return in.Fail(place, "the format of strftime_now is longer than 1000 bytes");
  // A result may be empty, which strftime does not tell from one that has no room.
  std::string text(100 * format->size() + 2, '\0');
  const std::string marked = *format + "|";
  const std::size_t length = std::strftime(text.data(), text.size(), marked.c_str(), &in.options().now);
  if (length == 0) return in.Fail(place, "strftime_now does not know this format");
  text.resize(length - 1);
  return in.MadeText(place, std::move(text));
}

const std::vector<Builtin>& Functions() {
  static const std::vector<Builtin> functions = {
      {"range", {"start", "stop", "step"}, 1, RangeOf},
      {"namespace", {"*"}, 0, NamespaceOf},
      {"dict", {"*"}, 0, DictOf},
      {"raise_exception", {"message"}, 1, RaiseException},
      {"strftime_now", {"format"}, 1, StrftimeNow},
  };
  return functions;
}

}  // namespace

const Builtin* FindFunction(std::string_view name) {
  for (const Builtin& function : Functions())
    if (function.name == name) return &function;
  return nullptr;
}

bool IsFunction(std::string_view name) { return FindFunction(name) != nullptr; }

}  // namespace engine::jinja
