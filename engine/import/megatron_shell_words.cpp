#include "engine/import/megatron_shell_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "engine/import/megatron_shell_tokens.h"

namespace engine::import {
namespace {

constexpr const char* kHere = ".";  // what `pwd` prints, as a path from there

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

std::string Excerpt(const std::string& text) { return Shown(text, 60); }

// Collects fields. What comes from an unquoted expansion is split at white space.
class FieldCollector {
 public:
  FieldCollector(bool split, std::int64_t* budget) : split_(split), budget_(budget) {}

  void Add(char c, std::size_t where) {
    Begin(where);
    if (Spend(1)) current_.Append(c, where);
  }
  void Begin(std::size_t where) {
    if (!open_) current_.place = where;
    if (!open_) Spend(1);
    open_ = true;
  }
  void AddQuoted(const ShellText& text) {
    Begin(text.place);
    if (Spend(static_cast<std::int64_t>(text.text.size()))) current_.Append(text);
  }
  void AddSplit(const ShellText& text) {
    if (!split_) return AddQuoted(text);
    if (*budget_ < 0) return;
    for (std::size_t i = 0; i < text.text.size(); ++i) {
      if (IsSpace(text.text[i])) {
        End();
      } else {
        Add(text.text[i], text.places[i]);
      }
    }
    if (text.unknown.empty()) return;
    Begin(text.place);
    current_.unknown = text.unknown;
  }
  void Blank(char c, std::size_t where) {
    if (!split_) return Add(c, where);
    End();
  }
  void End() {
    if (open_) fields_.push_back(std::exchange(current_, {}));
    open_ = false;
  }
  std::vector<ShellText> Take() {
    End();
    return std::move(fields_);
  }

 private:
  bool Spend(std::int64_t bytes) {
    if (*budget_ >= 0) *budget_ -= bytes;
    if (*budget_ < 0) current_.unknown = "the expansions of this file are too long";
    return *budget_ >= 0;
  }

  bool split_;
  std::int64_t* budget_;
  bool open_ = false;
  ShellText current_;
  std::vector<ShellText> fields_;
};

// ${NAME[index]operator word}, as written between the braces.
struct Parameter {
  std::string name;
  std::string index;  // between the brackets
  bool length = false;
  std::size_t rest = 0;  // where the operator begins, in the text that it was read from
};

class Expander {
 public:
  Expander(const ShellText& in, ShellVariables* variables) : in_(in), text_(in.text), variables_(variables) {}

  void Expand(std::size_t begin, std::size_t end, bool quoted, FieldCollector* out) const {
    for (std::size_t i = begin; i < end;) {
      const char c = text_[i];
      const std::size_t place = in_.places[i];
      if (c == '\\') {
        i = Escape(i, end, quoted, out);
      } else if (c == '\'' && !quoted) {
        const std::size_t close = *EndOfSingleQuote(text_, i) - 1;
        out->Begin(place);
        for (std::size_t k = i + 1; k < close; ++k) out->Add(text_[k], in_.places[k]);
        i = close + 1;
      } else if (c == '"' && !quoted) {
        const std::size_t close = *EndOfDoubleQuote(text_, i) - 1;
        if (!IsWholeList(i + 1, close)) out->Begin(place);
        Expand(i + 1, close, true, out);
        i = close + 1;
      } else if (c == '`') {
        const std::size_t next = EndOfBackquote(text_, i).value_or(end);
        Put(CommandOutput(i, next), quoted, out);
        i = next;
      } else if (c == '$') {
        i = Dollar(i, end, quoted, out);
      } else {
        if (!quoted && IsSpace(c)) {
          out->Blank(c, place);  // of ${NAME:-two words}
        } else {
          out->Add(c, place);
        }
        ++i;
      }
    }
  }

