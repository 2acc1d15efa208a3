#include "engine/recipe/batch_size.h"

#include <algorithm>

namespace engine::recipe {
namespace {

std::int64_t Steps(const Training& t) { return (t.global_batch - t.rampup.start) / t.rampup.increment; }

std::int64_t RoundedUp(std::int64_t number, std::int64_t by) { return (number + by - 1) / by; }

// Consumed samples from which on iterations are larger than `size`.
std::int64_t EndOf(const Training& t, std::int64_t size) {
  const std::int64_t next = (size - t.rampup.start) / t.rampup.increment + 1;
  return RoundedUp(next * t.rampup.samples, Steps(t));
}

}  // namespace

bool Ramps(const Training& t) {
  const Rampup& rampup = t.rampup;
  if (rampup.start < 1 || rampup.increment < 1 || rampup.samples < 1) return false;
  if (rampup.start >= t.global_batch || (t.global_batch - rampup.start) % rampup.increment != 0) return false;
  return Steps(t) < kMostTurns && Steps(t) <= kNoEnd / rampup.samples;
}

std::vector<std::int64_t> BatchSizes(const Training& t) {
  if (!Ramps(t)) return {t.global_batch};
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = t.rampup.start; size <= t.global_batch; size += t.rampup.increment)
    sizes.push_back(size);
  return sizes;
}

std::int64_t BatchAt(const Training& t, std::int64_t consumed) {
  if (!Ramps(t) || consumed >= t.rampup.samples) return t.global_batch;
  return t.rampup.start + consumed * Steps(t) / t.rampup.samples * t.rampup.increment;
}

Progress RunOn(const Training& t, Progress from, std::int64_t most_iterations, std::int64_t most_samples) {
  for (;;) {
    const std::int64_t size = BatchAt(t, from.samples);
    std::int64_t count =
        size < t.global_batch ? RoundedUp(EndOf(t, size) - from.samples, size) : kNoEnd;  // of this size
    count = std::min({count, most_iterations - from.iterations, (most_samples - from.samples) / size});
    if (count <= 0) return from;
    from.iterations += count;
    from.samples += count * size;
  }
}

std::int64_t Recipe::iterations() const {
  return training.iterations > 0 ? training.iterations
                                 : RunOn(training, {}, kNoEnd, training.samples).iterations;
}

std::int64_t Recipe::samples() const {
  if (!Ramps(training)) return iterations() * training.global_batch;
  return RunOn(training, {}, iterations(), kNoEnd).samples;
}

}  // namespace engine::recipe
