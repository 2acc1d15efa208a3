#include "engine/import/megatron_shell_command.h"

#include <fmt/format.h>

#include <cstddef>
#include <utility>

#include "engine/import/megatron_shell_words.h"

namespace engine::import {
namespace {

// Reads one command: its assignments are carried out at once, so that later words see them; those of export
// and its like only at the end, as export expands all its words first.
class CommandReader {
 public:
  CommandReader(ShellChance chance, std::string why, ShellCursor* cursor, ShellState* state)
      : cursor_(*cursor), state_(*state) {
    command_.chance = chance;
    command_.why = std::move(why);
  }

  ShellSimpleCommand Read() {
    const std::size_t first = cursor_.at();
    for (; cursor_.More() && !cursor_.IsNewline() && !state_.Stopped(); cursor_.Next()) {
      if (!cursor_.IsOperator()) {
        Word();
      } else if (!Operator()) {
        break;
      }
    }
    if (cursor_.at() == first) cursor_.Next();
    Carry();
    return std::move(command_);
  }

 private:
  // False: the command ends before it.
  bool Operator() {
    if (test_ && !cursor_.IsOperator(";")) {  // [[ a && b ]], [[ a < b ]]
      Connective();
      return true;
    }
    if (!cursor_.IsRedirection()) return false;
    cursor_.Next();  // its file
    return cursor_.More();
  }

  // An operator within [[ ]], and the line ends that may follow it.
  void Connective() {
    const bool is_followed = cursor_.IsOperator("&&") || cursor_.IsOperator("||");
    if (is_followed) command_.connectives.push_back(command_.words.size());
    command_.words.push_back(
        is_followed
            ? TextAt(cursor_.Text(), cursor_.Place())
            : UnknownAt(fmt::format("{} within [[ ]] is not followed", cursor_.Text()), cursor_.Place()));
    while (cursor_.Following() != nullptr && cursor_.Following()->kind == ShellToken::Kind::kNewline)
      cursor_.Next();
  }

  void Word() {
    std::vector<ShellText>& words = command_.words;
    if (!test_ && cursor_.IsDescriptor()) return;
    if ((words.empty() || declares_) && Assignment()) {
      command_.assigned = true;
      if (!declares_) Carry();
      return;
    }
    // Within [[ ]] a word is one, also where it is empty or has blanks.
    std::vector<ShellText> fields = test_ ? std::vector<ShellText>{Value()} : Fields();
    if (words.empty() && !fields.empty()) {
      declares_ = IsOneOf(fields[0].text, {"export", "declare", "local", "readonly", "typeset"});
      test_ = cursor_.Text() == "[[";
    }
    if (test_ && cursor_.Text() == "]]") test_ = false;
    for (ShellText& field : fields) words.push_back(std::move(field));
  }

  std::vector<ShellText> Fields() {
    const ShellToken& token = cursor_.Token();
    return ExpandToFields(cursor_.in(), token.begin, token.end, &state_.variables);
  }

  ShellText Value() {
    const ShellToken& token = cursor_.Token();
    return ExpandToValue(cursor_.in(), token.begin, token.end, &state_.variables);
  }

  // NAME=value, NAME+=value, NAME=( … ). The last token of it becomes the current one.
  bool Assignment() {
    const ShellToken token = cursor_.Token();
    const std::string& text = cursor_.in().text;
    const std::size_t name_length = NameLength(text, token.begin);
    std::size_t i = token.begin + name_length;
    if (name_length == 0 || i >= token.end) return false;
    const std::string name = text.substr(token.begin, name_length);
    const bool append = text[i] == '+';
    if (append) ++i;
    if (i >= token.end || text[i] != '=') return false;
    ++i;
    const std::size_t place = cursor_.Place();
    ShellVariables& variables = state_.variables;
    variables.read.erase(name);
    const bool array = i == token.end && cursor_.TouchesParenthesis();
    std::vector<ShellText> items;
    if (array) {
      items = Items(place);
    } else {
      items.push_back(ExpandToValue(cursor_.in(), i, token.end, &variables));
    }
    if (append) items = Appended(name, std::move(items), array, place);
    if (command_.chance == ShellChance::kNever) return true;
    if (variables.chosen.contains(name) && !variables.read.contains(name)) return true;
    if (command_.chance == ShellChance::kPerhaps) {
      items = {UnknownAt(
          fmt::format("{} is set under a condition, in a loop or in a function{}", name, command_.why),
          place)};
    }
    assignments_.emplace_back(name, std::move(items));
    return true;
  }

  std::vector<ShellText> Appended(const std::string& name, std::vector<ShellText> items, bool array,
                                  std::size_t place) {
    std::vector<ShellText> all = state_.variables.Find(name, place).value_or(std::vector<ShellText>{});
    if (array) {
      all.insert(all.end(), items.begin(), items.end());
    } else if (all.empty()) {
      all = std::move(items);
    } else {
      all.front().Append(items.front());
    }
    return all;
  }

  // ( … ) of an array; the current token becomes its last.
  std::vector<ShellText> Items(std::size_t place) {
    std::vector<ShellText> items;
    cursor_.Next();  // the name
    for (cursor_.Next(); cursor_.More() && !cursor_.IsOperator(")"); cursor_.Next()) {
      if (cursor_.IsNewline()) continue;
      if (cursor_.IsOperator()) {
        state_.Fail(cursor_.Place(), fmt::format("an array's item cannot be {}", cursor_.Text()));
        return items;
      }
      for (ShellText& field : Fields()) items.push_back(std::move(field));
    }
    if (!cursor_.More()) state_.Fail(place, "this array is never closed");
    return items;
  }

  void Carry() {
    for (auto& [name, items] : assignments_) state_.variables.Assign(name, std::move(items));
    assignments_.clear();
  }

  ShellCursor& cursor_;
  ShellState& state_;
  ShellSimpleCommand command_;
  std::vector<std::pair<std::string, std::vector<ShellText>>> assignments_;  // not carried out yet
  bool declares_ = false;  // its first word is export, or one like it
  bool test_ = false;      // inside of [[ ]]
};

}  // namespace

ShellSimpleCommand ReadShellCommand(ShellChance chance, std::string why, ShellCursor* cursor,
                                    ShellState* state) {
  return CommandReader(chance, std::move(why), cursor, state).Read();
}

}  // namespace engine::import