 private:
  // "${A[@]}" alone in its quotes: no field at all where the array is empty.
  bool IsWholeList(std::size_t begin, std::size_t end) const {
    const std::string inside = text_.substr(begin, end - begin);
    if (inside == "$@") return true;
    return inside.size() > 6 && inside.rfind("${", 0) == 0 && inside.substr(inside.size() - 4) == "[@]}";
  }

  std::size_t Escape(std::size_t i, std::size_t end, bool quoted, FieldCollector* out) const {
    if (i + 1 >= end) {
      out->Add('\\', in_.places[i]);
      return i + 1;
    }
    const char next = text_[i + 1];
    if (next == '\n') return i + 2;
    if (next == '\r' && i + 2 < end && text_[i + 2] == '\n') return i + 3;
    if (quoted && std::string_view("$`\"\\").find(next) == std::string_view::npos) {
      out->Add('\\', in_.places[i]);
    }
    out->Add(next, in_.places[i + 1]);
    return i + 2;
  }

  // `…` or $(…)
  ShellText CommandOutput(std::size_t begin, std::size_t end) const {
    std::size_t first = begin + (text_[begin] == '$' ? 2 : 1);
    std::size_t last = end - 1;
    while (first < last && IsSpace(text_[first])) ++first;
    while (last > first && IsSpace(text_[last - 1])) --last;
    if (text_.substr(first, last - first) == "pwd" && !variables_->moved)
      return TextAt(kHere, in_.places[begin]);
    return UnknownAt(fmt::format("what {} prints is not known, as nothing is run",
                                 Excerpt(text_.substr(begin, end - begin))),
                     in_.places[begin]);
  }

  static void Put(const ShellText& value, bool quoted, FieldCollector* out) {
    if (quoted) {
      out->AddQuoted(value);
    } else {
      out->AddSplit(value);
    }
  }

  std::size_t Dollar(std::size_t i, std::size_t end, bool quoted, FieldCollector* out) const {
    const std::size_t next = std::min(EndOfDollar(text_, i).value_or(end), end);
    const std::size_t place = in_.places[i];
    if (next == i + 1) {
      if (next < end && text_[next] == '\'' && !quoted) {
        const std::size_t close = EndOfSingleQuote(text_, next).value_or(end);
        out->AddQuoted(UnknownAt("$'…' is not read", place));
        return close;
      }
      out->Add('$', place);
      return next;
    }
    if (text_[i + 1] == '(') {
      if (text_.compare(i, 3, "$((") == 0 && text_.compare(next - 2, 2, "))") == 0) {
        Put(EvaluateShellSum(in_.Substring(i + 3, next - 2), place, variables_), quoted, out);
      } else {
        Put(CommandOutput(i, next), quoted, out);
      }
      return next;
    }
    const bool braces = text_[i + 1] == '{';
    Parameter parameter;
    if (braces) {
      parameter = Parse(i + 2, next - 1);
    } else {
      parameter = {text_.substr(i + 1, next - i - 1), "", false, next};
    }
    PutParameter(parameter, braces ? next - 1 : next, place, quoted, out);
    return next;
  }

  Parameter Parse(std::size_t begin, std::size_t end) const {
    Parameter parameter;
    std::size_t i = begin;
    if (i + 1 < end && text_[i] == '#') {
      parameter.length = true;
      ++i;
    }
    std::size_t length = NameLength(text_, i);
    if (length == 0) {
      while (i + length < end && text_[i + length] >= '0' && text_[i + length] <= '9') ++length;
    }
    if (length == 0 && i < end) length = 1;
    parameter.name = text_.substr(i, length);
    i += length;
    if (i < end && text_[i] == '[') {
      const std::size_t close = text_.find(']', i);
      if (close != std::string::npos && close < end) {
        parameter.index = text_.substr(i + 1, close - i - 1);
        i = close + 1;
      }
    }
    parameter.rest = i;
    return parameter;
  }

