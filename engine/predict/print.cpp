#include "engine/predict/print.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/base/units.h"
#include "engine/plan/print.h"
#include "engine/predict/components.h"

namespace engine::predict {
namespace {

std::string Milliseconds(double seconds) { return fmt::format("{:.1f} ms", 1e3 * seconds); }

std::string Rounded(double number) { return WithThousands(std::llround(number)); }

std::string StageTimes(const Prediction& prediction) {
  std::vector<std::vector<std::string>> rows;
  for (const StageTime& stage : prediction.stages) {
    const double hidden = std::max(0.0, stage.exchange_s - stage.exposed_s);
    rows.push_back({Milliseconds(stage.compute_s), Milliseconds(stage.exposed_s),
                    Milliseconds(stage.bubble_s), Milliseconds(stage.update_s), Milliseconds(hidden),
                    Milliseconds(stage.transfer_s)});
  }
  return plan::StageTable({"passes", "exposed exchange", "bubble", "update", "hidden exchange", "transfers"},
                          rows);
}

std::string SlowText(const Prediction& prediction) {
  std::string text;
  for (const SlowTime& time : prediction.slow) {
    text += fmt::format("  slow: {} {}: {} of it, {:.1f} times what a fast kernel would take\n", time.why,
                        Text(time.kind), Milliseconds(time.seconds), time.seconds / time.fast_s);
  }
  if (text.empty()) return text;
  return text + fmt::format("        with fast kernels an iteration would take {}\n",
                            Milliseconds(prediction.fast_iteration_s));
}

// Of a batch that grows: what an iteration of each size takes.
std::string SizesText(const plan::Plan& plan, const recipe::Cluster& cluster) {
  std::string text;
  const std::int32_t largest = plan.ProgramOf(plan::kTrainForm);
  for (std::int32_t p = 0; p <= largest; ++p) {
    const plan::ProgramSpec& spec = plan.ProgramAt(p);
    if (spec.form != plan::kTrainForm || plan.ProgramOf(spec.form) == 0) continue;
    const double seconds = PredictProgram(plan, p, cluster);
    text += fmt::format("  {:>12} {:>12} {:>12} {:>12}\n", WithThousands(spec.global_batch),
                        WithThousands(spec.microbatches), Milliseconds(seconds),
                        Rounded(static_cast<double>(spec.global_batch * plan.sequence) / seconds));
  }
  if (text.empty()) return text;
  return fmt::format("\npredicted iterations of the growing batch\n  {:>12} {:>12} {:>12} {:>12}\n",
                     "samples", "microbatches", "iteration", "tokens/s") +
         text;
}

}  // namespace

std::string PredictionText(const plan::Plan& plan, const recipe::Cluster& cluster,
                           const Prediction& prediction) {
  if (!prediction.missing.empty()) {
    std::vector<std::string> keys;
    for (const std::string& key : prediction.missing) keys.push_back("cluster." + key);
    return fmt::format("\nno predicted time: {} {} not given\n", fmt::join(keys, ", "),
                       keys.size() == 1 ? "is" : "are");
  }
  if (prediction.iteration_s <= 0) return "\nno predicted time: the program does not come to its end\n";
  const double ranks = static_cast<double>(plan.mesh.world());
  std::string text = fmt::format(
      "\npredicted iteration on {}: {} (first four columns: what a stage's time goes to)\n"
      "  {} tokens/s, {} a device; exposed exchange {:.1f}% of the slowest stage, bubble {:.1f}% of the mean "
      "one\n",
      cluster.name, Milliseconds(prediction.iteration_s), Rounded(prediction.tokens_per_s),
      Rounded(prediction.tokens_per_s / ranks), 100 * prediction.exposed, 100 * prediction.bubble);
  text +=
      prediction.mfu > 0
          ? fmt::format(
                "  MFU {:.1f}% of {} dense 16-bit FLOP/s a device ({} FLOPs of the model: without "
                "recomputation, causal pairs once)\n",
                100 * prediction.mfu, FormatCount(cluster.peak_flops), FormatCount(prediction.model_flops))
          : std::string("  no MFU: cluster.peak_flops is not given\n");
  return text + SlowText(prediction) + StageTimes(prediction) + ComponentsText(prediction) +
         SizesText(plan, cluster);
}

}  // namespace engine::predict
