// Methods of strings, lists and dicts: those of Python that change nothing.
#include <fmt/format.h>

#include <algorithm>

#include "engine/data/jinja/interpreter.h"
#include "engine/data/jinja/text.h"

namespace engine::jinja {
namespace {

const std::string& Self(const Value& self) { return *self.text(); }

bool IsGiven(const Value& value) { return !value.is_undefined() && !value.is_none(); }

Value WrongType(Interpreter& in, Place place, std::string_view what, const Value& value,
                std::string_view expected) {
  return in.Fail(place, fmt::format("{} is a {}, and must be {}", what, TypeName(value), expected));
}

Value TextList(Interpreter& in, Place place, const std::vector<std::string_view>& texts,
               Sequence kind = Sequence::kList) {
  List list{.kind = kind};
  if (!in.Spend(place, texts.size())) return {};
  for (const std::string_view text : texts) list.Add(Value(std::string(text)));
  return in.MadeList(place, std::move(list));
}

template <bool kLeft, bool kRight>
Value StripOf(Interpreter& in, Place place, const Value& self, const Arguments& a) {
  if (IsGiven(a.values[0]) && a.values[0].text() == nullptr)
    return WrongType(in, place, "what is stripped", a.values[0], "a string");
  if (!in.Spend(place, a.values[0].text() == nullptr ? 1 : a.values[0].text()->size())) return {};
  return in.MadeText(place, std::string(Strip(Self(self), a.values[0].text(), kLeft, kRight)));
}

template <bool kFromRight>
Value SplitOf(Interpreter& in, Place place, const Value& self, const Arguments& a) {
  std::int64_t most = -1;
  if (!a.values[1].is_undefined()) {
    if (!a.values[1].is_integer())
      return WrongType(in, place, "the number of splits", a.values[1], "a whole number");
    most = a.values[1].integer();
  }
  if (!in.Spend(place, Self(self).size() / 8)) return {};
  if (!IsGiven(a.values[0])) return TextList(in, place, SplitAtSpace(Self(self), most, kFromRight));
  const std::string* separator = a.values[0].text();
  if (separator == nullptr) return WrongType(in, place, "the separator", a.values[0], "a string");
  if (separator->empty()) return in.Fail(place, "the separator of a split is empty");
  return TextList(in, place, SplitAt(Self(self), *separator, most, kFromRight));
}

Value SplitLinesOf(Interpreter& in, Place place, const Value& self, const Arguments&) {
  return TextList(in, place, SplitLines(Self(self)));
}

// Whether one string fits, or any of a tuple of them.
template <bool kEnd>
Value AffixOf(Interpreter& in, Place place, const Value& self, const Arguments& a) {
  const auto holds = [&](const Value& affix) {
    return affix.text() != nullptr &&
           (kEnd ? Self(self).ends_with(*affix.text()) : Self(self).starts_with(*affix.text()));
  };
  const List* list = a.values[0].list();
  if (list != nullptr && list->kind == Sequence::kTuple)
    return std::any_of(list->items.begin(), list->items.end(), holds);
  if (a.values[0].text() == nullptr)
    return WrongType(in, place, "what the text is compared with", a.values[0],
                     "a string or a tuple of strings");
  return holds(a.values[0]);
}

Value ReplaceOf(Interpreter& in, Place place, const Value& self, const Arguments& a) {
  if (a.values[0].text() == nullptr || a.values[1].text() == nullptr)
    return WrongType(in, place, "what is replaced", a.values[a.values[0].text() == nullptr ? 0 : 1],
                     "a string");
  std::int64_t most = -1;
  if (!a.values[2].is_undefined()) {
    if (!a.values[2].is_integer()) return WrongType(in, place, "the count", a.values[2], "a whole number");
    most = a.values[2].integer();
  }
  std::string text;
  Replace(Self(self), *a.values[0].text(), *a.values[1].text(), most, in.most_bytes(), &text);
  return in.MadeText(place, std::move(text));
}

template <std::string (*kChange)(std::string_view)>
Value CaseOf(Interpreter& in, Place place, const Value& self, const Arguments&) {
  return ChangedCase(in, place, Self(self), kChange);
}

// The place, counted in code points; -1: it is not there.
template <bool kFromRight>
Value FindOf(Interpreter& in, Place place, const Value& self, const Arguments& a) {
  const std::string* part = a.values[0].text();
  if (part == nullptr) return WrongType(in, place, "what is looked for", a.values[0], "a string");
  if (!in.Spend(place, Self(self).size() / 64)) return {};
  const std::size_t at = kFromRight ? Self(self).rfind(*part) : Self(self).find(*part);
  return at == std::string::npos ? std::int64_t{-1} : CodePoints(std::string_view(Self(self)).substr(0, at));
}

Value CountOf(Interpreter& in, Place place, const Value& self, const Arguments& a) {
  const std::string* part = a.values[0].text();
  if (part == nullptr) return WrongType(in, place, "what is counted", a.values[0], "a string");
  if (!in.Spend(place, Self(self).size() / 8)) return {};
  if (part->empty()) return CodePoints(Self(self)) + 1;
  return static_cast<std::int64_t>(SplitAt(Self(self), *part, -1, false).size()) - 1;
}

Value JoinOf(Interpreter& in, Place place, const Value& self, const Arguments& a) {
  std::string text;
  bool is_first = true;
  for (const Value& item : in.ItemsOf(place, a.values[0])) {
    if (item.text() == nullptr) return WrongType(in, place, "an item that is joined", item, "a string");
    if (!is_first) text += Self(self);
    text += *item.text();
    is_first = false;
    if (text.size() > in.most_bytes()) break;
  }
  return in.MadeText(place, std::move(text));
}

// Where all characters, of which there must be one, are so; of letters and digits of ASCII alone.
template <bool (*kHolds)(char)>
Value AllOf(Interpreter& in, Place place, const Value& self, const Arguments&) {
  if (!IsAscii(Self(self)))
    return in.Fail(place, "whether characters that are not ASCII are letters or digits is not told here");
  return !Self(self).empty() && std::all_of(Self(self).begin(), Self(self).end(), kHolds);
}
bool IsDigitCharacter(char c) { return c >= '0' && c <= '9'; }
bool IsLetterCharacter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool IsLetterOrDigit(char c) { return IsDigitCharacter(c) || IsLetterCharacter(c); }

Value IsSpaceOf(Interpreter&, Place, const Value& self, const Arguments&) {
  return !Self(self).empty() && Strip(Self(self), nullptr, true, false).empty();
}

template <bool kEnd>
Value RemovedAffixOf(Interpreter& in, Place place, const Value& self, const Arguments& a) {
  const std::string* affix = a.values[0].text();
  if (affix == nullptr) return WrongType(in, place, "what is removed", a.values[0], "a string");
  std::string text = Self(self);
  if (!affix->empty() && (kEnd ? text.ends_with(*affix) : text.starts_with(*affix)))
    text.erase(kEnd ? text.size() - affix->size() : 0, affix->size());
  return in.MadeText(place, std::move(text));
}

template <bool kFromRight>
Value PartitionOf(Interpreter& in, Place place, const Value& self, const Arguments& a) {
  const std::string* separator = a.values[0].text();
  if (separator == nullptr || separator->empty())
    return in.Fail(place, "the separator must be a string that is not empty");
  const std::string_view text = Self(self);
  const std::size_t at = kFromRight ? text.rfind(*separator) : text.find(*separator);
  if (at != std::string_view::npos)
    return TextList(in, place, {text.substr(0, at), *separator, text.substr(at + separator->size())},
                    Sequence::kTuple);
  return kFromRight ? TextList(in, place, {"", "", text}, Sequence::kTuple)
                    : TextList(in, place, {text, "", ""}, Sequence::kTuple);
}

Value GetOf(Interpreter&, Place, const Value& self, const Arguments& a) {
  const Value* found = a.values[0].text() == nullptr ? nullptr : self.dict()->Find(*a.values[0].text());
  if (found != nullptr) return *found;
  return a.values[1].is_undefined() ? Value(None{}) : a.values[1];
}

Value ItemsOfDict(Interpreter& in, Place place, const Value& self, const Arguments&) {
  List items{.kind = Sequence::kView};
  for (const auto& [key, value] : self.dict()->entries) {
    List pair{.kind = Sequence::kTuple};
    pair.Add(Value(key));
    pair.Add(value);
    items.Add(Value(std::move(pair)));
  }
  return in.MadeList(place, std::move(items));
}

template <bool kKeys>
Value HalfOfDict(Interpreter& in, Place place, const Value& self, const Arguments&) {
  List items{.kind = Sequence::kView};
  for (const auto& [key, value] : self.dict()->entries) items.Add(kKeys ? Value(key) : value);
  return in.MadeList(place, std::move(items));
}

Value IndexOfItem(Interpreter& in, Place place, const Value& self, const Arguments& a) {
  const auto& items = self.list()->items;
  if (!in.Spend(place, items.size())) return {};
  const auto found = std::find_if(items.begin(), items.end(),
                                  [&](const Value& item) { return AreEqual(item, a.values[0]); });
  if (found == items.end()) return in.Fail(place, "the list does not hold what \"index\" looks for");
  return static_cast<std::int64_t>(found - items.begin());
}

Value CountOfItem(Interpreter& in, Place place, const Value& self, const Arguments& a) {
  const auto& items = self.list()->items;
  if (!in.Spend(place, items.size())) return {};
  return static_cast<std::int64_t>(std::count_if(
      items.begin(), items.end(), [&](const Value& item) { return AreEqual(item, a.values[0]); }));
}

Value CycleOf(Interpreter& in, Place place, const Value& self, const Arguments& a) {
  if (a.values.empty()) return in.Fail(place, "loop.cycle needs values");
  return a.values[self.loop()->index % a.values.size()];
}

Value ChangedOf(Interpreter& in, Place place, const Value& self, const Arguments& a) {
  Loop& loop = *self.loop();
  List asked{.kind = Sequence::kTuple, .items = a.values};
  const Value now = in.MadeList(place, std::move(asked));
  const bool changed = !loop.asked || !AreEqual(loop.last_asked, now);
  loop.asked = true;
  loop.last_asked = now;
  return changed;
}

using Table = std::vector<Builtin>;

const Table& TextMethods() {
  static const Table methods = {
      {"strip", {"chars"}, 0, StripOf<true, true>},
      {"lstrip", {"chars"}, 0, StripOf<true, false>},
      {"rstrip", {"chars"}, 0, StripOf<false, true>},
      {"split", {"sep", "maxsplit"}, 0, SplitOf<false>},
      {"rsplit", {"sep", "maxsplit"}, 0, SplitOf<true>},
      {"splitlines", {}, 0, SplitLinesOf},
      {"startswith", {"prefix"}, 1, AffixOf<false>},
      {"endswith", {"suffix"}, 1, AffixOf<true>},
      {"replace", {"old", "new", "count"}, 2, ReplaceOf},
      {"upper", {}, 0, CaseOf<Upper>},
      {"lower", {}, 0, CaseOf<Lower>},
      {"title", {}, 0, CaseOf<Title>},
      {"capitalize", {}, 0, CaseOf<Capitalize>},
      {"find", {"sub"}, 1, FindOf<false>},
      {"rfind", {"sub"}, 1, FindOf<true>},
      {"count", {"sub"}, 1, CountOf},
      {"join", {"iterable"}, 1, JoinOf},
      {"isdigit", {}, 0, AllOf<IsDigitCharacter>},
      {"isalpha", {}, 0, AllOf<IsLetterCharacter>},
      {"isalnum", {}, 0, AllOf<IsLetterOrDigit>},
      {"isspace", {}, 0, IsSpaceOf},
      {"removeprefix", {"prefix"}, 1, RemovedAffixOf<false>},
      {"removesuffix", {"suffix"}, 1, RemovedAffixOf<true>},
      {"partition", {"sep"}, 1, PartitionOf<false>},
      {"rpartition", {"sep"}, 1, PartitionOf<true>},
  };
  return methods;
}

const Table& DictMethods() {
  static const Table methods = {
      {"get", {"key", "default"}, 1, GetOf},
      {"items", {}, 0, ItemsOfDict},
      {"keys", {}, 0, HalfOfDict<true>},
      {"values", {}, 0, HalfOfDict<false>},
  };
  return methods;
}

const Table& ListMethods() {
  static const Table methods = {{"index", {"value"}, 1, IndexOfItem}, {"count", {"value"}, 1, CountOfItem}};
  return methods;
}

const Table& LoopMethods() {
  static const Table methods = {{"cycle", {"*"}, 0, CycleOf}, {"changed", {"*"}, 0, ChangedOf}};
  return methods;
}

// Python's other methods: they are told from members of that name, and refused when they are called.
constexpr std::string_view kOtherTextMethods[] = {
    "casefold",  "center",       "encode",  "expandtabs", "format",      "format_map", "index",   "isascii",
    "isdecimal", "isidentifier", "islower", "isnumeric",  "isprintable", "istitle",    "isupper", "ljust",
    "maketrans", "rindex",       "rjust",   "swapcase",   "translate",   "zfill"};
constexpr std::string_view kOtherDictMethods[] = {"clear",   "copy",       "fromkeys", "pop",
                                                  "popitem", "setdefault", "update"};
constexpr std::string_view kOtherListMethods[] = {"append", "clear",  "copy",    "extend", "insert",
                                                  "pop",    "remove", "reverse", "sort"};

template <std::size_t kSize>
bool IsAmong(const std::string_view (&names)[kSize], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

}  // namespace

Value ChangedCase(Interpreter& in, Place place, const std::string& text,
                  std::string (*change)(std::string_view)) {
  if (!IsAscii(text)) return in.Fail(place, "the case of letters that are not ASCII is not changed here");
  return in.MadeText(place, change(text));
}

const Builtin* FindMethod(const Value& of, std::string_view name, bool* is_known) {
  const Table* table = nullptr;
  if (of.text() != nullptr) {
    table = &TextMethods();
    *is_known = IsAmong(kOtherTextMethods, name);
  } else if (of.dict() != nullptr) {
    table = &DictMethods();
    *is_known = IsAmong(kOtherDictMethods, name);
  } else if (const List* list = of.list();
             list != nullptr && list->kind != Sequence::kGenerator && list->kind != Sequence::kView) {
    table = &ListMethods();
    *is_known = list->kind == Sequence::kList && IsAmong(kOtherListMethods, name);
  } else if (of.loop() != nullptr) {
    table = &LoopMethods();
  }
  if (table == nullptr) return nullptr;
  for (const Builtin& method : *table)
    if (method.name == name) return &method;
  return nullptr;
}

}  // namespace engine::jinja