  void PutParameter(const Parameter& parameter, std::size_t end, std::size_t place, bool quoted,
                    FieldCollector* out) const {
    const std::string rest = text_.substr(parameter.rest, end - parameter.rest);
    std::optional<std::vector<ShellText>> items = variables_->Find(parameter.name, place);
    if (parameter.length) {
      Put(Length(parameter, items, rest, place), quoted, out);
      return;
    }
    const bool list =
        parameter.index == "@" || parameter.index == "*" || parameter.name == "@" || parameter.name == "*";
    if (list && rest.empty()) {
      if (!items && parameter.name != "@" && parameter.name != "*") items = {{NotSet(parameter.name, place)}};
      if (parameter.name == "@") quoted = false;  // from outside, in one text
      PutList(items.value_or(std::vector<ShellText>{}), quoted && parameter.index != "*", quoted, out);
      return;
    }
    std::optional<ShellText> value;
    if (items) value = Item(parameter, *items, place);
    PutWithDefault(parameter, value, rest, end, place, quoted, out);
  }

  static void PutList(const std::vector<ShellText>& items, bool apart, bool quoted, FieldCollector* out) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0 && (apart || !quoted)) out->End();
      if (i > 0 && quoted && !apart) out->Add(' ', items[i].place);
      Put(items[i], quoted, out);
    }
  }

  static ShellText NotSet(const std::string& name, std::size_t place) {
    if (NameLength(name, 0) == 0) return UnknownAt(fmt::format("${} is not known", Excerpt(name)), place);
    return UnknownAt(fmt::format("{} is not set in this file", Excerpt(name)), place);
  }

  // ${#NAME}, ${#NAME[@]}
  static ShellText Length(const Parameter& parameter, const std::optional<std::vector<ShellText>>& items,
                          const std::string& rest, std::size_t place) {
    if (!items || !rest.empty()) return NotSet(parameter.name, place);
    if (parameter.index == "@" || parameter.index == "*") {
      return TextAt(fmt::format("{}", items->size()), place);
    }
    if (items->empty() || !items->front().unknown.empty()) return NotSet(parameter.name, place);
    return TextAt(fmt::format("{}", items->front().text.size()), place);
  }

  // One item: the first, or the one of the index.
  std::optional<ShellText> Item(const Parameter& parameter, const std::vector<ShellText>& items,
                                std::size_t place) const {
    std::int64_t index = 0;
    if (!parameter.index.empty()) {
      const ShellText at = EvaluateShellSum(TextAt(parameter.index, place), place, variables_);
      if (!at.unknown.empty()) return at;
      index = *ShellInteger(at.text);
    }
    const auto size = static_cast<std::int64_t>(items.size());
    if (index < 0) index += size;
    if (index < 0 || index >= size) return std::nullopt;
    return items[static_cast<std::size_t>(index)];
  }

  // The value, or what ${NAME:-word} and its like make of it.
  void PutWithDefault(const Parameter& parameter, const std::optional<ShellText>& value,
                      const std::string& rest, std::size_t end, std::size_t place, bool quoted,
                      FieldCollector* out) const {
    if (rest.empty()) {
      Put(value ? *value : NotSet(parameter.name, place), quoted, out);
      return;
    }
    const bool colon = rest[0] == ':';
    const char op = rest.size() > (colon ? 1U : 0U) ? rest[colon ? 1 : 0] : '\0';
    const std::size_t word = parameter.rest + (colon ? 2 : 1);
    const bool unknown = value && !value->unknown.empty();
    const bool has = value && (unknown || !colon || !value->text.empty());
    if ((op == '-' || op == '=' || op == '+' || op == '?') && (!unknown || op == '?')) {
      if (op == '?' || ((op == '-' || op == '=') && has)) {
        Put(has ? *value : NotSet(parameter.name, place), quoted, out);
      } else if (op != '+' || has) {
        if (op == '=') variables_->values[parameter.name] = {ExpandToValue(in_, word, end, variables_)};
        Expand(word, end, quoted, out);
      }
      return;
    }
    if (unknown) {
      Put(*value, quoted, out);
      return;
    }
    Put(UnknownAt(fmt::format("${{{}{}}} is not evaluated", parameter.name, Excerpt(rest)), place), quoted,
        out);
  }

  const ShellText& in_;
  const std::string& text_;
  ShellVariables* variables_;
};

