#include "engine/train/setup.h"

#include <algorithm>
#include <filesystem>

#include "engine/base/file.h"
#include "engine/base/units.h"
#include "engine/base/write_file.h"
#include "engine/driver/check_device.h"
#include "engine/driver/check_kernels.h"
#include "engine/driver/plan_document.h"
#include "engine/driver/run_folder.h"
#include "engine/predict/predict.h"
#include "engine/recipe/print.h"
#include "engine/train/origin.h"
#include "engine/verify/verify.h"

namespace engine::train {

absl::Status CheckLimits(const recipe::Recipe& recipe, const plan::DeviceProfile& device) {
  return ErrorOf(driver::CheckDevice(recipe, device));
}

absl::Status CheckFast(const recipe::Recipe& recipe, const plan::Plan& plan) {
  return ErrorOf(driver::CheckKernels(recipe, plan));
}

std::int64_t ArenasBytes(const plan::Plan& plan) {
  std::int64_t bytes = 0;
  for (const plan::StagePlan& stage : plan.stages) bytes += stage.arena_bytes * plan.mesh.ranks_per_stage();
  return bytes;
}

absl::Status CheckMemory(const RunContext& run, std::int64_t arenas_bytes, std::int64_t ranks) {
  if (run.device.memory_bytes == 0 || arenas_bytes <= run.device.memory_bytes) return absl::OkStatus();
  const auto fullest = std::max_element(
      run.plan.stages.begin(), run.plan.stages.end(),
      [](const plan::StagePlan& a, const plan::StagePlan& b) { return a.arena_bytes < b.arena_bytes; });
  return ResourceExhausted(
      "{} {}{}, but {} {} of memory for the {} executor; on stage {}, {}",
      ranks == 1 ? "one rank needs an arena of" : fmt::format("{} ranks need arenas of", ranks),
      FormatBytes(arenas_bytes), ranks == 1 ? "" : " together", run.device.memory_source,
      FormatBytes(run.device.memory_bytes), run.device.profile.name, fullest - run.plan.stages.begin(),
      verify::ArenaText(run.plan, *fullest, run.device.memory_bytes / ranks));
}

absl::Status PrepareFolder(const RunContext& run) {
  // All of them before the first is written, and before ranks are made ready.
  for (const char* name :
       {driver::kResolvedName, driver::kOriginName, driver::kPlanName, driver::kMetricsName}) {
    RETURN_IF_ERROR(CheckRegularOrAbsent((std::filesystem::path(run.options.out) / name).string()));
  }
  std::error_code error;
  std::filesystem::create_directories(CheckpointRoot(run.options.out), error);
  if (error) return Unavailable("{}: cannot create: {}", CheckpointRoot(run.options.out), error.message());
  RETURN_IF_ERROR(
      WriteFile(std::filesystem::path(run.options.out) / driver::kResolvedName, recipe::ToToml(run.recipe)));
  RETURN_IF_ERROR(WriteOrigin(run.recipe, run.options.out));
  return WriteFile(std::filesystem::path(run.options.out) / driver::kPlanName,
                   driver::PlanDocument(run.recipe, run.plan).dump(1) + "\n");
}

RunFacts FactsOf(const RunContext& run) {
  RunFacts facts{.arenas_bytes = ArenasBytes(run.plan),
                 .global_batch = run.plan.global_batch,
                 .tokens = run.plan.global_batch * run.plan.sequence,
                 .samples = run.recipe.samples(),
                 .devices = run.plan.mesh.world(),
                 .model_flops = predict::Predict(run.plan, run.recipe.cluster).model_flops,
                 .peak_flops = run.recipe.cluster.peak_flops,
                 .gpus = run.device.profile.name == "cuda"};
  for (const plan::StagePlan& stage : run.plan.stages) {
    facts.arena_bytes = std::max(facts.arena_bytes, stage.arena_bytes);
  }
  return facts;
}

void Announce(const RunContext& run, const std::optional<KeptState>& kept,
              const std::optional<ResumePoint>& resume, const std::optional<StartPoint>& start) {
  const recipe::Parallelism& p = run.recipe.parallelism;
  run.reporter->Line(
      fmt::format("plan {} | {} parameters | dp {} · tp {} · pp {} · cp {} · ep {} = {} ranks ({})",
                  run.plan.hash, WithThousands(run.plan.parameter_count), p.dp, p.tp, p.pp, p.cp, p.ep,
                  run.recipe.world_size(), run.device.profile.name));
  for (const std::string& note : run.plan.notes) run.reporter->Note(note);
  run.reporter->Line(run.source->Summary());
  if (start && !kept) {
    for (const std::string& note : start->notes) run.reporter->Note(note);
    run.reporter->Line(start->summary);
  }
  if (kept) {
    const OtherLayout* const other = kept->other_layout.get();
    run.reporter->Line(
        fmt::format("resumed from the hosts' memory after iteration {}{}", kept->position.iteration,
                    other == nullptr ? "" : fmt::format(", copied with dp {}", other->layout().dp)));
  }
  if (kept || !resume) return;
  for (const std::string& note : resume->notes) run.reporter->Note(note);
  run.reporter->Line(fmt::format("resumed from {} after iteration {}", resume->reader.folder(),
                                 resume->reader.metadata().iteration));
}

}  // namespace engine::train
