// What happened to a run, in the order of time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/view/run_view.h"

namespace engine::view {

struct Event {
  enum class Kind {
    kStart,
    kInterruption,
    kResized,
    kFault,
    kNotFinite,
    kSkipped,
    kEvaluation,
    kCheckpoint,
    kNotSaved,
    kRewind,
    kEnd
  };
  static constexpr std::array kNames = {"start",      "interruption", "ranks",      "fault",
                                        "not finite", "skipped",      "evaluation", "checkpoint",
                                        "not saved",  "rewind",       "end"};

  Kind kind = Kind::kStart;
  std::int64_t iteration = 0;  // in which it was, or after which
  double began_unix_s = 0;     // 0: not known
  double seconds = 0;          // of training's time that it took; 0: a moment
  std::string text = {};       // Printable

  const char* name() const { return kNames[static_cast<std::size_t>(kind)]; }
};

// Those that the view holds; without times they are in the order of their iterations.
std::vector<Event> EventsOf(const RunView& view);

}  // namespace engine::view
