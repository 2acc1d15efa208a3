#include "engine/train/position.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace engine::train {

Position Position::Of(const checkpoint::Metadata& metadata, std::int64_t global_batch) {
  Position position{.iteration = metadata.iteration,
                    .consumed_samples = metadata.consumed_samples,
                    .optimizer_steps = metadata.optimizer_steps,
                    .schedule_samples = metadata.schedule_samples,
                    .guard = metadata.guard};
  if (position.schedule_samples < 0) {
    const std::int64_t skipped = position.iteration - position.optimizer_steps;
    position.schedule_samples = position.consumed_samples - skipped * global_batch;
  }
  return position;
}

std::string Position::ToText() const {
  return nlohmann::json({{"iteration", iteration},
                         {"consumed_samples", consumed_samples},
                         {"optimizer_steps", optimizer_steps},
                         {"schedule_samples", schedule_samples},
                         {"skips", guard.skips}})
      .dump();
}

absl::StatusOr<Position> Position::FromText(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto number = [&](const char* key) {
    return json.is_object() && json.contains(key) && json[key].is_number_integer()
               ? json[key].get<std::int64_t>()
               : -1;
  };
  const Position position{
      .iteration = number("iteration"),
      .consumed_samples = number("consumed_samples"),
      .optimizer_steps = number("optimizer_steps"),
      .schedule_samples = number("schedule_samples"),
      .guard = {.losses = {}, .grad_norms = {}, .left_out = {}, .rewinds = 0, .skips = number("skips")}};
  const auto numbers = {position.iteration, position.consumed_samples, position.optimizer_steps,
                        position.schedule_samples, position.guard.skips};
  if (std::min(numbers) < 0) return DataLoss("no position of a run: {}", text);
  return position;
}

}  // namespace engine::train
