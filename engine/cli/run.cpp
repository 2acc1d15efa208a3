// `engine run`: train what a recipe says.
#include "engine/train/run.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>

#include "engine/cli/commands.h"
#include "engine/cli/device.h"
#include "engine/cli/launch_options.h"
#include "engine/cli/process_group.h"
#include "engine/cli/recipe_options.h"
#include "engine/launch/environment.h"
#include "engine/recipe/load.h"

namespace engine::cli {
namespace {

struct RunArguments {
  std::string file;
  std::string out;
  bool fresh = false;
  DeviceChoice device;
  LaunchOptions launch;
  bool no_graphs = false;
  bool check = false;
  std::int64_t profile = 0;
  recipe::LoadOptions load;
};

// Trains in this process: all ranks, or the one that it is.
absl::Status Train(const recipe::Recipe& recipe, const train::RunOptions& options,
                   const train::Device& device, ProcessGroup* group) {
  const absl::Status status = train::Run(recipe, options, device);
  return status.ok() || group == nullptr ? status : group->Fail(status);
}

// Without what the libraries of a GPU do at the end of a program: streams that wait for a rank that is gone,
// and NCCL's threads, can keep that from ending.
[[noreturn]] void EndRank(std::unique_ptr<ProcessGroup> group, int code) {
  group.reset();
  std::fflush(nullptr);
  std::quick_exit(code);
}

int RunRecipe(const RunArguments& arguments) {
  const absl::StatusOr<std::optional<launch::Placement>> placement =
      launch::FindPlacement(launch::ProcessEnvironment());
  if (!placement.ok()) {
    fmt::print(stderr, "engine run: {}\n", Message(placement.status()));
    return kUsage;
  }
  const bool supervised = *placement && (*placement)->source == launch::kOwnSource;
  const recipe::LoadResult loaded = recipe::Load(arguments.file, arguments.load);
  PrintDiagnostics(loaded.diagnostics);
  if (!loaded.ok()) return 1;
  const bool asked = arguments.launch.processes || arguments.launch.nodes > 1;
  // Each GPU has a process of its own; a launcher has made them already.
  const bool needed = !UsesCpu(loaded.recipe, arguments.device) && loaded.recipe.world_size() > 1;
  if (asked && !supervised && *placement && (*placement)->world != arguments.launch.nodes) {
    fmt::print(
        stderr,
        "engine run: {} has started {} processes, and each would start ranks of its own: leave --processes "
        "out, or start one process on each host\n",
        (*placement)->source, (*placement)->world);
    return kUsage;
  }
  if ((asked && !supervised) || (needed && !*placement)) {
    return RunProcesses(loaded.recipe, arguments.device, arguments.launch);
  }
  if (!supervised) {
    if (const absl::Status status = CheckUnused(arguments.launch, *placement); !status.ok()) {
      fmt::print(stderr, "engine run: {}\n", Message(status));
      return kUsage;
    }
  }
  if (*placement && (*placement)->world != loaded.recipe.world_size()) {
    fmt::print(stderr, "engine run: {} has started {} processes, but the recipe's layout has {} ranks\n",
               (*placement)->source, (*placement)->world, loaded.recipe.world_size());
    return kUsage;
  }
  train::RunOptions options;
  options.out = arguments.out;
  options.fresh = arguments.fresh;
  if (options.out.empty()) {
    options.out = (std::filesystem::path("runs") / std::filesystem::path(arguments.file).stem()).string();
  }
  options.executor = {.record = !arguments.no_graphs, .check = arguments.check};
  options.profile = arguments.profile;
  std::unique_ptr<ProcessGroup> group;
  if (*placement) {
    launch::Placement place = **placement;
    if (!supervised && !arguments.launch.token_file.empty()) {
      absl::StatusOr<std::string> token = ReadToken(arguments.launch.token_file);
      if (!token.ok()) {
        fmt::print(stderr, "engine run: {}\n", Message(token.status()));
        return kUsage;
      }
      place.token = *std::move(token);
    }
    absl::StatusOr<std::unique_ptr<ProcessGroup>> opened =
        ProcessGroup::Open(place, RendezvousOf(arguments.launch));
    if (!opened.ok()) {
      fmt::print(stderr, "engine run: {}\n", Message(opened.status()));
      return kFailed;
    }
    group = *std::move(opened);
  }
  const absl::StatusOr<train::Device> device = MakeDevice(loaded.recipe, arguments.device, group.get());
  if (!device.ok()) {
    const absl::Status reason = group == nullptr ? device.status() : group->Fail(device.status());
    fmt::print(stderr, "engine run: {}\n", Message(reason));
    return kNoDevice;
  }
  const absl::Status status = Train(loaded.recipe, options, *device, group.get());
  if (!status.ok()) {
    // What is the recipe's fault is located already.
    const std::string text = Message(status);
    fmt::print(stderr, "{}{}\n", text.find(": error: ") == std::string::npos ? "engine run: " : "", text);
  }
  const int code = status.ok() ? 0 : ExitCodeOf(status);
  if (group != nullptr && device->profile.name == "cuda") EndRank(std::move(group), code);
  return code;
}

std::string ExitCodes() {
  return fmt::format(
      "Exit codes:\n"
      "  0  trained to the end, or stopped by a signal and saved\n"
      "  {}  the recipe, the data, the memory that they need, or the training\n"
      "  2  wrong options\n"
      "  {}  no device will do, or a library of it is missing or too old; nothing was started\n"
      "  {}  the device or a library of it failed while it ran\n"
      "  {}  another rank failed or was lost, or the ranks did not come together\n"
      "Of several processes, the code of the rank that failed first; 128 + n where signal n ended it.",
      static_cast<int>(kFailed), static_cast<int>(kNoDevice), static_cast<int>(kDeviceFailed),
      static_cast<int>(kPeerLost));
}

}  // namespace

void AddRunCommand(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("run", "Train what a recipe says; resumes from the newest checkpoint of --out");
  const auto arguments = std::make_shared<RunArguments>();
  command->add_option("recipe", arguments->file, "Recipe")->required()->type_name("FILE");
  command
      ->add_option("--out", arguments->out,
                   "Folder of the run: metrics.jsonl, resolved.toml, plan.json, checkpoints/ (default: "
                   "runs/ and the recipe's name)")
      ->type_name("DIR");
  command->add_flag("--fresh", arguments->fresh,
                    "Refuse a folder that already holds a run, instead of resuming it");
  AddDeviceOptions(command, "ranks", &arguments->device);
  command->add_flag("--no-graphs", arguments->no_graphs,
                    "Launch every kernel by itself instead of replaying CUDA graphs");
  command->add_flag(
      "--check", arguments->check,
      "Wait after each instruction and check that what it made is finite (slow); names the first that "
      "made something else");
  command
      ->add_option("--profile", arguments->profile,
                   "Time each instruction of so many iterations; writes profile.txt and trace.json, and "
                   "those of rank R in profile-R.txt and trace-R.json")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{100}));
  AddLaunchOptions(command, &arguments->launch);
  command
      ->add_flag("--share-gpus", arguments->device.share_gpus,
                 "Let ranks share GPUs where there are fewer of these, to try a layout (slow)")
      ->group(kProcesses);
  AddLoadOptions(command, &arguments->load);
  command->footer(ExitCodes());
  command->callback([arguments, exit_code, command] {
    arguments->launch.nodes_given = command->count("--nodes") > 0;
    *exit_code = RunRecipe(*arguments);
  });
}

}  // namespace engine::cli
