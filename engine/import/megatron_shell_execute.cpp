#include "engine/import/megatron_shell_execute.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/import/megatron_shell_words.h"

namespace engine::import {
namespace {

// The three or fewer words of a test.
std::optional<bool> Terms(const std::vector<std::string>& terms) {
  if (terms.size() == 1) return !terms[0].empty();
  if (terms.size() == 2 && terms[0] == "-z") return terms[1].empty();
  if (terms.size() == 2 && terms[0] == "-n") return !terms[1].empty();
  if (terms.size() != 3) return std::nullopt;
  if (terms[2].find_first_of("*?[") != std::string::npos) return std::nullopt;
  if (terms[1] == "=" || terms[1] == "==") return terms[0] == terms[2];
  if (terms[1] == "!=") return terms[0] != terms[2];
  const std::optional<std::int64_t> a = ShellInteger(terms[0]);
  const std::optional<std::int64_t> b = ShellInteger(terms[2]);
  if (!a || !b) return std::nullopt;
  const std::array<std::pair<std::string_view, bool>, 6> results = {{{"-eq", *a == *b},
                                                                     {"-ne", *a != *b},
                                                                     {"-lt", *a < *b},
                                                                     {"-le", *a <= *b},
                                                                     {"-gt", *a > *b},
                                                                     {"-ge", *a >= *b}}};
  for (const auto& [op, value] : results) {
    if (terms[1] == op) return value;
  }
  return std::nullopt;
}

// Words with perhaps a ! before them; nullopt: it cannot be told.
std::optional<bool> TestPart(std::span<const ShellText> words) {
  const bool negated = !words.empty() && words[0].unknown.empty() && words[0].text == "!";
  if (negated) words = words.subspan(1);
  std::vector<std::string> terms;
  for (const ShellText& word : words) {
    if (!word.unknown.empty()) return std::nullopt;
    terms.push_back(word.text);
  }
  const std::optional<bool> value = Terms(terms);
  if (!value) return std::nullopt;
  return *value != negated;
}

// The value of `a || b` (`decisive` true: one that is true decides) or of `a && b` (false: one that is false decides). nullopt: an operand
// that is not known would decide.
std::optional<bool> Decided(std::optional<bool> a, std::optional<bool> b, bool decisive) {
  if (a == decisive || b == decisive) return decisive;
  if (!a || !b) return std::nullopt;
  return !decisive;
}

// [ … ], or [[ … ]] with && and ||, of which && binds more tightly.
std::optional<bool> Test(const ShellSimpleCommand& command) {
  std::span<const ShellText> words = command.words;
  if (words[0].text != "test" && words.size() < 2) return std::nullopt;
  const std::size_t end = words.size() - (words[0].text == "test" ? 0 : 1);  // of the words before ] or ]]
  std::optional<bool> any = false, all = true;
  std::size_t begin = 1;
  for (const std::size_t at : command.connectives) {
    all = Decided(all, TestPart(words.subspan(begin, at - begin)), /*decisive=*/false);
    if (words[at].text == "||") {
      any = Decided(any, all, /*decisive=*/true);
      all = true;
    }
    begin = at + 1;
  }
  if (begin > end) return std::nullopt;  // nothing stands behind the last operator
  all = Decided(all, TestPart(words.subspan(begin, end - begin)), /*decisive=*/false);
  return Decided(any, all, /*decisive=*/true);
}

ShellText EvalText(const std::vector<ShellText>& words) {
  ShellText all;
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (i > 1) all.Append(' ', words[i].place);
    all.Append(words[i]);
  }
  return all;
}

// The word behind `bash -c`; 0 if there is none.
std::size_t InnerText(const std::vector<ShellText>& words) {
  for (std::size_t i = 0; i + 2 < words.size(); ++i) {
    if (IsOneOf(ShellFileName(words[i].text), {"bash", "sh"}) &&
        IsOneOf(words[i + 1].text, {"-c", "-lc", "-xc", "-ec"}))
      return i + 2;
  }
  return 0;
}

// The commands of bash itself whose effects are followed. False: it is none of them.
bool Builtin(const ShellSimpleCommand& command, ShellState* state, ShellOutcome* outcome) {
  const std::vector<ShellText>& words = command.words;
  const std::string& name = words[0].text;
  const bool sure = command.chance == ShellChance::kSurely;
  if (IsOneOf(name, {"[", "[[", "test"})) {
    outcome->status = Test(command);
    for (const ShellText& word : words) {
      if (outcome->why.empty()) outcome->why = word.unknown;
    }
  } else if (IsOneOf(name, {"cd", "pushd", "popd"})) {
    state->variables.moved = true;
    outcome->status = true;
  } else if (IsOneOf(name, {":", "true", "export", "echo", "mkdir", "set", "declare", "local", "readonly"})) {
    outcome->status = true;
  } else if (name == "false") {
    outcome->status = false;
  } else if (name == "exit" && sure) {
    state->exited = true;
  } else if (name == "unset" && sure) {
    for (const ShellText& word : words) state->variables.values.erase(word.text);
  } else if (name == "read") {
    for (const ShellText& word : words) {
      state->variables.Assign(word.text, {UnknownAt("it is read from a file", word.place)});
    }
  } else {
    return false;
  }
  return true;
}

// A text to be read; one that is not known is a command that is not known.
std::optional<ShellInnerText> Inner(const ShellText& text, std::vector<ShellText> before,
                                    const std::vector<ShellText>& outer, const std::string& function,
                                    ShellState* state) {
  if (!text.unknown.empty()) {
    state->commands.push_back({{text}, std::move(before), "", function});
    return std::nullopt;
  }
  before.insert(before.begin(), outer.begin(), outer.end());
  return ShellInnerText{text, std::move(before)};
}

}  // namespace

std::optional<ShellInnerText> ExecuteShellCommand(const ShellSimpleCommand& command,
                                                  const std::vector<ShellText>& outer, ShellState* state,
                                                  ShellOutcome* outcome) {
  const std::vector<ShellText>& words = command.words;
  if (words.empty()) {
    if (command.assigned) outcome->status = true;
    return std::nullopt;
  }
  if (command.chance == ShellChance::kNever) return std::nullopt;
  *outcome = {};
  if (Builtin(command, state, outcome)) return std::nullopt;
  if (words[0].text == "eval") return Inner(EvalText(words), {}, outer, command.function, state);
  if (const std::size_t text = InnerText(words); text > 0) {
    return Inner(words[text], {words.begin(), words.begin() + static_cast<std::ptrdiff_t>(text) - 2}, outer,
                 command.function, state);
  }
  std::string uncertain;
  if (command.chance == ShellChance::kPerhaps) {
    uncertain = "it is run under a condition that is not known, in a loop or in a function" + command.why;
  }
  state->commands.push_back({words, outer, std::move(uncertain), command.function});
  return std::nullopt;
}

}  // namespace engine::import
