#include "engine/import/megatron_shell_conditions.h"

#include <algorithm>
#include <utility>

#include "engine/import/megatron_shell_tokens.h"

namespace engine::import {

using Kind = ShellFrame::Kind;

ShellChance ShellConditions::Now() const {
  ShellChance now = around_;
  for (const ShellFrame& frame : frames_) now = std::min(now, frame.chance);
  if (link_ == "&&" || link_ == "||") {
    const ShellChance linked = !last_.status                      ? ShellChance::kPerhaps
                               : *last_.status == (link_ == "&&") ? ShellChance::kSurely
                                                                  : ShellChance::kNever;
    now = std::min(now, linked);
  }
  return now;
}

std::string ShellConditions::Why() const {
  for (auto frame = frames_.rbegin(); frame != frames_.rend(); ++frame) {
    if (frame->chance == ShellChance::kPerhaps && !frame->why.empty()) return ": " + frame->why;
  }
  return link_.empty() || last_.why.empty() ? "" : ": " + last_.why;
}

std::string ShellConditions::Function() const {
  for (auto frame = frames_.rbegin(); frame != frames_.rend(); ++frame) {
    if (frame->kind == Kind::kFunction) return frame->subject.text;
  }
  return "";
}

bool ShellConditions::Open(Kind kind, std::size_t place, ShellText subject) {
  if (frames_.size() >= kMaxShellNesting) return false;
  // Whether a loop's body or a function's runs is not followed.
  const bool open = kind == Kind::kLoop || kind == Kind::kFunction;
  ShellFrame frame;
  frame.kind = kind;
  frame.chance = std::min(open ? ShellChance::kPerhaps : ShellChance::kSurely, Now());
  frame.before = frame.chance;
  frame.place = place;
  frame.subject = std::move(subject);
  frames_.push_back(std::move(frame));
  return true;
}

bool ShellConditions::Close(const std::string& word) {
  const Kind kind = word == "fi"     ? Kind::kIf
                    : word == "done" ? Kind::kLoop
                    : word == "esac" ? Kind::kCase
                                     : Kind::kGroup;
  if (!IsIn(kind) && !(kind == Kind::kGroup && IsIn(Kind::kFunction))) return false;
  frames_.pop_back();
  ForgetStatus();
  return true;
}

void ShellConditions::Else() {
  ShellFrame& frame = frames_.back();
  frame.chance = frame.done      ? ShellChance::kNever
                 : frame.perhaps ? ShellChance::kPerhaps
                                 : ShellChance::kSurely;
}

void ShellConditions::Branch(const ShellOutcome& match) {
  last_.why = match.why;
  ShellFrame& frame = frames_.back();
  frame.chance = frame.done ? ShellChance::kNever : frame.before;
  if (frame.chance == ShellChance::kSurely && frame.perhaps) frame.chance = ShellChance::kPerhaps;
  Take(match.status);
  Unlink();
}

void ShellConditions::Take(std::optional<bool> condition) {
  ShellFrame& frame = frames_.back();
  if (frame.chance == ShellChance::kNever) return;
  const bool sure = frame.chance == ShellChance::kSurely;
  if (!condition) frame.chance = ShellChance::kPerhaps;
  if (!condition && frame.why.empty()) frame.why = last_.why;
  if (condition && !*condition) frame.chance = ShellChance::kNever;
  frame.done = frame.done || (sure && condition.value_or(false));
  frame.perhaps = frame.perhaps || frame.chance == ShellChance::kPerhaps;
}

}  // namespace engine::import
