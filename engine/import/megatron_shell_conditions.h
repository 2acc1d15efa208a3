// Under which conditions a command of a shell text runs.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/import/megatron_shell.h"
#include "engine/import/megatron_shell_state.h"

namespace engine::import {

// What has begun and has not ended yet.
struct ShellFrame {
  enum class Kind { kIf, kCase, kLoop, kFunction, kGroup };
  Kind kind = Kind::kGroup;
  ShellChance chance = ShellChance::kSurely;  // of what comes now
  ShellChance before = ShellChance::kSurely;  // what held when it began
  bool done = false;                          // if, case: a branch was surely taken
  bool perhaps = false;                       // if, case: a branch was perhaps taken
  std::size_t place = 0;
  ShellText subject;  // of a case; of a function its name
  std::string why;    // a condition was not known; may be empty
};

// Follows what is around a command of a text: the ifs, cases, loops, groups and functions that are open,
// the && or || before it, and what the command before that came to. Hence whether it runs.
class ShellConditions {
 public:
  // `around`: whether the whole text runs.
  explicit ShellConditions(ShellChance around) : around_(around) {}

  ShellChance Now() const;
  // ": RESUME is not set in this file", where a condition around the current command is not known for that.
  std::string Why() const;

  // The function whose body it is in; empty: of none.
  std::string Function() const;

  // False: too many are open. `subject`: of a case, or a function's name.
  bool Open(ShellFrame::Kind kind, std::size_t place, ShellText subject = {});
  // By fi, done, esac or }. False: it ends nothing that is open.
  bool Close(const std::string& word);
  bool IsIn(ShellFrame::Kind kind) const { return !frames_.empty() && frames_.back().kind == kind; }
  const ShellFrame* Innermost() const { return frames_.empty() ? nullptr : &frames_.back(); }

  // The branches of the innermost if or case: with the last outcome as condition, without one, or a case's
  // with what the match of its patterns came to.
  void Then() { Take(last_.status); }
  void Else();
  void Branch(const ShellOutcome& match);

  // The operator behind a command, and whether there is still one before the next.
  void Link(std::string op) { link_ = std::move(op); }
  void Unlink() { link_.clear(); }

  const ShellOutcome& last() const { return last_; }
  void SetLast(ShellOutcome outcome) { last_ = std::move(outcome); }
  void ForgetStatus() { last_.status.reset(); }

 private:
  // A branch of the innermost frame whose condition came to this.
  void Take(std::optional<bool> condition);

  ShellChance around_;
  std::vector<ShellFrame> frames_;
  std::string link_;   // the operator before the current command, of the same line
  ShellOutcome last_;  // of the command before
};

}  // namespace engine::import
