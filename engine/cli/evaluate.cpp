// `engine evaluate`: a trained model asked tasks.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/print.h"
#include "engine/base/status.h"
#include "engine/base/write_file.h"
#include "engine/cli/commands.h"
#include "engine/cli/device.h"
#include "engine/cli/recipe_options.h"
#include "engine/model/load.h"
#include "engine/recipe/shipped.h"
#include "engine/storage/location.h"
#include "engine/train/model_evaluation.h"

namespace engine::cli {
namespace {

namespace fs = std::filesystem;

struct EvaluateArguments {
  std::string model;
  std::string run;
  std::string samples_out;
  bool json = false;
  DeviceChoice device = {.one_process = true};
  driver::ModelLayout layout;
  recipe::LoadOptions load;
  train::ModelEvaluationOptions options;
};

absl::StatusOr<train::EvaluatedModel> OpenModel(const EvaluateArguments& arguments) {
  std::error_code error;
  if (storage::IsUrl(arguments.model) || fs::is_directory(arguments.model, error)) {
    if (!arguments.load.sets.empty() || !arguments.run.empty())
      return InvalidArgument("--set and --run go with a recipe, and {} is none", arguments.model);
    return train::ModelOfFolder(arguments.model, arguments.layout);
  }
  // Of a path that cannot be looked at, loading says why.
  if (!recipe::IsShipped(arguments.model) &&
      fs::status(arguments.model, error).type() == fs::file_type::not_found)
    return NotFound("there is no {}", arguments.model);
  recipe::Recipe none;
  const std::string layout = driver::SetLayout(arguments.layout, &none);
  if (!layout.empty()) {
    return InvalidArgument(
        "{}: the model of a recipe runs on the recipe's layout, which --set parallelism.tp=2 and its like "
        "change",
        layout);
  }
  recipe::LoadResult loaded = model::Load(arguments.model, arguments.load);
  PrintDiagnostics(loaded.diagnostics);
  if (!loaded.ok()) return absl::InvalidArgumentError("the recipe has errors");
  const std::string run =
      arguments.run.empty() ? (fs::path("runs") / fs::path(arguments.model).stem()).string() : arguments.run;
  ASSIGN_OR_RETURN(train::EvaluatedModel model, train::ModelOfRecipe(std::move(loaded.recipe), run));
  if (model.checkpoint.empty() && !arguments.run.empty())
    return NotFound(
        "--run {} holds no whole checkpoint; without --run a recipe that was not trained yet is evaluated as "
        "it starts",
        run);
  return model;
}

// Before anything is computed whose samples could not be kept, or would take the place of what is asked.
absl::Status CheckSamplesFile(const std::string& path, const std::vector<std::string>& tasks) {
  std::error_code error;
  const absl::StatusOr<std::vector<evaluate::TaskSettings>> asked = evaluate::ReadTasks(tasks);
  if (!asked.ok()) return WithContext(asked.status(), "--task");
  for (const evaluate::TaskSettings& task : *asked) {
    if (!path.empty() && fs::equivalent(path, task.file, error))
      return InvalidArgument("--samples-out {}: it is the file of task {}", path, task.name);
  }
  const fs::path folder = fs::absolute(path, error).parent_path();
  if (path.empty() || (fs::is_directory(folder, error) && !fs::is_directory(path, error)))
    return absl::OkStatus();
  return InvalidArgument(
      "--samples-out {}: {}", path,
      fs::is_directory(path, error) ? "it is a folder, and a file is written" : "its folder is not there");
}

void PrintResult(const evaluate::TaskResult& result) {
  Print(stdout, "{}: {} example{}, {} tokens predicted{}\n", result.task, result.examples,
        result.examples == 1 ? "" : "s", result.tokens,
        result.truncated == 1  ? ", 1 context cut at its beginning"
        : result.truncated > 1 ? fmt::format(", {} contexts cut at their beginnings", result.truncated)
                               : "");
  for (const evaluate::Measure& measure : result.measures) {
    Print(stdout, "  {:<20} {:>10.5g}", measure.name, measure.value);
    if (measure.standard_error) Print(stdout, " ± {:.2g}", *measure.standard_error);
    if (measure.interval)
      Print(stdout, "   95 %: {:.5g} to {:.5g}", measure.interval->first, measure.interval->second);
    Print(stdout, "\n");
  }
  std::fflush(stdout);
}

absl::Status EvaluateTasks(EvaluateArguments& arguments) {
  RETURN_IF_ERROR(CheckSamplesFile(arguments.samples_out, arguments.options.tasks));
  ASSIGN_OR_RETURN(const train::EvaluatedModel model, OpenModel(arguments));
  const auto note = [](const std::string& text) { Print(stderr, "note: {}\n", text); };
  for (const std::string& text : model.notes) note(text);
  arguments.options.note = note;
  ASSIGN_OR_RETURN(const state::Device device, MakeDevice(model.recipe, arguments.device));
  nlohmann::json results = nlohmann::json::array();
  std::string samples;
  RETURN_IF_ERROR(train::EvaluateModel(model, arguments.options, device, [&](const train::AskedTask& asked) {
    samples += asked.samples;
    if (arguments.json) {
      results.push_back(evaluate::ToJson(asked.result));
    } else {
      PrintResult(asked.result);
    }
  }));
  if (arguments.json) Print(stdout, "{}\n", results.dump(2));
  return arguments.samples_out.empty() ? absl::OkStatus() : WriteFile(arguments.samples_out, samples);
}

}  // namespace

void AddEvaluateCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "evaluate", "Ask a model tasks: perplexity of texts, last words, multiple choice (docs/evaluation.md)");
  const auto arguments = std::make_shared<EvaluateArguments>();
  command
      ->add_option("model", arguments->model,
                   "A run's folder, one checkpoint, also as s3://BUCKET/KEY, the folder of a Hugging Face "
                   "model, or a recipe, whose "
                   "layout is kept")
      ->required()
      ->type_name("FILE|DIR");
  command
      ->add_option(
          "--task", arguments->options.tasks,
          "FORM=FILE with the form perplexity, wikitext, wikitext103, lambada or multiple_choice; or a "
          "task's TOML file; repeatable")
      ->required()
      ->allow_extra_args(false)
      ->type_name("TASK");
  command
      ->add_option("--run", arguments->run,
                   "Of a recipe: the folder of the run whose newest checkpoint has the weights (default: "
                   "runs/ and the "
                   "name of the recipe's file)")
      ->type_name("DIR");
  command->add_option("--limit", arguments->options.limit, "Examples of each task (default: all)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000'000'000}))
      ->type_name("N");
  command
      ->add_option(
          "--batch", arguments->options.batch,
          "Rows that a rank passes at a time (default: as many as have logits of 512 MiB, 64 at most)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->type_name("N");
  command
      ->add_option("--samples-out", arguments->samples_out,
                   "A file for what the model makes of each example: a line of JSON for each")
      ->type_name("FILE");
  command->add_flag("--json", arguments->json, "Print the results as JSON");
  AddLayoutOptions(command, &arguments->layout);
  AddDeviceOptions(command, "ranks", &arguments->device);
  AddLoadOptions(command, &arguments->load);
  command->footer(
      "Exit codes: 0 evaluated; 1 a task, its file or the model is wrong, or it could not run; 2 wrong "
      "options");
  command->callback([arguments, exit_code] {
    const absl::Status status = EvaluateTasks(*arguments);
    if (!status.ok()) Print(stderr, "engine evaluate: {}\n", Message(status));
    *exit_code = status.ok() ? 0 : 1;
  });
}

}  // namespace engine::cli
