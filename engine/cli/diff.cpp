// `engine diff`: what differs between two recipes, plans or checkpoints, and what that does.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "engine/base/file.h"
#include "engine/base/print.h"
#include "engine/checkpoint/compare.h"
#include "engine/checkpoint/layout.h"
#include "engine/checkpoint/read.h"
#include "engine/cli/check_plan.h"
#include "engine/cli/commands.h"
#include "engine/cli/device.h"
#include "engine/cli/recipe_options.h"
#include "engine/driver/run_folder.h"
#include "engine/hf/compare.h"
#include "engine/hf/model_folder.h"
#include "engine/model/load.h"
#include "engine/study/comparison.h"
#include "engine/train/run.h"

namespace engine::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kDifferent = 1;
constexpr int kNoComparison = 2;

struct DiffArguments {
  std::string a, b;
  std::string format = "text";
  bool exit_code = false;
  recipe::LoadOptions load;  // of both
  recipe::LoadOptions load_a, load_b;
};

// A file's text, and what kind of thing it is.
struct Input {
  enum class Kind { kRecipe, kPlan, kKeptRecipe } kind = Kind::kRecipe;
  std::string text;
  std::string file = {};  // that holds the text
};

absl::StatusOr<Input> ReadPlan(const std::string& file) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 30;
  ASSIGN_OR_RETURN(std::string text, ReadRegular(file, kMostBytes));
  return Input{Input::Kind::kPlan, std::move(text), file};
}

bool IsCheckpoint(const std::string& path) {
  std::error_code error;
  return fs::exists(checkpoint::JoinPath(path, checkpoint::kManifestName), error);
}

absl::StatusOr<Input> Read(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    if (fs::path(path).extension() != ".json") return Input{Input::Kind::kRecipe, ""};
    return ReadPlan(path);
  }
  if (IsCheckpoint(path)) {
    ASSIGN_OR_RETURN(const checkpoint::Reader reader, checkpoint::Reader::Open(path));
    return Input{Input::Kind::kKeptRecipe, reader.metadata().recipe_toml};
  }
  const std::string plan = (fs::path(path) / driver::kPlanName).string();
  if (!fs::exists(plan, error)) {
    return InvalidArgument("{} holds neither a checkpoint (manifest.json) nor a run (plan.json)", path);
  }
  return ReadPlan(plan);
}

// Prints what is wrong with a recipe, at its place.
absl::StatusOr<study::Side> Compiled(const std::string& name, const recipe::LoadResult& loaded) {
  PrintDiagnostics(loaded.diagnostics);
  if (!loaded.ok()) return absl::InvalidArgumentError("");
  const plan::DeviceProfile profile = ProfileOf(loaded.recipe);
  absl::StatusOr<study::Side> side = study::SideOf(name, loaded.recipe, profile);
  if (side.ok()) return side;
  PrintDiagnostics({PlanDiagnostic(loaded.recipe, side.status())});
  return absl::InvalidArgumentError("");
}

std::string NameWithSets(std::string name, const recipe::LoadOptions& options) {
  for (const std::string& set : options.sets) name += " --set " + set;
  return name;
}

absl::StatusOr<study::Side> Open(const std::string& path, const recipe::LoadOptions& options) {
  const std::string name = NameWithSets(path, options);
  ASSIGN_OR_RETURN(const Input input, Read(path));
  if (input.kind == Input::Kind::kRecipe) return Compiled(name, model::Load(path, options));
  std::string kept = input.text;
  if (input.kind == Input::Kind::kPlan) {
    ASSIGN_OR_RETURN(study::Side side, study::SideOfPlan(input.file, input.text));
    side.name = path;
    if (input.file != path) side.tasks = study::LastMeasures(path);
    if (options.sets.empty()) return side;
    const auto json = nlohmann::json::parse(input.text, nullptr, /*allow_exceptions=*/false);
    if (!side.recipe)
      return InvalidArgument("{} does not hold its recipe, so that --set can change nothing", path);
    kept = json["recipe"].get<std::string>();
  }
  ASSIGN_OR_RETURN(study::Side side, Compiled(name, model::LoadText(kept, path + " (recipe)", options)));
  side.kept = true;
  return side;
}

// The sets of both sides, then those of one.
recipe::LoadOptions Joined(recipe::LoadOptions both, const recipe::LoadOptions& one) {
  both.sets.insert(both.sets.end(), one.sets.begin(), one.sets.end());
  return both;
}

// The folder of a Hugging Face model, and of nothing of ours.
bool IsModel(const std::string& path) {
  std::error_code error;
  return hf::IsModelFolder(path) && !IsCheckpoint(path) &&
         !fs::exists(fs::path(path) / driver::kPlanName, error);
}

