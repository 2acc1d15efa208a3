#include "engine/cli/plan_generation.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/units.h"
#include "engine/predict/predict.h"

namespace engine::cli {
namespace {

// Tells what each part of the largest stage's arena takes.
std::string MemoryText(const plan::Plan& plan) {
  const auto& stage = *std::max_element(
      plan.stages.begin(), plan.stages.end(),
      [](const plan::StagePlan& a, const plan::StagePlan& b) { return a.arena_bytes < b.arena_bytes; });
  return fmt::format("  memory    {} of a rank{}: weights {}, caches {}, control {}, the largest step {}\n",
                     FormatBytes(stage.arena_bytes), plan.stages.size() > 1 ? " at most" : "",
                     FormatBytes(stage.memory.parameters), FormatBytes(stage.memory.activations),
                     FormatBytes(stage.memory.control), FormatBytes(stage.memory.evaluation));
}

}  // namespace

std::string GenerationText(const plan::Plan& plan, const recipe::Recipe& recipe, std::int64_t slots) {
  const std::int64_t dp = plan.mesh.size(plan::Axis::kDp);
  const std::int64_t ep = plan.mesh.size(plan::Axis::kEp);
  std::string text =
      fmt::format("plan {}\n  mesh      dp {} · tp {} · pp {} · cp {} · ep {}\n", plan.hash, dp,
                  plan.mesh.size(plan::Axis::kTp), plan.mesh.pp, plan.mesh.size(plan::Axis::kCp), ep);
  text += fmt::format("  slots     {} sequences at a time", slots);
  if (dp * ep > 1) text += fmt::format(", {} on each of the {} ranks of dp · ep", slots / (dp * ep), dp * ep);
  text += "\n";
  text += fmt::format("  model     {} parameters, computed in {}\n", WithThousands(plan.parameter_count),
                      plan.compute);
  text += MemoryText(plan);
  text += "  steps     and where the cluster's rates are known, their predicted times with full caches\n";
  for (std::size_t p = 0; p < plan.programs.size(); ++p) {
    const auto program = static_cast<std::int32_t>(p);
    const double seconds = predict::PredictProgram(plan, program, recipe.cluster);
    text += fmt::format("    {:<28}", plan.ProgramName(program));
    if (seconds > 0) text += fmt::format(" {:>10.3f} ms", 1e3 * seconds);
    text += "\n";
  }
  return text;
}

}  // namespace engine::cli
