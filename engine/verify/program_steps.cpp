#include "engine/verify/program_steps.h"

#include <algorithm>

namespace engine::verify {

ProgramSteps::ProgramSteps(const plan::Plan& plan, ProgramId id)
    : plan_(plan), id_(id), clock_(program().size()) {
  std::array<std::int32_t, plan::kStreams> last;
  last.fill(-1);
  const auto join = [&](size_t into, std::int32_t from) {
    for (size_t s = 0; s < plan::kStreams; ++s) {
      clock_[into][s] = std::max(clock_[into][s], clock_[static_cast<size_t>(from)][s]);
    }
  };
  for (size_t i = 0; i < program().size(); ++i) {
    const plan::Step& step = program()[i];
    clock_[i].fill(0);
    const size_t stream = static_cast<size_t>(step.stream);
    if (last[stream] >= 0) join(i, last[stream]);
    for (std::int32_t wait : step.waits) join(i, wait);
    clock_[i][stream] = static_cast<std::int32_t>(i) + 1;
    last[stream] = static_cast<std::int32_t>(i);
  }
}

bool ProgramSteps::Before(std::int32_t first, std::size_t then) const {
  return clock_[then][static_cast<size_t>(program()[static_cast<size_t>(first)].stream)] > first;
}

}  // namespace engine::verify