int DiffModels(const DiffArguments& arguments) {
  if (!IsModel(arguments.a) || !IsModel(arguments.b)) {
    Print(
        stderr,
        "engine diff: {} is the folder of a Hugging Face model, and {} is none\n    hint: `engine export hf` "
        "makes one of a run\n",
        IsModel(arguments.a) ? arguments.a : arguments.b, IsModel(arguments.a) ? arguments.b : arguments.a);
    return kNoComparison;
  }
  if (!arguments.load.sets.empty() || !arguments.load_a.sets.empty() || !arguments.load_b.sets.empty()) {
    Print(stderr, "engine diff: --set changes recipes, and these are Hugging Face models\n");
    return kNoComparison;
  }
  const absl::StatusOr<hf::ModelDifferences> differences = hf::CompareModels(arguments.a, arguments.b);
  if (!differences.ok()) {
    Print(stderr, "engine diff: {}\n", Message(differences.status()));
    return kNoComparison;
  }
  const std::string text = arguments.format == "json" ? hf::ToJson(*differences).dump(2) + "\n"
                                                      : hf::ToText(*differences, arguments.a, arguments.b,
                                                                   arguments.format == "markdown");
  std::fputs(text.c_str(), stdout);
  return arguments.exit_code && !differences->empty() ? kDifferent : 0;
}

// The side of that letter; where it is refused, what is wrong with it is told.
absl::StatusOr<study::Side> OpenSide(char letter, const std::string& path,
                                     const recipe::LoadOptions& options) {
  absl::StatusOr<study::Side> side = Open(path, options);
  if (side.ok()) return side;
  const bool is_told = side.status().message().empty();  // by its diagnostics, which are no status
  if (!is_told) Print(stderr, "engine diff: {}\n", Message(side.status()));
  Print(stderr, "engine diff: side {}, {}, is refused{}: nothing was compared\n", letter,
        NameWithSets(path, options), is_told ? " for these errors" : "");
  return side;
}

// The differences of what two checkpoints hold; nothing where not both sides are checkpoints.
absl::StatusOr<std::optional<checkpoint::Differences>> Contents(const DiffArguments& arguments) {
  if (!IsCheckpoint(arguments.a) || !IsCheckpoint(arguments.b)) return std::nullopt;
  ASSIGN_OR_RETURN(const checkpoint::Reader a, checkpoint::Reader::Open(arguments.a));
  ASSIGN_OR_RETURN(const checkpoint::Reader b, checkpoint::Reader::Open(arguments.b));
  return checkpoint::Compare(a, b);
}

std::string TextOf(const study::Comparison& comparison,
                   const std::optional<checkpoint::Differences>& contents, const std::string& format) {
  if (format == "json") {
    nlohmann::ordered_json json = ToJson(comparison);
    if (contents) json["checkpoint"] = checkpoint::ToJson(*contents);
    // A file name need not be UTF-8.
    return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  const bool is_markdown = format == "markdown";
  const std::string text = is_markdown ? ToMarkdown(comparison) : ToText(comparison);
  return contents ? text + checkpoint::ToText(*contents, is_markdown) : text;
}

int Diff(const DiffArguments& arguments) {
  if (IsModel(arguments.a) || IsModel(arguments.b)) return DiffModels(arguments);
  const absl::StatusOr<study::Side> a = OpenSide('a', arguments.a, Joined(arguments.load, arguments.load_a));
  const absl::StatusOr<study::Side> b = OpenSide('b', arguments.b, Joined(arguments.load, arguments.load_b));
  if (!a.ok() || !b.ok()) return kNoComparison;
  const absl::StatusOr<std::optional<checkpoint::Differences>> contents = Contents(arguments);
  if (!contents.ok()) {
    Print(stderr, "engine diff: {}\n", Message(contents.status()));
    return kNoComparison;
  }
  study::Comparison comparison = study::Compare(*a, *b);
  comparison.more_differs = *contents && !(*contents)->empty();
  std::fputs(TextOf(comparison, *contents, arguments.format).c_str(), stdout);
  const bool is_different = !comparison.empty() || comparison.more_differs;
  return arguments.exit_code && is_different ? kDifferent : 0;
}

}  // namespace

void AddDiffCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "diff",
      "What differs between two recipes, plans (plan --json), runs or checkpoints, and what it does; or "
      "between two Hugging Face models");
  const auto arguments = std::make_shared<DiffArguments>();
  const std::string kinds = "FILE|DIR";
  command->add_option("a", arguments->a, "Recipe, plan, run, checkpoint, or folder of a Hugging Face model")
      ->required()
      ->type_name(kinds);
  command->add_option("b", arguments->b, "What it is compared with")->required()->type_name(kinds);
  command->add_option("--format", arguments->format, "Output: text, markdown or json")
      ->check(CLI::IsMember({"text", "markdown", "json"}))
      ->capture_default_str();
  command->add_flag("--exit-code", arguments->exit_code, "Exit with 1 where there is a difference");
  AddLoadOptions(command, &arguments->load);
  AddSetOption(command, "--set-a", "As --set, of the first alone", &arguments->load_a);
  AddSetOption(command, "--set-b", "As --set, of the second alone", &arguments->load_b);
  command->footer(
      "Exit codes: 0 compared; 1 they differ, with --exit-code; 2 wrong options, or a side that is wrong");
  command->callback([arguments, exit_code] { *exit_code = Diff(*arguments); });
}

}  // namespace engine::cli
