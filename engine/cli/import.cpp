// `engine import`: another framework's run as a recipe.
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/file.h"
#include "engine/base/print.h"
#include "engine/base/status.h"
#include "engine/base/units.h"
#include "engine/cli/commands.h"
#include "engine/cli/device.h"
#include "engine/cli/recipe_options.h"
#include "engine/import/megatron_flags.h"
#include "engine/import/megatron_import.h"
#include "engine/train/hf_import.h"

namespace engine::cli {
namespace {

namespace fs = std::filesystem;

struct ImportArguments {
  std::string file;
  std::string out;
  std::string cluster;
  std::vector<std::string> sets;
  bool flags = false;
};

int Fail(const std::string& message) {
  std::fputs((message + "\n").c_str(), stderr);
  return 1;
}

// The cluster's file as the recipe's folder sees it.
std::string FromFolderOf(const std::string& out, const std::string& cluster) {
  std::error_code error;
  const fs::path folder = fs::absolute(fs::path(out), error).parent_path();
  return fs::absolute(cluster, error)
      .lexically_normal()
      .lexically_proximate(folder.lexically_normal())
      .string();
}

int WriteRecipe(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  return file.good() ? 0 : Fail(Message(SystemError("write", path, errno)));
}

int ImportMegatron(const ImportArguments& arguments) {
  if (arguments.flags) {
    std::fputs(import::MegatronFlagTable().c_str(), stdout);
    return 0;
  }
  import::MegatronOptions options;
  for (const std::string& set : arguments.sets) {
    const std::size_t equals = set.find('=');
    if (equals == std::string::npos || equals == 0) {
      return Fail(fmt::format("--set {}: it must be NAME=VALUE", recipe::Shown(set)));
    }
    options.variables[set.substr(0, equals)] = set.substr(equals + 1);
  }
  if (!arguments.cluster.empty()) {
    if (!fs::is_regular_file(arguments.cluster)) {
      return Fail(fmt::format("--cluster {}: there is no such file", recipe::ShownPath(arguments.cluster)));
    }
    options.cluster = FromFolderOf(arguments.out, arguments.cluster);
  }
  absl::StatusOr<std::string> text = recipe::ReadRecipeFile(arguments.file, arguments.file);
  if (!text.ok()) return Fail(Message(text.status()));
  const import::MegatronImport import =
      import::ImportMegatron(recipe::Source(arguments.file, *std::move(text)), options);
  if (import.ok() && arguments.out.empty()) std::fputs(import.recipe.c_str(), stdout);
  std::fflush(stdout);  // before what is said of it, where both go to one file
  PrintDiagnostics(import.diagnostics);
  if (import.ok() && !arguments.out.empty()) {
    if (const int exit_code = WriteRecipe(arguments.out, import.recipe); exit_code != 0) return exit_code;
  }
  std::fputs((import.summary + "\n").c_str(), stderr);
  return import.ok() ? 0 : 1;
}

struct HfArguments {
  std::string folder;
  std::string out;
  std::string recipe;
};

absl::Status ImportHuggingFace(const HfArguments& arguments) {
  train::HfImport import;
  if (arguments.out.empty()) {
    ASSIGN_OR_RETURN(import, train::RecipeOfHf(arguments.folder));
    if (WriteRecipe(arguments.recipe, import.recipe) != 0) return Unavailable("the recipe was not written");
  } else {
    ASSIGN_OR_RETURN(const state::Device device, MakeDevice({}, {.kind = "cpu", .threads = 0}));
    ASSIGN_OR_RETURN(import, train::ImportHf(arguments.folder, arguments.out, device.profile));
  }
  for (const std::string& note : import.notes) Print(stderr, "note: {}\n", note);
  Print(stdout, "{}: {}, {} parameters, in {}\n", arguments.folder, import.family,
        WithThousands(import.parameters), arguments.out.empty() ? arguments.recipe : arguments.out);
  return absl::OkStatus();
}

void AddHfCommand(CLI::App& import, int* exit_code) {
  CLI::App* hf = import.add_subcommand(
      "hf", "Make a run, or a recipe, of the folder of a Hugging Face model: config.json and *.safetensors");
  const auto arguments = std::make_shared<HfArguments>();
  hf->add_option("folder", arguments->folder, "The model's folder")->required()->type_name("DIR");
  CLI::Option* out =
      hf->add_option("--out", arguments->out,
                     "Write a run's folder: recipe.toml, the weights as a checkpoint of iteration 0, and the "
                     "files that go with them")
          ->type_name("DIR");
  CLI::Option* recipe =
      hf->add_option("--recipe", arguments->recipe,
                     "Write a recipe alone, whose runs read their first weights from the model's folder")
          ->type_name("RECIPE.toml")
          ->excludes(out);
  hf->footer("Exit codes: 0 imported; 1 the folder cannot be a model here; 2 wrong options");
  hf->callback([arguments, exit_code, out, recipe] {
    if (out->empty() && recipe->empty()) throw CLI::RequiredError("--out or --recipe");
    const absl::Status status = ImportHuggingFace(*arguments);
    if (!status.ok()) Print(stderr, "engine import: {}\n", Message(status));
    *exit_code = status.ok() ? 0 : 1;
  });
}

}  // namespace

void AddImportCommand(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("import", "Make a recipe of another program's run, or a run of its model");
  command->require_subcommand(1);
  CLI::App* megatron = command->add_subcommand(
      "megatron", "Make a recipe of a Megatron-LM launch script (bash), or of a file of its flags");
  const auto arguments = std::make_shared<ImportArguments>();
  CLI::Option* file =
      megatron->add_option("file", arguments->file, "Script; it is read, never run")->type_name("FILE");
  megatron->add_option("--out", arguments->out, "Write the recipe here, not to standard output")
      ->type_name("RECIPE.toml");
  megatron
      ->add_option("--cluster", arguments->cluster, "File of [cluster] that the recipe extends: its devices")
      ->type_name("FILE");
  megatron
      ->add_option("--set", arguments->sets,
                   "A variable of the script, whatever it sets it to itself; repeatable")
      ->type_name("NAME=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  CLI::Option* flags =
      megatron->add_flag("--flags", arguments->flags, "Print the flags that are known, as a Markdown table");
  megatron->footer("Exit codes: 0 imported; 1 the script cannot be a recipe; 2 wrong options");
  AddHfCommand(*command, exit_code);
  megatron->callback([arguments, file, flags, exit_code] {
    if (file->empty() && flags->empty()) throw CLI::RequiredError("file");
    *exit_code = ImportMegatron(*arguments);
  });
}

}  // namespace engine::cli
