#include "engine/cli/check_plan.h"

#include <optional>
#include <string>
#include <utility>

#include "engine/cli/device.h"
#include "engine/driver/advise.h"
#include "engine/driver/check_device.h"
#include "engine/driver/check_kernels.h"
#include "engine/driver/compile_recipe.h"
#include "engine/predict/predict.h"
#include "engine/train/bucket.h"
#include "engine/train/evaluation.h"
#include "engine/train/start.h"

namespace engine::cli {
namespace {

// The key that decides what an error is about.
std::string KeyOf(const absl::Status& status) {
  if (absl::IsResourceExhausted(status)) return "cluster.memory_bytes";
  const std::string message = Message(status);
  for (const char* axis : {"tp", "cp", "ep", "dp"}) {
    if (message.find(std::string(" along ") + axis + " ") != std::string::npos) {
      return std::string("parallelism.") + axis;
    }
  }
  return "parallelism.tp";  // of the layout as a whole
}

const char* CodeOf(const absl::Status& status) {
  if (absl::IsInternal(status)) return "E304";
  return absl::IsResourceExhausted(status) ? "E302" : "E301";
}

}  // namespace

Diagnostic PlanDiagnostic(const recipe::Recipe& recipe, const absl::Status& status) {
  Diagnostic diagnostic;
  diagnostic.message =
      (absl::IsInternal(status) ? "the plan is wrong, which is a bug of the engine: " : "") + Message(status);
  diagnostic.code = CodeOf(status);
  diagnostic.span.file = recipe.path;
  const auto it = recipe.provenance.find(KeyOf(status));
  if (it != recipe.provenance.end()) {
    diagnostic.span = it->second.span;
    diagnostic.source_line = it->second.source_line;
  }
  return diagnostic;
}

std::vector<Diagnostic> CheckPlan(const recipe::Recipe& recipe) {
  const plan::DeviceProfile profile = ProfileOf(recipe);
  std::vector<Diagnostic> diagnostics = driver::CheckDevice(recipe, profile);
  const absl::StatusOr<plan::Plan> plan = driver::CompileRecipe(recipe, {.profile = profile});
  if (!plan.ok()) {
    diagnostics.push_back(PlanDiagnostic(recipe, plan.status()));
    return diagnostics;
  }
  for (Diagnostic& error : driver::CheckKernels(recipe, *plan)) diagnostics.push_back(std::move(error));
  const predict::Prediction time = predict::Predict(*plan, recipe.cluster);
  for (Diagnostic& warning : driver::Advise(recipe, *plan, time, profile))
    diagnostics.push_back(std::move(warning));
  if (std::optional<Diagnostic> start = train::CheckStart(recipe, *plan))
    diagnostics.push_back(*std::move(start));
  if (std::optional<Diagnostic> tasks = train::CheckTasks(recipe)) diagnostics.push_back(*std::move(tasks));
  if (std::optional<Diagnostic> upload = train::CheckUpload(recipe))
    diagnostics.push_back(*std::move(upload));
  return diagnostics;
}

}  // namespace engine::cli
