#include "engine/train/run_context.h"

namespace engine::train {

size_t RunContext::IndexOf(const executor::RankExecutor& rank) const {
  return static_cast<size_t>(rank.rank() - device.rank.value_or(0));
}

absl::Status RunContext::OfAll(const absl::Status& status) const {
  return status.ok() || processes == nullptr || Leads() ? status : absl::AbortedError(Message(status));
}

void RunContext::Say(const std::string& text) const {
  if (reporter != nullptr) reporter->Line(text);
}

void RunContext::Begin(launch::Work work, const std::string& text) const {
  if (processes != nullptr) processes->Begin(work, text);
}

// Whoever reads the log may let it wait.
void RunContext::Tell(const IterationReport& report) const {
  if (reporter == nullptr) return;
  if (processes != nullptr) processes->Suspend(launch::Work::kFiles, "writing log and metrics");
  reporter->Iteration(report);
  if (processes != nullptr) processes->Resume();
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
