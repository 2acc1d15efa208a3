// Whether a run whose ranks were lost begins again, and when.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace engine::cli {

// A run that saves a checkpoint between two failures gets on, and begins again after a second. While it does not, each pause is twice as
// long, up to a minute, and the third failure is the last.
class Restarts {
 public:
  static constexpr int kMostInVain = 3;  // failures without a checkpoint between them

  // `checkpoints`: their folder. `most`: restarts in all.
  Restarts(std::string checkpoints, std::int64_t most);

  // After one more failure: how long to wait. nullopt: the run stays ended, and why() says so, unless no restarts were asked for.
  std::optional<std::chrono::milliseconds> Next();
  std::int64_t count() const { return count_; }
  std::int64_t most() const { return most_; }
  const std::string& why() const { return why_; }

 private:
  std::int64_t Newest() const;  // iteration of the newest checkpoint; -1: there is none

  std::string checkpoints_;
  std::int64_t most_ = 0;
  std::int64_t count_ = 0;
  std::int64_t newest_ = -1;
  int in_vain_ = 0;
  std::string why_;
};

}  // namespace engine::cli
