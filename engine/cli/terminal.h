// The terminal as a screen that a command draws on and gives back as it was.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace engine::cli {

// As long as one lives, of which there may be one at a time, standard output shows a screen of its own, without cursor, and keys
// come one by one and unseen. However the process ends, by a signal too, the terminal is first given back. Ctrl-C (SIGINT) ends
// it with exit code 0, as nothing is left undone; SIGTERM, SIGHUP and SIGQUIT as they always do. Ctrl-Z (SIGTSTP) gives the
// terminal back until the process goes on.
class Terminal {
 public:
  // Whether standard output is a terminal that can be drawn on.
  static bool IsThere();

  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  struct Size {
    std::size_t columns = 80, rows = 24;
  };
  // As it is now.
  static Size SizeNow();
  // Replaces what the screen shows. Lines are no wider than it.
  void Draw(const std::vector<std::string>& lines);
  // The next key, if one is pressed within so many seconds; nullopt where none was, and at once where the size has changed or
  // the process goes on after a stop. Without a terminal as standard input no key ever comes.
  std::optional<char> Key(double seconds);
};

}  // namespace engine::cli