// a + b * (c - d), integers and names; recursive descent.
class Sum {
 public:
  Sum(const ShellText& in, std::size_t place, ShellVariables* variables)
      : text_(in.text), place_(place), variables_(variables) {}

  ShellText Evaluate() {
    const std::optional<std::int64_t> value = Terms();
    Blanks();
    if (value && at_ == text_.size()) return TextAt(fmt::format("{}", *value), place_);
    if (why_.empty()) why_ = fmt::format("the sum {} is not evaluated", Excerpt(text_));
    return UnknownAt(why_, place_);
  }

 private:
  using Value = std::optional<std::int64_t>;

  void Blanks() {
    while (at_ < text_.size() && IsSpace(text_[at_])) ++at_;
  }
  bool Take(std::string_view op) {
    Blanks();
    if (text_.compare(at_, op.size(), op) != 0) return false;
    at_ += op.size();
    return true;
  }

  Value Terms() {
    Value left = Factors();
    while (left) {
      std::int64_t result = 0;
      if (Take("+")) {
        const Value right = Factors();
        if (!right || __builtin_add_overflow(*left, *right, &result)) return std::nullopt;
      } else if (Take("-")) {
        const Value right = Factors();
        if (!right || __builtin_sub_overflow(*left, *right, &result)) return std::nullopt;
      } else {
        return left;
      }
      left = result;
    }
    return left;
  }

  Value Factors() {
    Value left = Atom();
    while (left) {
      std::int64_t result = 0;
      if (Take("**")) return std::nullopt;
      if (Take("*")) {
        const Value right = Atom();
        if (!right || __builtin_mul_overflow(*left, *right, &result)) return std::nullopt;
      } else if (Take("/")) {
        const Value right = Atom();
        if (!Divides(*left, right)) return std::nullopt;
        result = *left / *right;
      } else if (Take("%")) {
        const Value right = Atom();
        if (!Divides(*left, right)) return std::nullopt;
        result = *left % *right;
      } else {
        return left;
      }
      left = result;
    }
    return left;
  }

  bool Divides(std::int64_t left, const Value& right) {
    if (!right) return false;
    if (*right == 0) why_ = fmt::format("the sum {} divides by 0", Excerpt(text_));
    return *right != 0 && !(*right == -1 && left == INT64_MIN);
  }

  Value Atom() {
    if (++depth_ > kMaxShellNesting) return std::nullopt;
    Value value;
    if (Take("-")) {
      value = Atom();
      if (value && *value != INT64_MIN) value = -*value;
    } else if (Take("(")) {
      value = Terms();
      if (!Take(")")) value.reset();
    } else {
      Blanks();
      std::size_t end = at_;
      while (end < text_.size() && IsNameByte(text_[end])) ++end;
      const std::string word = text_.substr(at_, end - at_);
      at_ = end;
      value = !word.empty() && IsNameStart(word[0]) ? OfVariable(word) : ShellInteger(word);
    }
    --depth_;
    return value;
  }

  Value OfVariable(const std::string& name) {
    const std::optional<std::vector<ShellText>> items = variables_->Find(name, place_);
    if (!items || items->empty()) {
      why_ = fmt::format("{} is not set in this file", name);
      return std::nullopt;
    }
    if (!items->front().unknown.empty()) {
      why_ = items->front().unknown;
      return std::nullopt;
    }
    return ShellInteger(items->front().text);
  }

  std::string text_;
  std::size_t place_;
  ShellVariables* variables_;
  std::size_t at_ = 0;
  int depth_ = 0;
  std::string why_;
};

}  // namespace

