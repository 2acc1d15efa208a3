#include "engine/cli/progress_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "engine/base/print.h"

namespace engine::cli {
namespace {

std::size_t Columns() {
  winsize size = {};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 80;
}

}  // namespace

ProgressLine::ProgressLine()
    : terminal_(::isatty(STDERR_FILENO) == 1),
      due_(std::chrono::steady_clock::now() + std::chrono::seconds(terminal_ ? 0 : 30)) {}

bool ProgressLine::IsDue() const { return std::chrono::steady_clock::now() >= due_; }

void ProgressLine::Show(std::string text) {
  Clear();
  if (terminal_) text.resize(std::min(text.size(), Columns() - 1));  // a line that wraps cannot be taken back
  Print(stderr, "{}{}", text, terminal_ ? "" : "\n");
  std::fflush(stderr);
  shown_ = true;
  due_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(terminal_ ? 200 : 30'000);
}

void ProgressLine::Clear() {
  if (terminal_ && shown_) Print(stderr, "\r\033[K");
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace engine::cli
