// Which executor a command runs on: the CPU's or CUDA's.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "engine/driver/model_layout.h"
#include "engine/recipe/recipe.h"
#include "engine/state/ranks.h"

namespace engine::cli {

class ProcessGroup;

struct DeviceChoice {
  std::string kind = "auto";  // auto: what the recipe's cluster says | cpu | cuda
  int threads = 0;            // of all CPU ranks together; 0: as many as this process has cores
  bool deterministic = true;  // CUDA
  bool share_gpus = false;    // CUDA: ranks take the GPUs in turn where there are too few
  bool one_process = false;   // CUDA: ranks without a group are threads of this process, each with a GPU
};

// --threads, which `sharers` ("ranks") have together, and --device.
void AddDeviceOptions(CLI::App* command, const std::string& sharers, DeviceChoice* choice);

// --dp, --tp, --pp, --cp and --ep: the ranks of this process that a model without a layout of its own runs on.
void AddLayoutOptions(CLI::App* command, driver::ModelLayout* layout);

// Sets the memory of a CPU device to what this process may use, one of `processes` on this machine.
void SetMemory(state::Device* device, int processes);

// Exit codes of commands that run a model, beside 0 and CLI11's for wrong usage.
enum ExitCode {
  kFailed = 1,        // the recipe, the data, or the training itself
  kUsage = 2,         // options or the launcher's variables
  kNoDevice = 3,      // there is no device that will do; nothing was started
  kDeviceFailed = 4,  // the device or one of its libraries failed while it ran
  kPeerLost = 5,      // another rank failed or was lost, or the ranks did not come together
  kStopped = 6,       // of a rank to our supervisor: stopped by a signal, and saved
  // What [guard] has found out about a bad number, by Megatron-LM's numbers (rerun_state_machine.py).
  kMachineSuspect = 16,  // a machine computes or stores something wrong
  kBadNumber = 17,       // no machine: the model or the data
};

// Facts of the device that the planner needs, without touching it.
plan::DeviceProfile ProfileOf(const recipe::Recipe& recipe, const DeviceChoice& choice = {});

// Whether the run must repeat its bits on a GPU.
bool IsDeterministic(const recipe::Recipe& recipe, const DeviceChoice& choice);

bool UsesCpu(const recipe::Recipe& recipe, const DeviceChoice& choice);

// Threads of each of the ranks that share this machine.
int ThreadsOf(const DeviceChoice& choice, std::int64_t ranks);

// Error: there is no such device here, or it will not do.
// With a group: of the one rank that this process is. The group must outlive the device.
absl::StatusOr<state::Device> MakeDevice(const recipe::Recipe& recipe, const DeviceChoice& choice,
                                         ProcessGroup* group = nullptr);

// The exit code for an error of a run.
int ExitCodeOf(const absl::Status& status);

}  // namespace engine::cli