void ShellText::Append(char c, std::size_t where) {
  if (text.empty() && unknown.empty()) place = where;
  text += c;
  places.push_back(where);
}

void ShellText::Append(const ShellText& other) {
  if (text.empty() && unknown.empty()) place = other.place;
  text += other.text;
  places.insert(places.end(), other.places.begin(), other.places.end());
  if (unknown.empty()) unknown = other.unknown;
}

ShellText ShellText::Substring(std::size_t begin, std::size_t end) const {
  ShellText part;
  part.text = text.substr(begin, end - begin);
  part.places.assign(places.begin() + static_cast<std::ptrdiff_t>(begin),
                     places.begin() + static_cast<std::ptrdiff_t>(begin + part.text.size()));
  part.place = part.places.empty() ? place : part.places.front();
  part.unknown = unknown;
  return part;
}

ShellText TextAt(const std::string& text, std::size_t place) {
  return {text, std::vector<std::size_t>(text.size(), place), place, ""};
}

ShellText UnknownAt(const std::string& reason, std::size_t place) { return {"", {}, place, reason}; }

std::optional<std::vector<ShellText>> ShellVariables::Find(const std::string& name, std::size_t place) {
  read.insert(name);
  if (chosen.contains(name)) taken.insert(name);
  if (const auto found = values.find(name); found != values.end()) return found->second;
  for (const std::map<std::string, std::string>* given : {&chosen, &outside}) {
    const auto found = given->find(name);
    if (found != given->end()) return std::vector<ShellText>{TextAt(found->second, place)};
  }
  if (name == "PWD" && !moved) return std::vector<ShellText>{TextAt(kHere, place)};
  return std::nullopt;
}

void ShellVariables::Assign(const std::string& name, std::vector<ShellText> items) {
  const auto is_unknown = [](const ShellText& item) { return !item.unknown.empty(); };
  const bool unknown = std::any_of(items.begin(), items.end(), is_unknown);
  if (unknown && chosen.contains(name)) return;
  values[name] = std::move(items);
}

std::vector<ShellText> ExpandToFields(const ShellText& in, std::size_t begin, std::size_t end,
                                      ShellVariables* variables) {
  FieldCollector fields(true, &variables->budget);
  Expander(in, variables).Expand(begin, end, false, &fields);
  return fields.Take();
}

ShellText ExpandToValue(const ShellText& in, std::size_t begin, std::size_t end, ShellVariables* variables) {
  FieldCollector fields(false, &variables->budget);
  Expander(in, variables).Expand(begin, end, false, &fields);
  std::vector<ShellText> list = fields.Take();
  if (list.empty()) return TextAt("", begin < in.places.size() ? in.places[begin] : in.place);
  ShellText value = std::move(list.front());
  for (std::size_t i = 1; i < list.size(); ++i) {  // of a list of several items
    value.Append(' ', list[i].place);
    value.Append(list[i]);
  }
  return value;
}

ShellText EvaluateShellSum(const ShellText& expression, std::size_t place, ShellVariables* variables) {
  if (!expression.unknown.empty()) return UnknownAt(expression.unknown, place);
  const ShellText plain = ExpandToValue(expression, 0, expression.text.size(), variables);
  if (!plain.unknown.empty()) return UnknownAt(plain.unknown, place);
  return Sum(plain, place, variables).Evaluate();
}

std::optional<std::int64_t> ShellInteger(const std::string& text) {
  std::size_t at = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  if (at == text.size()) return std::nullopt;
  std::int64_t value = 0;
  for (; at < text.size(); ++at) {
    if (text[at] < '0' || text[at] > '9') return std::nullopt;
    if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, text[at] - '0', &value)) {
      return std::nullopt;
    }
  }
  return text[0] == '-' ? -value : value;
}

bool IsOneOf(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::string ShellFileName(const std::string& path) { return std::filesystem::path(path).filename().string(); }

}  // namespace engine::import
