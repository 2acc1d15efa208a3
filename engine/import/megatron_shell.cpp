#include "engine/import/megatron_shell.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/import/megatron_shell_command.h"
#include "engine/import/megatron_shell_conditions.h"
#include "engine/import/megatron_shell_cursor.h"
#include "engine/import/megatron_shell_execute.h"
#include "engine/import/megatron_shell_state.h"
#include "engine/import/megatron_shell_tokens.h"
#include "engine/import/megatron_shell_words.h"

namespace engine::import {
namespace {

using Kind = ShellFrame::Kind;

// Walks one text, of the file or of a `bash -c` inside of it, statement by statement: keywords and operators
// change the conditions, under which the commands between them are read and executed.
class Walker {
 public:
  Walker(const ShellText& in, std::vector<ShellText> outer, ShellChance chance, std::string function,
         ShellState* state)
      : cursor_(in),
        conditions_(chance),
        outer_(std::move(outer)),
        function_(std::move(function)),
        state_(*state) {}

  void Run() {
    const ShellText& in = cursor_.in();
    if (in.text.empty()) return;
    if (++state_.texts > kMaxShellNesting) return state_.Fail(in.place, "texts are nested too deeply");
    if (std::optional<ShellError> error = cursor_.Begin()) state_.error = std::move(error);
    while (!state_.Stopped() && cursor_.More()) Statement();
    const ShellFrame* open = conditions_.Innermost();
    if (!state_.Stopped() && open != nullptr) {
      state_.Fail(open->place, "what begins here has no end in this file");
    }
    --state_.texts;
  }

 private:
  // One command with all before it, up to and with the operator behind it.
  void Statement() {
    if (cursor_.IsNewline() || cursor_.IsOperator(";") || cursor_.IsOperator("&")) {
      conditions_.Unlink();
      return cursor_.Next();
    }
    if (cursor_.IsOperator(";;")) return EndOfBranch();
    if (IsOneOf(cursor_.Text(), {"&&", "||", "|", "|&"}) && cursor_.IsOperator()) {
      conditions_.Link(cursor_.IsOperator("|&") ? "|" : cursor_.Text());
      cursor_.Next();
      return cursor_.SkipNewlines();
    }
    if (cursor_.IsOperator("(")) return Parentheses();
    if (cursor_.IsOperator() && !cursor_.IsRedirection()) {
      return state_.Fail(cursor_.Place(), fmt::format("no command may begin with {}", cursor_.Text()));
    }
    if (cursor_.IsWord() && Keyword(cursor_.Text())) return;
    Command();
  }

  // ( … ) and (( … )), whose effects are not followed.
  void Parentheses() {
    if (!cursor_.TouchesParenthesis()) {
      return state_.Fail(cursor_.Place(), "commands in ( ) are not read; write them without");
    }
    int depth = 0;
    do {
      if (cursor_.IsOperator("(")) ++depth;
      if (cursor_.IsOperator(")")) --depth;
      cursor_.Next();
    } while (cursor_.More() && depth > 0);
    conditions_.ForgetStatus();
  }

  // False: the current word is none, and begins a command.
  bool Keyword(const std::string& word) {
    if (word == "case") {
      Case();
      return true;
    }
    if (IsOneOf(word, {"!", "time"})) {
      negated_ = negated_ || word == "!";
      cursor_.Next();
      return true;
    }
    if (IsOneOf(word, {"then", "elif", "else", "do", "fi", "done", "esac", "}"})) {
      Continue(word);
    } else if (!Begin(word)) {
      return false;
    }
    conditions_.Unlink();
    cursor_.Next();
    return true;
  }

  // A keyword with which something begins; a token of it that is not read further becomes the current one.
  bool Begin(const std::string& word) {
    const std::size_t place = cursor_.Place();
    if (word == "if") {
      Open(Kind::kIf, place);
    } else if (IsOneOf(word, {"while", "until"})) {
      Open(Kind::kLoop, place);
    } else if (IsOneOf(word, {"for", "select"})) {
      For(place);
    } else if (word == "{") {
      Open(Kind::kGroup, place);
    } else if (word == "function") {
      cursor_.Next();  // its name
      Function(place);
    } else if (cursor_.IsFunctionDefinition()) {
      Function(place);
    } else {
      return false;
    }
    return true;
  }

  // A keyword of what has begun.
  void Continue(const std::string& word) {
    bool begun = false;
    if (word == "do") {
      begun = conditions_.IsIn(Kind::kLoop);
    } else if (IsOneOf(word, {"then", "elif", "else"})) {
      begun = conditions_.IsIn(Kind::kIf);
      if (begun && word == "then") conditions_.Then();
      if (begun && word != "then") conditions_.Else();
    } else {
      begun = conditions_.Close(word);
    }
    if (!begun) state_.Fail(cursor_.Place(), fmt::format("`{}` has no beginning", word));
  }

