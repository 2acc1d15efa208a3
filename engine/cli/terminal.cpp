#include "engine/cli/terminal.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <string_view>

namespace engine::cli {
namespace {

// Another screen; no cursor; lines that are too long are cut and not wrapped. And back.
constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l\x1b[?7l";
constexpr std::string_view kLeave = "\x1b[?7h\x1b[?25h\x1b[?1049l";

constexpr int kEnding[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

// The handlers of signals read the variables that follow. They call nothing but write, tcsetattr and what raises signals, which POSIX lets them.
bool has_keys = false;  // standard input is a terminal
termios given = {};     // its settings as they were

void WriteAll(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno != EINTR) return;
    if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
  }
}

void Take() {
  if (has_keys) {
    termios keys = given;
    keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    ::tcsetattr(STDIN_FILENO, TCSANOW, &keys);
  }
  WriteAll(kEnter);
}

void GiveBack() {
  WriteAll(kLeave);
  if (has_keys) ::tcsetattr(STDIN_FILENO, TCSANOW, &given);
}

void End(int number) {
  GiveBack();
  if (number == SIGINT) ::_exit(0);
  std::signal(number, SIG_DFL);
  std::raise(number);
}

void Pause(int /*number*/) {
  const int error = errno;
  GiveBack();
  ::kill(::getpid(), SIGSTOP);  // until SIGCONT
  errno = error;
}

void GoOn(int /*number*/) {
  const int error = errno;
  Take();
  errno = error;
}

void Wake(int /*number*/) {}

// Calls that a signal interrupts end with EINTR, so that Key returns at once.
void Handle(int number, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(number, &action, nullptr);
}

}  // namespace

bool Terminal::IsThere() {
  const char* kind = std::getenv("TERM");
  return ::isatty(STDOUT_FILENO) == 1 && kind != nullptr && std::string_view(kind) != "dumb";
}

Terminal::Terminal() {
  has_keys = ::tcgetattr(STDIN_FILENO, &given) == 0;
  for (const int number : kEnding) Handle(number, End);
  Handle(SIGTSTP, Pause);
  Handle(SIGCONT, GoOn);
  Handle(SIGWINCH, Wake);
  Take();
}

Terminal::~Terminal() {
  for (const int number : kEnding) Handle(number, SIG_DFL);
  for (const int number : {SIGTSTP, SIGCONT, SIGWINCH}) Handle(number, SIG_DFL);
  GiveBack();
}

Terminal::Size Terminal::SizeNow() {
  winsize now = {};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &now) != 0 || now.ws_col == 0 || now.ws_row == 0) return {};
  return {.columns = now.ws_col, .rows = now.ws_row};
}

void Terminal::Draw(const std::vector<std::string>& lines) {
  std::string text = "\x1b[H";
  for (std::size_t i = 0; i < lines.size(); ++i) text += (i > 0 ? "\r\n" : "") + lines[i] + "\x1b[K";
  WriteAll(text + "\x1b[J");
}

std::optional<char> Terminal::Key(double seconds) {
  pollfd keys = {.fd = has_keys ? STDIN_FILENO : -1, .events = POLLIN, .revents = 0};
  if (::poll(&keys, 1, static_cast<int>(seconds * 1e3)) <= 0) return std::nullopt;
  char key = 0;
  if (::read(STDIN_FILENO, &key, 1) == 1) return key;
  has_keys = false;  // its other end has gone
  return std::nullopt;
}

}  // namespace engine::cli
