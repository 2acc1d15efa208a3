// What both ends of the rendezvous agree on without saying it.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "engine/launch/rendezvous.h"

namespace engine::launch {

inline constexpr const char* kMagic = "engine rendezvous 4";  // the number is the protocol's version

// How often each end says that it lives, and looks whether the others do.
inline Milliseconds TickOf(const RendezvousOptions& options) {
  constexpr int kPerTimeout = 8;
  Milliseconds shortest = std::min(options.heartbeat_timeout, options.join_timeout);
  if (options.hang_timeout && options.hang_timeout->count() > 0)
    shortest = std::min(shortest, *options.hang_timeout);
  return std::clamp(shortest / kPerTimeout, Milliseconds(10), Milliseconds(1000));
}

inline std::string Text(Milliseconds time) {
  return fmt::format("{:.6g} s", static_cast<double>(time.count()) / 1e3);
}

}  // namespace engine::launch