  void Open(Kind kind, std::size_t place, ShellText subject = {}) {
    if (!conditions_.Open(kind, place, std::move(subject))) {
      state_.Fail(place, "commands are nested too deeply");
    }
  }

  void For(std::size_t place) {
    const ShellToken* name = cursor_.Following();
    if (name != nullptr && NameLength(cursor_.in().text, name->begin) > 0) {
      state_.variables.Assign(cursor_.TextOf(*name), {UnknownAt("a loop's variable is not followed", place)});
    }
    Open(Kind::kLoop, place);
    cursor_.SkipToWord("do");
  }

  // name() { … }: its body runs when it is called, which is not followed.
  void Function(std::size_t place) {
    ShellText name = cursor_.More() ? TextAt(cursor_.Text(), place) : ShellText();
    cursor_.SkipToWord("{");
    Open(Kind::kFunction, place, std::move(name));
  }

  void Case() {
    const std::size_t place = cursor_.Place();
    cursor_.Next();
    if (!cursor_.IsWord()) return state_.Fail(place, "`case` has no word");
    Open(Kind::kCase, place, Value());
    if (state_.Stopped()) return;
    cursor_.Next();
    cursor_.SkipNewlines();
    if (!cursor_.IsWord("in")) return state_.Fail(place, "`case` has no `in`");
    cursor_.Next();
    Patterns();
  }

  void EndOfBranch() {
    if (!conditions_.IsIn(Kind::kCase)) return state_.Fail(cursor_.Place(), "`;;` is outside of a `case`");
    cursor_.Next();
    Patterns();
  }

  // a | b ) of a case; which branch it is when the subject is known, and the patterns are words or *.
  void Patterns() {
    cursor_.SkipNewlines();
    if (cursor_.IsWord("esac") || !cursor_.More()) return;
    const ShellText& subject = conditions_.Innermost()->subject;
    ShellOutcome match{false, conditions_.last().why};
    for (; cursor_.More() && !cursor_.IsOperator(")"); cursor_.Next()) {
      if (!cursor_.IsWord()) continue;
      const std::string raw = cursor_.Text();
      const ShellText pattern = Value();
      const bool open = raw.find_first_of("*?[") != std::string::npos;
      const bool known = !open && pattern.unknown.empty() && subject.unknown.empty();
      if (raw == "*" || (known && pattern.text == subject.text)) {
        match.status = true;
        break;
      }
      if (!known) match.status.reset();
      match.why = subject.unknown.empty() ? pattern.unknown : subject.unknown;
    }
    cursor_.SkipToOperator(")");
    cursor_.Next();
    conditions_.Branch(match);
  }

  // The current word, not split.
  ShellText Value() {
    const ShellToken& token = cursor_.Token();
    return ExpandToValue(cursor_.in(), token.begin, token.end, &state_.variables);
  }

  void Command() {
    ShellSimpleCommand command = ReadShellCommand(conditions_.Now(), conditions_.Why(), &cursor_, &state_);
    command.function = conditions_.Function();
    if (command.function.empty()) command.function = function_;
    ShellOutcome outcome = conditions_.last();
    std::optional<ShellInnerText> inner = ExecuteShellCommand(command, outer_, &state_, &outcome);
    if (inner) Walker(inner->text, std::move(inner->before), command.chance, command.function, &state_).Run();
    if (negated_ && outcome.status) outcome.status = !*outcome.status;
    negated_ = false;
    conditions_.SetLast(std::move(outcome));
    conditions_.Unlink();
  }

  ShellCursor cursor_;
  ShellConditions conditions_;
  std::vector<ShellText> outer_;
  const std::string function_;  // whose body the whole text is in
  ShellState& state_;
  bool negated_ = false;  // by ! before the current command
};

}  // namespace

ShellScript ReadShell(const recipe::Source& source, const std::map<std::string, std::string>& outside,
                      const std::map<std::string, std::string>& chosen,
                      std::vector<Diagnostic>* diagnostics) {
  ShellText text{source.text(), {}, 0, ""};
  text.places.resize(text.text.size());
  for (std::size_t i = 0; i < text.places.size(); ++i) text.places[i] = i;
  ShellState state;
  state.variables.outside = outside;
  state.variables.chosen = chosen;
  Walker(text, {}, ShellChance::kSurely, "", &state).Run();
  if (state.error) {
    diagnostics->push_back(source.Error(source.MarkOfOffset(state.error->place), state.error->message));
  }
  return {std::move(state.commands), std::move(state.variables.values), std::move(state.variables.taken)};
}

}  // namespace engine::import
