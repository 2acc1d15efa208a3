// Signals that ask a command to end with what it has.
#pragma once

namespace engine::cli {

// As long as one lives, of which there may be one at a time, SIGINT, SIGTERM and SIGHUP ask for a stop, unless they are ignored, as
// nohup has it. A second one, sent later than a repetition of the first would be (launch/stop_requests.h), ends the program at once.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The first that came; 0: none.
  static int Came();

 private:
  static constexpr int kSignals = 3;
  void (*old_[kSignals])(int) = {};
};

}  // namespace engine::cli
