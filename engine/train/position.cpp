#include "engine/train/position.h"

namespace engine::train {

Position Position::Of(const checkpoint::Metadata& metadata, std::int64_t global_batch) {
  Position position{.iteration = metadata.iteration,
                    .consumed_samples = metadata.consumed_samples,
                    .optimizer_steps = metadata.optimizer_steps,
                    .schedule_samples = metadata.schedule_samples};
  if (position.schedule_samples < 0) {
    const std::int64_t skipped = position.iteration - position.optimizer_steps;
    position.schedule_samples = position.consumed_samples - skipped * global_batch;
  }
  return position;
}

}  // namespace engine::train
