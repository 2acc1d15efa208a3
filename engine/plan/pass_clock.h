// The passes of a pipeline, played whole: which stage runs what when (plan/schedule.h), and when it is done. A pass
// is one number here, as a transfer is. Printed schedules and the search take their times from this clock; prediction
// plays the instructions within passes (predict/predict.h).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/plan/schedule.h"

namespace engine::plan {

// What each pass and transfer takes, in any unit of time.
struct PassTimes {
  std::vector<double> forward, backward, weights;  // by chunk
  // What exchange of gradients makes of the last microbatch's last pass of a chunk, where exchange before
  // it has still `busy` to go.
  struct Ending {
    double longer = 0, busy = 0, finish = 0;
  };
  std::function<Ending(std::size_t chunk, double busy)> ending = {};
  std::vector<double> send = {};       // by chunk that sends forward; empty: transfers take no time
  std::vector<double> send_back = {};  // by chunk that sends back
};

struct PlayedTurn {
  Turn turn;
  double begin = 0, end = 0;
};

// When each stage has run all its turns, of so many microbatches, and the exchange behind them. `turns`: by stage, in
// order; chunk c is on stage c mod stages. `slots`: by chunk, how many microbatches it holds at most. A stage starts a
// turn when it is free and the turn's input has arrived; a transfer takes place when the sender has made the value and
// the receiver has room for it, and the sender's next pass of that chunk waits until it has. `played`: where it is not
// null, every turn with its times, by stage. Turns that can never start (the schedule is wrong) are left out.
std::vector<double> PlayTurns(const std::vector<std::vector<Turn>>& turns,
                              const std::vector<std::int64_t>& slots, std::int64_t microbatches,
                              const PassTimes& times, std::vector<std::vector<PlayedTurn>>* played = nullptr);

}  // namespace engine::plan
