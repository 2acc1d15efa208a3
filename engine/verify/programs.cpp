#include <algorithm>
#include <cstdint>
#include <iterator>

#include "engine/verify/text.h"
#include "engine/verify/verify.h"

namespace engine::verify {
namespace {

// Whether microbatches of `samples` have room for a batch, and none of them, or of the groups in which they come, is without any of
// it: behind its last sample there may be empty ones (training.pad_batch).
bool IsRoomFor(std::int64_t batch, std::int64_t microbatches, std::int64_t samples, const plan::Plan& plan) {
  const bool interleaved = plan.stages[0].chunks.size() > 1;
  const std::int64_t group = plan.halves * (interleaved ? std::ssize(plan.stages) : 1);
  const std::int64_t empty = microbatches * samples - batch;
  return batch > 0 && empty >= 0 && empty < samples * group;
}

absl::Status Size(const plan::Plan& plan, std::int32_t program) {
  const plan::ProgramSpec& spec = plan.ProgramAt(program);
  const std::int64_t halves = plan.HalvesOf(spec.form);
  if (spec.microbatches < 1 || spec.microbatches % halves != 0) {
    return Internal("{} has {} microbatches, of which {} run at once", plan.ProgramName(program),
                    spec.microbatches, halves);
  }
  const std::int64_t samples = plan.SamplesOf(spec.form);
  if (!IsRoomFor(spec.global_batch, spec.microbatches, samples, plan)) {
    return Internal("{}: {} microbatches of {} samples are no {} samples", plan.ProgramName(program),
                    spec.microbatches, samples, spec.global_batch);
  }
  return absl::OkStatus();
}

// A step of generation is one microbatch.
absl::Status OfGeneration(const plan::Plan& plan, plan::FormId form, std::int64_t largest) {
  const plan::Form& of = plan.FormAt(form);
  if (of.samples >= 1 && of.tokens >= 1 && largest <= of.samples) return absl::OkStatus();
  return Internal("{} of {} sequences has a program of {}", plan.FormName(form), of.samples, largest);
}

absl::Status Sizes(const plan::Plan& plan, plan::FormId form) {
  std::int64_t before = 0;
  for (size_t p = 0; p < plan.programs.size(); ++p) {
    if (plan.programs[p].form != form) continue;
    RETURN_IF_ERROR(Size(plan, static_cast<std::int32_t>(p)));
    const std::int64_t size = plan.programs[p].global_batch;
    if (size <= before) {
      return Internal("a {} program of {} samples comes behind one of {}", plan.FormName(form), size, before);
    }
    before = size;
  }
  if (plan.FactsAt(form).generates) return OfGeneration(plan, form, before);
  if (before == 0 || before == plan.global_batch) return absl::OkStatus();
  return Internal("the largest {} program has {} samples, the plan {}", plan.FormName(form), before,
                  plan.global_batch);
}

absl::Status OfStage(const plan::Plan& plan, std::int32_t index) {
  const plan::StagePlan& stage = plan.stages[static_cast<size_t>(index)];
  if (stage.programs.size() != plan.programs.size())
    return Internal("stage {} has {} programs of {}", index, stage.programs.size(), plan.programs.size());
  for (plan::FormId form = 0; form < plan.FormsEnd(); ++form) {
    const plan::StagePlan::Ends& ends = stage.ends[form];
    const bool wanted = plan.ProgramOf(form) >= 0;
    if ((ends.first >= 0) == wanted && (ends.last >= 0) == wanted) continue;
    return Internal("stage {} has {}first and last segment to {}", index, wanted ? "no " : "a ",
                    plan.FormName(form));
  }
  return absl::OkStatus();
}

// Training and evaluation come first, and nothing else is of their kind.
absl::Status Forms(const plan::Plan& plan) {
  for (plan::FormId form = 0; form < plan.FormsEnd(); ++form) {
    const plan::ProgramKind wanted =
        form == plan::kTrainForm ? plan::ProgramKind::kTrain : plan::ProgramKind::kEvaluate;
    const bool lawful =
        form < plan::kFirstGenerationForm ? plan.FormAt(form).kind == wanted : plan.FactsAt(form).generates;
    if (!lawful) return Internal("form {} of the plan is to {}", form, plan.FormName(form));
  }
  for (const plan::ProgramSpec& spec : plan.programs) {
    if (spec.form < 0 || spec.form >= plan.FormsEnd())
      return Internal("a program of form {}, and the plan has {}", spec.form, plan.FormsEnd());
  }
  return absl::OkStatus();
}

// A plan is there to evaluate, or to generate.
bool RunsForward(const plan::Plan& plan) {
  return std::any_of(plan.programs.begin(), plan.programs.end(),
                     [&](const plan::ProgramSpec& spec) { return !plan.FactsAt(spec.form).trains; });
}

}  // namespace

absl::Status VerifyPrograms(const plan::Plan& plan) {
  RETURN_IF_ERROR(Forms(plan));
  if (!RunsForward(plan)) return Internal("no program evaluates");
  if (!IsRoomFor(plan.global_batch, plan.microbatches, plan.microbatch_samples, plan)) {
    return Internal("{} microbatches of {} samples are no global batch of {}", plan.microbatches,
                    plan.microbatch_samples, plan.global_batch);
  }
  for (plan::FormId form = 0; form < plan.FormsEnd(); ++form) RETURN_IF_ERROR(Sizes(plan, form));
  for (size_t s = 0; s < plan.stages.size(); ++s)
    RETURN_IF_ERROR(OfStage(plan, static_cast<std::int32_t>(s)));
  return absl::OkStatus();
}

}  // namespace engine::verify
