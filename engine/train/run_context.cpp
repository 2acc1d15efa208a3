#include "engine/train/run_context.h"

namespace engine::train {

size_t RunContext::IndexOf(const executor::RankExecutor& rank) const {
  return static_cast<size_t>(rank.rank() - device.rank.value_or(0));
}

void RunContext::Say(const std::string& text) const {
  if (reporter != nullptr) reporter->Line(text);
}

void RunContext::AloneAt(const std::string& work) const {
  if (processes != nullptr) processes->Progress(work, /*may_stand_still=*/true);
}

absl::Status RunContext::OnDevice(const absl::Status& status, const std::string& work,
                                  executor::RankExecutor& rank) const {
  absl::Status located = WithContext(status, work);
  const bool late = absl::IsInternal(status) && rank.backend().asynchronous();
  if (!late || options.executor.check) return located;
  return absl::Status(
      located.code(),
      Message(located) + "\n    hint: the same run with --check --no-graphs names the instruction");
}

}  // namespace engine::train
