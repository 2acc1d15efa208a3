#include <algorithm>

#include "engine/base/units.h"
#include "engine/verify/verify.h"

namespace engine::verify {
namespace {

std::string Itemised(const plan::MemoryBreakdown& memory) {
  const std::pair<const char*, std::int64_t> items[] = {
      {"parameters", memory.parameters},   {"gradients", memory.gradients},
      {"optimizer", memory.optimizer},     {"control", memory.control},
      {"activations", memory.activations}, {"communication", memory.communication},
      {"transients", memory.transients},   {"evaluation", memory.evaluation}};
  std::string text;
  for (const auto& [name, bytes] : items) {
    if (bytes > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, FormatBytes(bytes));
  }
  return text;
}

// What would bring the stage's arena down most easily.
std::string Remedy(const plan::Plan& plan, const plan::StagePlan& stage, std::int64_t excess) {
  std::int64_t saved = 0;  // by ZeRO-1
  for (const plan::Bucket& bucket : stage.buckets) {
    if (bucket.shards > 1 || bucket.reduce.empty()) continue;
    std::int64_t state = bucket.master.bytes();
    for (const plan::BufferRef& buffer : bucket.states) state += buffer.bytes();
    saved += state - state / plan.mesh.GroupSize(bucket.reduce);
  }
  if (saved >= excess) return fmt::format("zero_stage = 1 would save {}", FormatBytes(saved));
  std::string remedy;
  if (stage.memory.activations + stage.memory.transients > excess) {
    remedy =
        "more recomputation (recompute.granularity) or a smaller micro_batch would reduce the activations";
  } else {
    remedy = "parameters, gradients and optimizer state shrink with tp and pp";
  }
  if (saved > 0) remedy += fmt::format("; zero_stage = 1 would save {}", FormatBytes(saved));
  return remedy;
}

}  // namespace

std::string ArenaText(const plan::Plan& plan, const plan::StagePlan& stage, std::int64_t usable_bytes) {
  return fmt::format("the arena is {}; {}", Itemised(stage.memory),
                     Remedy(plan, stage, stage.arena_bytes - usable_bytes));
}

absl::Status VerifyMemory(const plan::Plan& plan, const VerifyOptions& options) {
  const auto fullest = std::max_element(
      plan.stages.begin(), plan.stages.end(),
      [](const plan::StagePlan& a, const plan::StagePlan& b) { return a.arena_bytes < b.arena_bytes; });
  if (options.memory_bytes <= 0 || fullest == plan.stages.end()) return absl::OkStatus();
  const std::int64_t usable = options.memory_bytes - options.reserved_bytes;
  if (fullest->arena_bytes <= usable) return absl::OkStatus();
  return ResourceExhausted(
      "stage {} needs an arena of {}, but a device has {} of memory less {} reserved = {}; {}",
      fullest - plan.stages.begin(), FormatBytes(fullest->arena_bytes), FormatBytes(options.memory_bytes),
      FormatBytes(options.reserved_bytes), FormatBytes(usable), ArenaText(plan, *fullest, usable));
}

}  // namespace engine::verify
