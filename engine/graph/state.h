// What a model keeps from iteration to iteration beside its parameters: a scale, a counter, an average of weights.
// (Sums over the microbatches of one iteration are accumulators: metrics and gradients.)
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace engine::graph {

enum class Lifetime : std::uint8_t {
  kRun,      // checkpoints save it by its name, and a resumed run goes on with it
  kSession,  // as long as the process: it begins anew when a run is resumed
};

enum class StateUpdate : std::uint8_t {
  kNode,    // the one node that has it among its outputs, each time that this runs; it may read it, too
  kScales,  // fp8_update, for all states of quantised tensors at once (ops/fp8.h)
};

struct StateSpec {
  Lifetime life = Lifetime::kRun;
  StateUpdate update = StateUpdate::kNode;
  // What it holds before a run's first iteration: these numbers, again and again to its end. Empty: zeros.
  std::vector<double> fill = {};
  // The numbers of `fill` that no update changes (bit i: fill[i]). A state of a checkpoint that has another number there
  // is of another kind, and the run begins with its own.
  std::uint32_t fixed = 0;
  std::string folder = "state";  // of its name in checkpoints: "state/NAME"
  // Its nodes may split it between ranks, as the first one that reads it does; of zeros and of a session. Else it is whole on
  // every rank.
  bool split = false;
};

// A value with its specification.
struct State {
  std::int32_t value = -1;
  StateSpec spec;
};

}  // namespace engine::graph
