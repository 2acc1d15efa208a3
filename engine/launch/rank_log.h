// The one log of the ranks of a host.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/launch/socket.h"

namespace engine::launch {

// What the ranks write, each line with its rank's name, but for rank 0's. Why a rank ends ("engine run: …",
// and indented lines after it, on standard error) is held back for a moment: what the rank says that failed
// first comes first, then how it ended, then what others say of it, once.
class RankLog {
 public:
  // A line of a rank's standard error, or of its standard output.
  void Take(std::int64_t rank, bool is_error, const std::string& line);
  // How the rank ended ("rank 3 (pid 77) was killed …") that failed first by itself. Nothing is held any
  // more.
  void Tell(std::int64_t rank, const std::string& verdict);

  bool holds() const { return !held_.empty(); }
  bool is_due() const { return holds() && (told_ || Clock::now() - since_ > kHold); }
  void Flush();

 private:
  static constexpr auto kHold = std::chrono::seconds(2);

  struct Reason {
    std::int64_t rank = 0;
    std::string text;
  };

  std::vector<Reason> held_;
  Clock::time_point since_;
  std::set<std::string> said_;
  std::map<std::int64_t, bool> after_reason_;  // of ranks whose last line was of a reason: is it told?
  bool told_ = false;                          // the verdict
};

}  // namespace engine::launch
