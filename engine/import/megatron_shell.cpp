#include "engine/import/megatron_shell.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "engine/import/megatron_shell_tokens.h"
#include "engine/import/megatron_shell_words.h"

namespace engine::import {
namespace {

using Kind = ShellToken::Kind;
using Status = std::optional<bool>;  // of a command; nullopt: it is not run

// Whether what is written here happens: by the conditions around it.
enum class Chance { kNever, kPerhaps, kSurely };

struct Frame {
  enum class Kind { kIf, kCase, kLoop, kFunction, kGroup } kind = Kind::kGroup;
  Chance chance = Chance::kSurely;
  bool done = false;     // if, case: a branch was surely taken
  bool perhaps = false;  // if, case: a branch was perhaps taken
  std::size_t place = 0;
  ShellText subject{};              // of a case
  Chance before = Chance::kSurely;  // of a case: what held when it began
  std::string why{};                // a condition was not known; may be empty
};

struct Shared {
  ShellVariables variables;
  std::vector<ShellCommand> commands;
  std::optional<ShellError> error;
  bool exited = false;
  int texts = 0;  // inside of one another
};

bool IsOneOf(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// Walks the tokens of one text: of the file, or of a `bash -c` inside of it.
class Walker {
 public:
  Walker(const ShellText& in, std::vector<ShellText> outer, Chance chance, Shared* shared)
      : in_(in), outer_(std::move(outer)), chance_(chance), shared_(shared) {}

  void Run() {
    if (in_.text.empty()) return;
    if (++shared_->texts > kMaxShellNesting) return Fail(in_.place, "texts are nested too deeply");
    if (std::optional<ShellError> error = ShellTokens(in_, &tokens_)) shared_->error = std::move(error);
    while (!Stopped() && at_ < tokens_.size()) Statement();
    if (!Stopped() && !frames_.empty()) {
      Fail(frames_.back().place, "what begins here has no end in this file");
    }
    --shared_->texts;
  }

 private:
  using Assignments = std::vector<std::pair<std::string, std::vector<ShellText>>>;

  bool Stopped() const { return shared_->error.has_value() || shared_->exited; }
  void Fail(std::size_t place, std::string message) {
    if (!shared_->error) shared_->error = ShellError{place, std::move(message)};
  }

  bool More() const { return at_ < tokens_.size(); }
  std::string Text(const ShellToken& token) const {
    return in_.text.substr(token.begin, token.end - token.begin);
  }
  std::size_t Place(const ShellToken& token) const {
    return token.begin < in_.places.size() ? in_.places[token.begin] : in_.place;
  }
  bool IsOperator(std::string_view op) const {
    return More() && tokens_[at_].kind == Kind::kOperator && Text(tokens_[at_]) == op;
  }
  bool IsWord(std::string_view word) const {
    return More() && tokens_[at_].kind == Kind::kWord && Text(tokens_[at_]) == word;
  }

  Chance Now() const {
    Chance now = chance_;
    for (const Frame& frame : frames_) now = std::min(now, frame.chance);
    if (link_ == "&&" || link_ == "||") {
      const Chance linked = !status_                      ? Chance::kPerhaps
                            : *status_ == (link_ == "&&") ? Chance::kSurely
                                                          : Chance::kNever;
      now = std::min(now, linked);
    }
    return now;
  }

  // One command with all before it, up to and with the operator behind it.
  void Statement() {
    const ShellToken& token = tokens_[at_];
    if (token.kind == Kind::kNewline || IsOperator(";") || IsOperator("&")) {
      link_.clear();
      ++at_;
      return;
    }
    if (IsOperator(";;")) return EndOfBranch();
    if (IsOperator("&&") || IsOperator("||")) {
      link_ = Text(token);
      ++at_;
      while (More() && tokens_[at_].kind == Kind::kNewline) ++at_;
      return;
    }
    if (IsOperator("|") || IsOperator("|&")) {
      link_ = "|";
      ++at_;
      while (More() && tokens_[at_].kind == Kind::kNewline) ++at_;
      return;
    }
    if (IsOperator("(")) return Parentheses();
    if (token.kind == Kind::kOperator && !IsRedirection(Text(token))) {
      return Fail(Place(token), fmt::format("no command may begin with {}", Text(token)));
    }
    if (token.kind == Kind::kWord && Keyword(Text(token))) return;
    Command();
  }

  static bool IsRedirection(const std::string& op) { return op.find_first_of("<>") != std::string::npos; }

  // ( … ) and (( … )), whose effects are not followed.
  void Parentheses() {
    const std::size_t place = Place(tokens_[at_]);
    if (at_ + 1 < tokens_.size() && tokens_[at_ + 1].kind == Kind::kOperator &&
        Text(tokens_[at_ + 1]) == "(" && tokens_[at_ + 1].begin == tokens_[at_].end) {
      int depth = 0;
      do {
        if (IsOperator("(")) ++depth;
        if (IsOperator(")")) --depth;
        ++at_;
      } while (More() && depth > 0);
      status_.reset();
      return;
    }
    Fail(place, "commands in ( ) are not read; write them without");
  }

  // ------------------------------------------------------------------------------------------ keywords
  bool Keyword(const std::string& word) {
    const std::size_t place = Place(tokens_[at_]);
    if (word == "if") {
      Open({Frame::Kind::kIf, Chance::kSurely, false, false, place});
    } else if (word == "then") {
      if (!Expect(Frame::Kind::kIf, word)) return true;
      Take(status_);
    } else if (word == "elif" || word == "else") {
      if (!Expect(Frame::Kind::kIf, word)) return true;
      Frame& frame = frames_.back();
      frame.chance = frame.done ? Chance::kNever : frame.perhaps ? Chance::kPerhaps : Chance::kSurely;
    } else if (word == "while" || word == "until") {
      Open({Frame::Kind::kLoop, Chance::kPerhaps, false, false, place});
    } else if (word == "for" || word == "select") {
      For(place);
    } else if (word == "do") {
      if (!Expect(Frame::Kind::kLoop, word)) return true;
    } else if (word == "case") {
      Case(place);
      return true;
    } else if (word == "{") {
      Open({Frame::Kind::kGroup, Chance::kSurely, false, false, place});
    } else if (word == "function") {
      ++at_;  // its name
      Function(place);
    } else if (IsOneOf(word, {"fi", "done", "esac", "}"})) {
      Close(word);
    } else if (word == "!" || word == "time") {
      negated_ = negated_ || word == "!";
    } else if (IsFunctionDefinition()) {
      Function(place);
    } else {
      return false;
    }
    if (!IsOneOf(word, {"!", "time"})) link_.clear();
    ++at_;
    return true;
  }

  bool Expect(Frame::Kind kind, const std::string& word) {
    if (!frames_.empty() && frames_.back().kind == kind) return true;
    Fail(Place(tokens_[at_]), fmt::format("`{}` has no beginning", word));
    return false;
  }

  void Open(Frame frame) {
    frame.chance = std::min(frame.chance, Now());
    if (frames_.size() >= kMaxShellNesting) return Fail(frame.place, "commands are nested too deeply");
    frames_.push_back(std::move(frame));
  }

  // A branch whose condition came to this.
  void Take(Status condition) {
    Frame& frame = frames_.back();
    if (frame.chance == Chance::kNever) return;
    const bool sure = frame.chance == Chance::kSurely;
    if (!condition) frame.chance = Chance::kPerhaps;
    if (!condition && frame.why.empty()) frame.why = why_;
    if (condition && !*condition) frame.chance = Chance::kNever;
    frame.done = frame.done || (sure && condition.value_or(false));
    frame.perhaps = frame.perhaps || frame.chance == Chance::kPerhaps;
  }

  void For(std::size_t place) {
    if (at_ + 1 < tokens_.size() && NameLength(in_.text, tokens_[at_ + 1].begin) > 0) {
      Assign(Text(tokens_[at_ + 1]), {UnknownAt("a loop's variable is not followed", place)});
    }
    Open({Frame::Kind::kLoop, Chance::kPerhaps, false, false, place});
    while (More() && !IsWord("do")) ++at_;
  }

  bool IsFunctionDefinition() const {
    return at_ + 2 < tokens_.size() && Text(tokens_[at_]).back() != '=' &&
           tokens_[at_ + 1].kind == Kind::kOperator && Text(tokens_[at_ + 1]) == "(" &&
           tokens_[at_ + 2].kind == Kind::kOperator && Text(tokens_[at_ + 2]) == ")";
  }

  // name() { … }: its body runs when it is called, which is not followed.
  void Function(std::size_t place) {
    while (More() && !IsWord("{")) ++at_;
    Open({Frame::Kind::kFunction, Chance::kPerhaps, false, false, place});
  }

  void Close(const std::string& word) {
    const Frame::Kind kind = word == "fi"     ? Frame::Kind::kIf
                             : word == "done" ? Frame::Kind::kLoop
                             : word == "esac" ? Frame::Kind::kCase
                                              : Frame::Kind::kGroup;
    const bool matches =
        !frames_.empty() && (frames_.back().kind == kind ||
                             (kind == Frame::Kind::kGroup && frames_.back().kind == Frame::Kind::kFunction));
    if (!matches) return Fail(Place(tokens_[at_]), fmt::format("`{}` has no beginning", word));
    frames_.pop_back();
    status_.reset();
  }

  void Case(std::size_t place) {
    ++at_;
    if (!More() || tokens_[at_].kind != Kind::kWord) return Fail(place, "`case` has no word");
    Frame frame{Frame::Kind::kCase, Chance::kSurely, false, false, place};
    frame.subject = ExpandToValue(in_, tokens_[at_].begin, tokens_[at_].end, &shared_->variables);
    Open(std::move(frame));
    if (Stopped()) return;
    frames_.back().before = Now();
    ++at_;
    while (More() && tokens_[at_].kind == Kind::kNewline) ++at_;
    if (!IsWord("in")) return Fail(place, "`case` has no `in`");
    ++at_;
    Patterns();
  }

  void EndOfBranch() {
    if (frames_.empty() || frames_.back().kind != Frame::Kind::kCase) {
      return Fail(Place(tokens_[at_]), "`;;` is outside of a `case`");
    }
    ++at_;
    Patterns();
  }

  // a | b ) of a case; which branch it is when the subject is known, and the patterns are words or *.
  void Patterns() {
    while (More() && tokens_[at_].kind == Kind::kNewline) ++at_;
    Frame& frame = frames_.back();
    if (IsWord("esac") || !More()) return;
    Status matches = false;
    for (; More() && !IsOperator(")"); ++at_) {
      if (tokens_[at_].kind != Kind::kWord) continue;
      const std::string raw = Text(tokens_[at_]);
      const ShellText pattern = ExpandToValue(in_, tokens_[at_].begin, tokens_[at_].end, &shared_->variables);
      const bool open = raw.find_first_of("*?[") != std::string::npos;
      if (raw == "*" || (!open && pattern.unknown.empty() && frame.subject.unknown.empty() &&
                         pattern.text == frame.subject.text)) {
        matches = true;
        break;
      }
      if (open || !pattern.unknown.empty() || !frame.subject.unknown.empty()) matches.reset();
      why_ = frame.subject.unknown.empty() ? pattern.unknown : frame.subject.unknown;
    }
    while (More() && !IsOperator(")")) ++at_;
    ++at_;
    frame.chance = frame.done ? Chance::kNever : frame.before;
    if (frame.chance == Chance::kSurely && frame.perhaps) frame.chance = Chance::kPerhaps;
    Take(matches);
    link_.clear();
  }

  // ------------------------------------------------------------------------------------------ commands
  // The words of one command, up to an operator; assignments before them are carried out at once.
  void Command() {
    const Chance chance = Now();
    const std::size_t first = at_;
    std::vector<ShellText> words;
    Assignments assignments;  // of export, which expands all its words first
    bool declares = false;
    bool assigned = false;
    bool test = false;
    for (; More() && tokens_[at_].kind != Kind::kNewline && !Stopped(); ++at_) {
      const ShellToken& token = tokens_[at_];
      if (token.kind == Kind::kOperator) {
        if (test && !IsOperator(";")) {  // [[ a && b ]], [[ a < b ]]
          words.push_back(UnknownAt("an operator", Place(token)));
          continue;
        }
        if (!IsRedirection(Text(token))) break;
        ++at_;  // its file
        if (!More()) break;
        continue;
      }
      if (IsDescriptor()) continue;
      if ((words.empty() || declares) && Assignment(chance, &assignments)) {
        assigned = true;
        if (!declares) Carry(&assignments);
        continue;
      }
      std::vector<ShellText> fields = ExpandToFields(in_, token.begin, token.end, &shared_->variables);
      if (words.empty() && !fields.empty()) {
        declares = IsOneOf(fields[0].text, {"export", "declare", "local", "readonly", "typeset"});
        test = Text(token) == "[[";
      }
      if (test && Text(token) == "]]") test = false;
      for (ShellText& field : fields) words.push_back(std::move(field));
    }
    if (at_ == first) ++at_;
    Carry(&assignments);
    Execute(words, chance, assigned);
    if (negated_ && status_) status_ = !*status_;
    negated_ = false;
    link_.clear();
  }

  // The 2 of 2>&1.
  bool IsDescriptor() const {
    const std::string word = Text(tokens_[at_]);
    return at_ + 1 < tokens_.size() && tokens_[at_ + 1].kind == Kind::kOperator &&
           IsRedirection(Text(tokens_[at_ + 1])) && tokens_[at_ + 1].begin == tokens_[at_].end &&
           word.find_first_not_of("0123456789") == std::string::npos;
  }

  // NAME=value, NAME+=value, NAME=( … ). The last token of it becomes the current one.
  bool Assignment(Chance chance, Assignments* assignments) {
    const ShellToken& token = tokens_[at_];
    const std::size_t name_length = NameLength(in_.text, token.begin);
    std::size_t i = token.begin + name_length;
    if (name_length == 0 || i >= token.end) return false;
    const std::string name = in_.text.substr(token.begin, name_length);
    const bool append = in_.text[i] == '+';
    if (append) ++i;
    if (i >= token.end || in_.text[i] != '=') return false;
    ++i;
    std::vector<ShellText> items;
    shared_->variables.read.erase(name);
    const bool array = i == token.end && at_ + 1 < tokens_.size() &&
                       tokens_[at_ + 1].kind == Kind::kOperator && Text(tokens_[at_ + 1]) == "(" &&
                       tokens_[at_ + 1].begin == token.end;
    if (array) {
      items = Items(Place(token));
    } else {
      items.push_back(ExpandToValue(in_, i, token.end, &shared_->variables));
    }
    if (append) items = Appended(name, std::move(items), array, Place(token));
    if (chance == Chance::kNever) return true;
    if (shared_->variables.chosen.contains(name) && !shared_->variables.read.contains(name)) return true;
    if (chance == Chance::kPerhaps) {
      items = {
          UnknownAt(fmt::format("{} is set under a condition, in a loop or in a function{}", name, Why()),
                    Place(token))};
    }
    assignments->emplace_back(name, std::move(items));
    return true;
  }

  std::vector<ShellText> Appended(const std::string& name, std::vector<ShellText> items, bool array,
                                  std::size_t place) {
    std::vector<ShellText> all = shared_->variables.Find(name, place).value_or(std::vector<ShellText>{});
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
    for (at_ += 2; More() && !IsOperator(")"); ++at_) {
      if (tokens_[at_].kind == Kind::kNewline) continue;
      if (tokens_[at_].kind == Kind::kOperator) {
        Fail(Place(tokens_[at_]), fmt::format("an array's item cannot be {}", Text(tokens_[at_])));
        return items;
      }
      for (ShellText& field :
           ExpandToFields(in_, tokens_[at_].begin, tokens_[at_].end, &shared_->variables)) {
        items.push_back(std::move(field));
      }
    }
    if (!More()) Fail(place, "this array is never closed");
    return items;
  }

  void Carry(Assignments* assignments) {
    for (auto& [name, items] : *assignments) Assign(name, std::move(items));
    assignments->clear();
  }

  // Sets a variable. A value that the user has chosen stays if the script would make it unknown.
  void Assign(const std::string& name, std::vector<ShellText> items) {
    const auto is_unknown = [](const ShellText& item) { return !item.unknown.empty(); };
    const bool unknown = std::any_of(items.begin(), items.end(), is_unknown);
    if (unknown && shared_->variables.chosen.contains(name)) return;
    shared_->variables.values[name] = std::move(items);
  }

  // ": RESUME is not set in this file", where a condition around the current command is not known for that.
  std::string Why() const {
    for (auto frame = frames_.rbegin(); frame != frames_.rend(); ++frame) {
      if (frame->chance == Chance::kPerhaps && !frame->why.empty()) return ": " + frame->why;
    }
    return link_.empty() || why_.empty() ? "" : ": " + why_;
  }

  void Execute(const std::vector<ShellText>& words, Chance chance, bool assigned) {
    if (words.empty()) {
      if (assigned) status_ = true;
      return;
    }
    if (chance == Chance::kNever) return;
    const std::string why = Why();
    status_.reset();
    why_.clear();
    const std::string& name = words[0].text;
    if (IsOneOf(name, {"[", "[[", "test"})) {
      status_ = Test(words);
      for (const ShellText& word : words) {
        if (why_.empty()) why_ = word.unknown;
      }
    } else if (IsOneOf(name, {"cd", "pushd", "popd"})) {
      shared_->variables.moved = true;
      status_ = true;
    } else if (IsOneOf(name,
                       {":", "true", "export", "echo", "mkdir", "set", "declare", "local", "readonly"})) {
      status_ = true;
    } else if (name == "false") {
      status_ = false;
    } else if (name == "exit" && chance == Chance::kSurely) {
      shared_->exited = true;
    } else if (name == "unset" && chance == Chance::kSurely) {
      for (const ShellText& word : words) shared_->variables.values.erase(word.text);
    } else if (name == "read") {
      for (const ShellText& word : words)
        Assign(word.text, {UnknownAt("it is read from a file", word.place)});
    } else if (name == "eval") {
      Inner(Joined(words), {}, chance);
    } else if (const std::size_t text = InnerText(words); text > 0) {
      Inner(words[text], {words.begin(), words.begin() + static_cast<std::ptrdiff_t>(text) - 2}, chance);
    } else {
      std::string uncertain;
      if (chance == Chance::kPerhaps) {
        uncertain = "it is run under a condition that is not known, in a loop or in a function" + why;
      }
      shared_->commands.push_back({words, outer_, std::move(uncertain)});
    }
  }

  static ShellText Joined(const std::vector<ShellText>& words) {
    ShellText all;
    for (std::size_t i = 1; i < words.size(); ++i) {
      if (i > 1) all.Append(' ', words[i].place);
      all.Append(words[i]);
    }
    return all;
  }

  // The word behind `bash -c`; 0 if there is none.
  static std::size_t InnerText(const std::vector<ShellText>& words) {
    for (std::size_t i = 0; i + 2 < words.size(); ++i) {
      const std::string shell = std::filesystem::path(words[i].text).filename().string();
      if (IsOneOf(shell, {"bash", "sh"}) && IsOneOf(words[i + 1].text, {"-c", "-lc", "-xc", "-ec"}))
        return i + 2;
    }
    return 0;
  }

  void Inner(const ShellText& text, std::vector<ShellText> before, Chance chance) {
    if (!text.unknown.empty()) {
      shared_->commands.push_back({{text}, std::move(before), ""});
      return;
    }
    before.insert(before.begin(), outer_.begin(), outer_.end());
    Walker(text, std::move(before), chance, shared_).Run();
  }

  // [ … ] over known words; nullopt: it cannot be told.
  static Status Test(const std::vector<ShellText>& words) {
    std::vector<std::string> terms;
    for (std::size_t i = 1; i < words.size(); ++i) {
      if (!words[i].unknown.empty()) return std::nullopt;
      terms.push_back(words[i].text);
    }
    if (words[0].text != "test") {
      if (terms.empty()) return std::nullopt;
      terms.pop_back();  // ]
    }
    bool negated = false;
    if (!terms.empty() && terms[0] == "!") {
      negated = true;
      terms.erase(terms.begin());
    }
    const Status value = Terms(terms);
    if (!value) return std::nullopt;
    return *value != negated;
  }

  static Status Terms(const std::vector<std::string>& terms) {
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

  const ShellText& in_;
  std::vector<ShellText> outer_;
  Chance chance_;
  Shared* shared_;
  std::vector<ShellToken> tokens_;
  std::size_t at_ = 0;
  std::vector<Frame> frames_;
  std::string link_;  // the operator before the current command, of the same line
  Status status_;     // of the command before
  std::string why_;   // it is not known; may be empty
  bool negated_ = false;
};

}  // namespace

ShellScript ReadShell(const recipe::Source& source, const std::map<std::string, std::string>& outside,
                      const std::map<std::string, std::string>& chosen,
                      std::vector<Diagnostic>* diagnostics) {
  ShellText text{source.text(), {}, 0, ""};
  text.places.resize(text.text.size());
  for (std::size_t i = 0; i < text.places.size(); ++i) text.places[i] = i;
  Shared shared;
  shared.variables.outside = outside;
  shared.variables.chosen = chosen;
  Walker(text, {}, Chance::kSurely, &shared).Run();
  if (shared.error) {
    diagnostics->push_back(source.Error(source.MarkOfOffset(shared.error->place), shared.error->message));
  }
  return {std::move(shared.commands), std::move(shared.variables.values), std::move(shared.variables.taken)};
}

}  // namespace engine::import
