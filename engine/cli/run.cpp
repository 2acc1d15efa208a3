// `engine run`: train what a recipe says.
#include "engine/train/run.h"

#include <absl/status/status.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "engine/cli/commands.h"
#include "engine/cli/device.h"
#include "engine/cli/launch_options.h"
#include "engine/cli/process.h"
#include "engine/cli/process_group.h"
#include "engine/cli/recipe_options.h"
#include "engine/launch/environment.h"
#include "engine/model/load.h"
#include "engine/recipe/fields.h"

namespace engine::cli {
namespace {

struct RunArguments {
  std::string file;
  std::string out;
  std::string upload;  // overrides the recipe's; empty: does not
  bool fresh = false;
  bool take_over = false;
  bool quiet = false;
  DeviceChoice device;
  LaunchOptions launch;
  bool no_graphs = false;
  bool check = false;
  std::int64_t profile = 0;
  std::vector<std::string> faults;
  recipe::LoadOptions load;
};

using MaybePlacement = std::optional<launch::Placement>;

bool IsSupervised(const MaybePlacement& placement) {
  return placement && placement->source == launch::kOwnSource;
}

// Whether this process is to start the ranks, and be none.
bool Starts(const LaunchOptions& options, const MaybePlacement& placement) {
  return (options.processes || options.nodes > 1) && !IsSupervised(placement);
}

// This process as the rank that a launcher, or our supervisor, has made it; null: it is alone.
absl::StatusOr<std::unique_ptr<ProcessGroup>> OpenGroup(const LaunchOptions& options,
                                                        MaybePlacement placement) {
  if (!placement) return nullptr;
  if (!IsSupervised(placement) && !options.token_file.empty()) {
    ASSIGN_OR_RETURN(placement->token, ReadToken(options.token_file));
  }
  return ProcessGroup::Open(*placement, RendezvousOf(options));
}

// What keeps this process from becoming a rank: those that wait for it hear of it. Our supervisor tells them
// by itself.
void TellOthers(const LaunchOptions& options, const MaybePlacement& placement, const absl::Status& why) {
  if (Starts(options, placement)) return TellOtherNodes(options, options.nodes, why);
  if (IsSupervised(placement)) return;
  const absl::StatusOr<std::unique_ptr<ProcessGroup>> group = OpenGroup(options, placement);
  if (group.ok() && *group != nullptr) (*group)->Fail(why).IgnoreError();
}

// Of a run that could begin. What is this rank's own is said before others are told, which may take a while.
int EndFailed(const absl::Status& status, ProcessGroup* group, std::optional<int> exit_code = {}) {
  absl::Status reason = status;
  if (group != nullptr && group->joined()) reason = group->Fail(status);
  const int code = Complain(reason, exit_code.value_or(ExitCodeOf(reason)));
  if (group != nullptr && !group->joined()) group->Fail(status).IgnoreError();
  return code;
}

int next_place = -1;  // what TakeNextPlace returns

// Without what the libraries of a GPU do at the end of a program: streams that wait for a rank that is gone,
// and NCCL's threads, can keep that from ending.
[[noreturn]] void EndRank(std::unique_ptr<ProcessGroup> group, int code) {
  group.reset();
  std::fflush(nullptr);
  std::quick_exit(WithOutputWritten(code));
}

// Who ends the run on a second signal. The supervisor ends all of its ranks at once; a launcher has its own
// way.
train::StopOptions StopOf(const MaybePlacement& placement) {
  using Again = train::StopOptions::Again;
  if (!placement) return {.again = Again::kThisProcess};
  return {.again = IsSupervised(placement) ? Again::kSupervisor : Again::kNobody,
          .tells = placement->local_rank == 0};
}

// A rank of an attempt on fewer hosts than the run has begun with leaves out the faults of ranks that there are no more: our supervisor has
// checked all of them.
absl::StatusOr<std::vector<train::Fault>> FaultsOf(const std::vector<std::string>& texts,
                                                   const recipe::Recipe& recipe, bool is_supervised) {
  std::vector<train::Fault> faults;
  for (const std::string& text : texts) {
    ASSIGN_OR_RETURN(train::Fault fault, train::ParseFault(text));
    faults.push_back(std::move(fault));
  }
  if (is_supervised)
    std::erase_if(faults, [&](const train::Fault& fault) { return fault.rank >= recipe.world_size(); });
  RETURN_IF_ERROR(train::CheckFaults(faults, recipe));
  return faults;
}

// Refuses options that mean something on GPUs alone where the run is on the CPU. The error names the option and what it is for.
absl::Status CheckOnCpu(const recipe::Recipe& recipe, const RunArguments& arguments) {
  if (!UsesCpu(recipe, arguments.device)) return absl::OkStatus();
  if (arguments.device.share_gpus)
    return InvalidArgument("--share-gpus: is for ranks on GPUs, and this run is on the CPU");
  if (arguments.no_graphs)
    return InvalidArgument("--no-graphs: is for the CUDA graphs of GPUs, and this run is on the CPU");
  return absl::OkStatus();
}

int RunRecipe(RunArguments& arguments) {
  OutliveReaders();
  // The log is all that goes there, of this process and of those that it starts.
  if (arguments.quiet && std::freopen("/dev/null", "w", stdout) == nullptr) {
    return Complain(Unavailable("/dev/null cannot be opened, which --quiet writes to"), kFailed);
  }
  const launch::Lookup environment = launch::ProcessEnvironment();
  const absl::StatusOr<bool> is_node = TakeNode(environment, &arguments.launch);
  if (!is_node.ok()) return Complain(is_node.status(), kUsage);
  const absl::StatusOr<MaybePlacement> found =
      *is_node ? absl::StatusOr<MaybePlacement>(std::nullopt) : launch::FindPlacement(environment);
  if (!found.ok()) return Complain(found.status(), kUsage);
  const MaybePlacement& placement = *found;
  const bool starts = Starts(arguments.launch, placement);
  const std::int64_t hosts = arguments.launch.nodes + arguments.launch.spares;
  if (starts && placement && placement->world != hosts) {
    return Complain(
        InvalidArgument("{} has started {} processes, and each would start ranks of its own: leave "
                        "--processes out, or start one process on each host ({} in all)",
                        placement->source, placement->world, hosts),
        kUsage);
  }
  if (!arguments.upload.empty()) {
    arguments.load.sets.push_back(
        fmt::format("checkpoint.upload={}", recipe::ToToml(recipe::FieldValue(arguments.upload))));
  }
  const recipe::LoadResult loaded = model::Load(arguments.file, arguments.load);
  // Errors by each process, as a host may have another file; notes by one.
  const bool speaks = !placement || (placement->rank == 0 && !IsSupervised(placement));
  if (speaks || !loaded.ok()) PrintDiagnostics(loaded.diagnostics);
  if (!loaded.ok()) {
    TellOthers(arguments.launch, placement, FirstError(loaded.diagnostics));
    return kFailed;
  }
  if (arguments.take_over && loaded.recipe.checkpoint.upload.empty()) {
    const absl::Status unused = InvalidArgument(
        "--take-over goes with checkpoints in a bucket: checkpoint.upload in the recipe, or --checkpoints");
    TellOthers(arguments.launch, placement, unused);
    return Complain(unused, kUsage);
  }
  if (const absl::Status fits = CheckOnCpu(loaded.recipe, arguments); !fits.ok()) {
    Complain(fits, kUsage);
    TellOthers(arguments.launch, placement, fits);
    return kUsage;
  }
  train::RunOptions options;
  options.out = arguments.out;
  options.take_over = arguments.take_over;
  options.fresh = arguments.fresh;
  if (options.out.empty()) {
    options.out = (std::filesystem::path("runs") / std::filesystem::path(arguments.file).stem()).string();
    options.own_folder = true;
  }
  const absl::StatusOr<std::vector<train::Fault>> faults =
      FaultsOf(arguments.faults, loaded.recipe, IsSupervised(placement));
  if (!faults.ok()) {
    TellOthers(arguments.launch, placement, faults.status());
    return Complain(faults.status(), kUsage);
  }
  options.faults = *faults;
  // Each GPU has a process of its own; a launcher has made them already.
  const bool needed = !UsesCpu(loaded.recipe, arguments.device) && !loaded.recipe.has_one_rank();
  if (starts || (needed && !placement)) {
    const auto reload = [&arguments](const std::vector<std::string>& sets) {
      recipe::LoadOptions load = arguments.load;
      load.sets.insert(load.sets.end(), sets.begin(), sets.end());
      return model::Load(arguments.file, load);
    };
    return RunProcesses(loaded.recipe, reload, arguments.device, arguments.launch, options.out,
                        options.fresh);
  }
  absl::Status fits;
  if (!IsSupervised(placement)) fits = CheckUnused(arguments.launch, placement);
  if (fits.ok() && placement && placement->world != loaded.recipe.world_size()) {
    fits = InvalidArgument("{} has started {} processes, but the recipe's layout has {} ranks",
                           placement->source, placement->world, loaded.recipe.world_size());
  }
  if (!fits.ok()) {
    Complain(fits, kUsage);
    TellOthers(arguments.launch, placement, fits);
    return kUsage;
  }
  options.executor = {.record = !arguments.no_graphs, .check = arguments.check};
  options.profile = arguments.profile;
  options.stop = StopOf(placement);
  if (IsSupervised(placement) && placement->memory >= 0) options.memory_files = {placement->memory};
  if (IsSupervised(placement)) {
    options.host_copies = {
        .port = placement->copies_port, .token = placement->token, .everywhere = placement->copies_at};
    options.from_disk = placement->from_disk;
    if (placement->is_restart) {
      options.lock_patience = train::kLockPatience;
      options.take_over = false;  // it is for once: by now another run may have taken over from this one
    }
  }
  if (placement) options.processes = static_cast<int>(placement->local_size);
  absl::StatusOr<std::unique_ptr<ProcessGroup>> opened = OpenGroup(arguments.launch, placement);
  if (!opened.ok()) {  // options are invalid arguments; an address that cannot be listened at is not
    return Complain(opened.status(), absl::IsInvalidArgument(opened.status()) ? kUsage : kFailed);
  }
  std::unique_ptr<ProcessGroup> group = *std::move(opened);
  const absl::StatusOr<state::Device> device = MakeDevice(loaded.recipe, arguments.device, group.get());
  if (!device.ok()) return EndFailed(device.status(), group.get(), kNoDevice);
  const absl::StatusOr<train::RunEnd> end = train::Run(loaded.recipe, options, *device);
  int code = !end.ok() ? EndFailed(end.status(), group.get()) : end->stopped ? kStopped : 0;
  // Where nothing else is asked for, it counts that what was said could not be written.
  if (code == kStopped && arguments.launch.stopped_code == 0 && WithOutputWritten(0) != 0) code = kFailed;
  if (!IsSupervised(placement)) code = FinalCode(code, arguments.launch);  // else our supervisor does
  if (code == kPeerLost && placement && placement->next_place >= 0 && group->Survive()) {
    next_place = placement->next_place;
    return code;
  }
  if (group != nullptr && device->profile.name == "cuda") EndRank(std::move(group), code);
  return code;
}

std::string ExitCodes() {
  return fmt::format(
      "Exit codes:\n"
      "  0  trained to the end; or stopped by Ctrl-C, SIGTERM or SIGHUP and saved, where --stopped-code "
      "gives no "
      "other\n"
      "  {}  the recipe, the data, the memory that they need, or the training; or all was done and saved, "
      "but "
      "standard output could not be written\n"
      "  2  wrong options\n"
      "  {}  no device will do, or a library of it is missing or too old; nothing was started\n"
      "  {}  the device or a library of it failed while it ran\n"
      "  {}  another rank failed or was lost, or the ranks did not come together\n"
      "  {} a machine computes or stores something wrong, as [guard] has found out\n"
      "  {} an iteration was bad both times that [guard] had it trained: the model or the data\n"
      "Of several processes, the code of the rank that failed first. 128 + n where signal n ended it, or was "
      "the second Ctrl-C or SIGTERM, which stops all at once and saves nothing.",
      static_cast<int>(kFailed), static_cast<int>(kNoDevice), static_cast<int>(kDeviceFailed),
      static_cast<int>(kPeerLost), static_cast<int>(kMachineSuspect), static_cast<int>(kBadNumber));
}

}  // namespace

int TakeNextPlace() { return std::exchange(next_place, -1); }

void AddRunCommand(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("run", "Train what a recipe says; resumes from the newest checkpoint of --out");
  const auto arguments = std::make_shared<RunArguments>();
  command->add_option("recipe", arguments->file, "Recipe")->required()->type_name("FILE");
  command
      ->add_option("--out", arguments->out,
                   "Folder of the run: metrics.jsonl, resolved.toml, plan.json, origin.json, outcome.json, "
                   "checkpoints/ (default: "
                   "runs/ and the name of the recipe's file)")
      ->check([](const std::string& out) { return out.empty() ? "must not be empty" : ""; })
      ->type_name("DIR");
  command
      ->add_option("--checkpoints", arguments->upload,
                   "Keep checkpoints in a bucket of S3 instead of DIR: s3://BUCKET/KEY. DIR has the newest "
                   "alone; a run that finds none in "
                   "DIR goes on from the newest there. The same as --set checkpoint.upload=URL")
      ->type_name("URL");
  command->add_flag("--take-over", arguments->take_over,
                    "Go on with the checkpoints in the bucket though another run has not said that it is "
                    "done there; that one "
                    "writes no more");
  command->add_flag("--quiet", arguments->quiet,
                    "Print no log, but notes, warnings and errors; metrics.jsonl has the numbers");
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
  command
      ->add_option("--fault", arguments->faults,
                   "Make a fault, to test what the run does of it: rank=3,iteration=40,at=forward,kind=kill "
                   "(docs/faults.md); repeatable. The recipe must say [debug] faults = true")
      ->type_name("FAULT")
      ->allow_extra_args(false);
  AddLaunchOptions(command, &arguments->launch);
  command
      ->add_flag("--share-gpus", arguments->device.share_gpus,
                 "Let ranks share GPUs where there are fewer of these, to try a layout (slow)")
      ->group(kProcesses);
  AddLoadOptions(command, &arguments->load);
  command->footer(ExitCodes());
  command->callback([arguments, exit_code, command] {
    arguments->launch.nodes_given = command->count("--nodes") > 0;
    arguments->launch.node_rank_given = command->count("--node-rank") > 0;
    *exit_code = RunRecipe(*arguments);
  });
}

}  // namespace engine::cli
