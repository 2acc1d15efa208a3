// How far a long piece of work has come, on standard error.
#pragma once

#include <chrono>
#include <string>

namespace engine::cli {

// One line that is written anew on a terminal, and lines elsewhere. Standard output is left alone.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine() { Clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // Whether a line is due: on a terminal at once and five times a second, elsewhere twice a minute, the first one after as long.
  bool IsDue() const;
  void Show(std::string text);
  // Takes the line back from a terminal, before other text.
  void Clear();

 private:
  const bool terminal_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point due_;
};

}  // namespace engine::cli
