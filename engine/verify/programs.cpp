#include "engine/verify/text.h"
#include "engine/verify/verify.h"

namespace engine::verify {
namespace {

absl::Status Size(const plan::Plan& plan, std::int32_t program) {
  const plan::ProgramSpec& spec = plan.ProgramAt(program);
  const std::int64_t halves = plan.HalvesOf(spec.kind);
  if (spec.microbatches < 1 || spec.microbatches % halves != 0) {
    return Internal("{} has {} microbatches, of which {} run at once", plan.ProgramName(program),
                    spec.microbatches, halves);
  }
  if (spec.global_batch != spec.microbatches * plan.microbatch_samples) {
    return Internal("{}: {} microbatches of {} samples are no {} samples", plan.ProgramName(program),
                    spec.microbatches, plan.microbatch_samples, spec.global_batch);
  }
  return absl::OkStatus();
}

absl::Status Sizes(const plan::Plan& plan, plan::ProgramKind kind) {
  std::int64_t before = 0;
  for (size_t p = 0; p < plan.programs.size(); ++p) {
    if (plan.programs[p].kind != kind) continue;
    RETURN_IF_ERROR(Size(plan, static_cast<std::int32_t>(p)));
    const std::int64_t size = plan.programs[p].global_batch;
    if (size <= before) {
      return Internal("a {} program of {} samples comes behind one of {}", plan::FactsOf(kind).name, size,
                      before);
    }
    before = size;
  }
  if (before == 0 || before == plan.global_batch) return absl::OkStatus();
  return Internal("the largest {} program has {} samples, the plan {}", plan::FactsOf(kind).name, before,
                  plan.global_batch);
}

absl::Status OfStage(const plan::Plan& plan, std::int32_t index) {
  const plan::StagePlan& stage = plan.stages[static_cast<size_t>(index)];
  if (stage.programs.size() != plan.programs.size())
    return Internal("stage {} has {} programs of {}", index, stage.programs.size(), plan.programs.size());
  for (const plan::ProgramKind kind : plan::kProgramKinds) {
    const plan::StagePlan::Ends& ends = stage.ends[kind];
    const bool wanted = plan.ProgramOf(kind) >= 0;
    if ((ends.first >= 0) == wanted && (ends.last >= 0) == wanted) continue;
    return Internal("stage {} has {}first and last segment to {}", index, wanted ? "no " : "a ",
                    plan::FactsOf(kind).name);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status VerifyPrograms(const plan::Plan& plan) {
  if (plan.ProgramOf(plan::ProgramKind::kEvaluate) < 0) return Internal("no program evaluates");
  if (plan.microbatches * plan.microbatch_samples != plan.global_batch) {
    return Internal("{} microbatches of {} samples are no global batch of {}", plan.microbatches,
                    plan.microbatch_samples, plan.global_batch);
  }
  for (const plan::ProgramKind kind : plan::kProgramKinds) RETURN_IF_ERROR(Sizes(plan, kind));
  for (size_t s = 0; s < plan.stages.size(); ++s)
    RETURN_IF_ERROR(OfStage(plan, static_cast<std::int32_t>(s)));
  return absl::OkStatus();
}

}  // namespace engine::verify
