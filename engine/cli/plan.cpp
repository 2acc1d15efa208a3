// `engine plan`: what would run, where every byte lies and who talks to whom, before anything runs.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/file.h"
#include "engine/base/print.h"
#include "engine/base/status.h"
#include "engine/base/units.h"
#include "engine/cli/check_plan.h"
#include "engine/cli/commands.h"
#include "engine/cli/device.h"
#include "engine/cli/plan_generation.h"
#include "engine/cli/plan_passes.h"
#include "engine/cli/recipe_options.h"
#include "engine/driver/check_kernels.h"
#include "engine/driver/compile_recipe.h"
#include "engine/driver/plan_document.h"
#include "engine/generate/cached_decoder.h"
#include "engine/model/load.h"
#include "engine/plan/canonical.h"
#include "engine/plan/json.h"
#include "engine/plan/print.h"
#include "engine/predict/experts.h"
#include "engine/predict/predict.h"
#include "engine/predict/print.h"
#include "engine/predict/trace.h"
#include "engine/recipe/saving.h"

namespace engine::cli {
namespace {

struct PlanArguments {
  std::string file;
  std::string out;
  std::string trace;
  bool json = false;
  bool full = false;
  std::int64_t rank = -1;
  bool passes = false;
  std::string after;       // a pass
  std::int64_t slots = 0;  // of generation; 0: the plan is of training
  recipe::LoadOptions load;
};

std::string CoordinatesText(const plan::Plan& plan, std::int64_t rank) {
  const plan::Coordinates at = plan.mesh.CoordinatesOf(rank);
  const auto of = [&](plan::Axis axis) { return at.axis[static_cast<std::size_t>(axis)]; };
  return fmt::format("rank {} of {}: dp {} tp {} pp {} cp {} ep {}, plan {}\n", rank, plan.mesh.world(),
                     of(plan::Axis::kDp), of(plan::Axis::kTp), at.pp, of(plan::Axis::kCp),
                     of(plan::Axis::kEp), plan.hash);
}

// --rank: the instruction list of that rank's stage; --full alone: the whole canonical text.
std::string FullText(const plan::Plan& plan, std::int64_t rank) {
  std::string text;
  const auto sink = [&](std::string_view piece) { text += piece; };
  if (rank < 0) {
    plan::WriteCanonical(plan, sink);
  } else {
    text = CoordinatesText(plan, rank);
    plan::WriteCanonicalStage(plan, static_cast<std::int32_t>(plan.StageOfRank(rank)), sink);
  }
  return text;
}

std::string JsonText(const plan::Plan& plan, const recipe::Recipe& recipe, const PlanArguments& arguments) {
  nlohmann::ordered_json json = driver::PlanDocument(recipe, plan);
  if (arguments.full) {
    nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
    if (arguments.rank >= 0) {
      ranks.push_back(plan::RankToJson(plan, arguments.rank));
    } else {
      // The first rank of each stage: the others of a stage run the same.
      for (std::int64_t stage = 0; stage < plan.mesh.pp; ++stage) {
        ranks.push_back(plan::RankToJson(plan, stage * plan.mesh.ranks_per_stage()));
      }
    }
    json["ranks"] = std::move(ranks);
  }
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

// What one device holds in all, where the cluster file says what lies outside of the arena.
std::string DeviceMemory(const plan::Plan& plan, const recipe::Recipe& recipe) {
  const std::int64_t outside = recipe.cluster.reserved_bytes;
  if (outside == 0) return "";
  std::int64_t arena = 0;
  for (const plan::StagePlan& stage : plan.stages) arena = std::max(arena, stage.arena_bytes);
  return fmt::format("\nmemory of a device: arena {} + {} of context and libraries = {}\n",
                     FormatBytes(arena), FormatBytes(outside), FormatBytes(arena + outside));
}

// Says how much of the host's memory checkpoints take that are written beside training, and how long the copy of the state; empty
// where none are.
std::string CheckpointText(const plan::Plan& plan, const recipe::Recipe& recipe,
                           const predict::Prediction& prediction) {
  if (!recipe::SavesBeside(recipe)) return "";
  const predict::SnapshotPrediction copy = predict::PredictSnapshot(plan, recipe.cluster);
  std::string text =
      fmt::format("\ncheckpoints beside training: copies of the state in the host's memory, {} of a rank{}",
                  FormatBytes(copy.bytes), plan.mesh.world() > 1 ? " at most" : "");
  if (prediction.has_times())
    text += fmt::format("; copied in {:.1f} ms of the next iteration's {:.1f}", 1e3 * copy.copy_s,
                        1e3 * prediction.iteration_s);
  return text + "\n";
}

// The same of copies in the host's memory, and how often they are made.
std::string MemoryCheckpointText(const plan::Plan& plan, const recipe::Recipe& recipe,
                                 const predict::Prediction& prediction) {
  if (!recipe.checkpoint.memory) return "";
  const predict::MemoryCheckpointPrediction memory = predict::PredictMemoryCheckpoint(plan, recipe);
  std::string text = fmt::format(
      "\ncheckpoints in the host's memory: {} copies of the state, {} of a rank{}; after every {}",
      memory.sent_bytes > 0 ? "two own and another rank's two" : "two", FormatBytes(memory.bytes),
      plan.mesh.world() > 1 ? " at most" : "",
      memory.interval == 1 ? "iteration" : fmt::format("{} iterations", memory.interval));
  if (memory.sent_bytes > 0) text += fmt::format(", {} to another host", FormatBytes(memory.sent_bytes));
  if (prediction.has_times())
    text += fmt::format(", which makes training slower by {:.2f} %", 100 * memory.slower);
  return text + "\n";
}

std::string Text(const plan::Plan& plan, const recipe::Recipe& recipe, const PlanArguments& arguments) {
  if (arguments.json) return JsonText(plan, recipe, arguments);
  if (arguments.full) return FullText(plan, arguments.rank);
  const predict::Prediction prediction = predict::Predict(plan, recipe.cluster);
  std::string text = plan::Summary(plan) + DeviceMemory(plan, recipe) +
                     predict::PredictionText(plan, recipe.cluster, prediction) +
                     predict::ExpertsText(plan, recipe.cluster, prediction) +
                     CheckpointText(plan, recipe, prediction) +
                     MemoryCheckpointText(plan, recipe, prediction);
  if (arguments.rank >= 0) text = CoordinatesText(plan, arguments.rank) + text;
  return text;
}

int Write(const std::string& text, const std::string& path) {
  if (path.empty()) return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() ? 0 : 1;
  std::FILE* file = std::fopen(path.c_str(), "wb");
  bool ok = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (file != nullptr) ok = std::fclose(file) == 0 && ok;
  if (!ok) Print(stderr, "engine plan: {}\n", Message(SystemError("write", path, errno)));
  return ok ? 0 : 1;
}

int WriteTrace(const plan::Plan& plan, const recipe::Recipe& recipe, const std::string& path) {
  if (path.empty()) return 0;
  std::vector<predict::PlayedEvent> events;
  const predict::Prediction prediction = predict::Predict(plan, recipe.cluster, &events);
  for (const std::string& key : prediction.missing) {
    Print(stderr, "engine plan: cluster.{} is not given: the times of the trace are another device's\n", key);
  }
  return Write(predict::ChromeTrace(events, "predicted"), path);
}

// The plan of generation with so many sequences of the recipe's length, in its layout.
int PrintGeneration(recipe::Recipe recipe, const PlanArguments& arguments) {
  driver::SetForGeneration(&recipe);
  const driver::GenerationShape shape =
      generate::ShapeFor(arguments.slots, recipe.data.sequence_length, recipe.parallelism);
  const absl::StatusOr<plan::Plan> plan =
      driver::CompileGeneration(recipe, {.profile = ProfileOf(recipe)}, shape);
  if (!plan.ok()) {
    PrintDiagnostics({PlanDiagnostic(recipe, plan.status())});
    return 1;
  }
  if (arguments.rank >= plan->mesh.world()) {
    Print(stderr, "engine plan: there is no rank {}: generation has {} ranks\n", arguments.rank,
          plan->mesh.world());
    return 1;
  }
  return Write(arguments.full ? FullText(*plan, arguments.rank) : GenerationText(*plan, recipe, shape.slots),
               arguments.out);
}

int PrintPlan(const PlanArguments& arguments) {
  const recipe::LoadResult loaded = model::Load(arguments.file, arguments.load);
  PrintDiagnostics(loaded.diagnostics);
  if (!loaded.ok()) return 1;
  if (arguments.slots > 0) return PrintGeneration(loaded.recipe, arguments);
  // A plan that does not fit the device, or has no fast kernels, is shown all the same: to see why.
  const absl::StatusOr<plan::Plan> plan =
      driver::CompileUnverified(loaded.recipe, {.profile = ProfileOf(loaded.recipe)});
  if (!plan.ok()) {
    PrintDiagnostics({PlanDiagnostic(loaded.recipe, plan.status())});
    return 1;
  }
  if (arguments.rank >= plan->mesh.world()) {
    Print(stderr, "engine plan: there is no rank {}: the world has {} ranks\n", arguments.rank,
          plan->mesh.world());
    return 1;
  }
  if (arguments.passes || !arguments.after.empty()) {
    const absl::StatusOr<std::string> text =
        PassText(loaded.recipe, *plan, ProfileOf(loaded.recipe), arguments.after);
    if (text.ok()) return Write(*text, arguments.out);
    PrintDiagnostics({PlanDiagnostic(loaded.recipe, text.status())});
    return 1;
  }
  if (const int failed = Write(Text(*plan, loaded.recipe, arguments), arguments.out); failed != 0)
    return failed;
  if (const int failed = WriteTrace(*plan, loaded.recipe, arguments.trace); failed != 0) return failed;
  std::vector<Diagnostic> errors = driver::CheckKernels(loaded.recipe, *plan);
  const absl::Status status = driver::VerifyAgainst(loaded.recipe, *plan);
  if (!status.ok()) errors.push_back(PlanDiagnostic(loaded.recipe, status));
  PrintDiagnostics(errors);
  return errors.empty() ? 0 : 1;
}

}  // namespace

void AddPlanCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "plan", "Print the plan of a recipe: memory, communication, schedule, predicted time");
  const auto arguments = std::make_shared<PlanArguments>();
  command->add_option("file", arguments->file, "Recipe")->required()->type_name("FILE");
  CLI::Option* json = command->add_flag("--json", arguments->json, "As JSON");
  command->add_flag("--full", arguments->full, "The list of instructions: of --rank, or of all stages");
  command->add_option("--rank", arguments->rank, "A rank")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{999'999}));
  command->add_option("--out", arguments->out, "Write to this file instead of standard output")
      ->type_name("PATH");
  CLI::Option* trace =
      command
          ->add_option("--trace", arguments->trace,
                       "Write the predicted iteration to this file, for chrome://tracing or ui.perfetto.dev")
          ->type_name("PATH");
  CLI::Option* passes = command->add_flag("--passes", arguments->passes,
                                          "The passes of the compiler, and the time that each takes");
  command
      ->add_option("--after", arguments->after,
                   "The graphs (a node a line) or the plan as they are after this pass of the compiler")
      ->type_name("PASS")
      ->check(CLI::IsMember(PassNames()))
      ->excludes(passes);
  command
      ->add_option("--generate", arguments->slots,
                   "The plan of generation instead, with so many sequences at a time of data.sequence_length "
                   "tokens at most, in the recipe's layout")
      ->check(CLI::Range(1, 1024))
      ->type_name("N")
      ->excludes(passes)
      ->excludes(json)
      ->excludes(trace);
  AddLoadOptions(command, &arguments->load);
  command->footer(
      "Exit codes: 0 printed; 1 the recipe is wrong, or there is no plan for it; 2 wrong options");
  command->callback([arguments, exit_code] { *exit_code = PrintPlan(*arguments); });
}

}  // namespace engine::cli
