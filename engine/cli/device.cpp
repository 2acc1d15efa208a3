#include "engine/cli/device.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "engine/backend/cpu/cpu_backend.h"
#include "engine/backend/cpu/world.h"
#include "engine/backend/cuda/profile/profile.h"
#include "engine/base/core_limit.h"
#include "engine/base/memory_limit.h"
#include "engine/cli/process_group.h"
#include "engine/train/outcome.h"
#ifdef ENGINE_CUDA
#include "engine/cli/cuda_device.h"
#endif

namespace engine::cli {
namespace {

// Who wants a GPU.
std::string AskedBy(const recipe::Recipe& recipe, const DeviceChoice& choice) {
  if (choice.kind != "auto") return "--device " + choice.kind;
  const SourceSpan& span = recipe.provenance.at("cluster.device").span;
  return fmt::format("{}:{}:{}: [cluster] device \"{}\" is a GPU", span.file, span.line, span.column,
                     recipe.cluster.device);
}

state::Device MakeCpuDevice(const DeviceChoice& choice) {
  const auto world = std::make_shared<backend::cpu::World>();
  state::Device device;
  device.profile = backend::cpu::CpuBackend::CpuProfile();
  device.make_backend = [choice](std::int64_t, std::int64_t ranks) {
    return std::make_unique<backend::cpu::CpuBackend>(ThreadsOf(choice, ranks));
  };
  device.make_communicator = [world](std::int64_t rank) {
    return std::make_unique<backend::cpu::CpuCommunicator>(world.get(), rank);
  };
  SetMemory(&device, 1);
  device.abort = [world] { world->Abort(); };
  return device;
}

// The GPUs that cluster.device names; of any other word, those that recipes are planned for by default.
backend::cuda::CudaChip ChipOf(std::string_view device) {
  if (device == "a100") return {.major = 8, .hopper = false};
  if (device == "b200") return {.major = 10, .hopper = false};
  return {};
}

}  // namespace

void AddDeviceOptions(CLI::App* command, const std::string& sharers, DeviceChoice* choice) {
  command
      ->add_option("--threads", choice->threads,
                   fmt::format("Threads of all {} together (default: all cores that it may use)", sharers))
      ->check(CLI::Range(1, 4096));
  command
      ->add_option("--device", choice->kind, "Where to run: auto (as the recipe's [cluster] says), cpu, cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
}

void AddLayoutOptions(CLI::App* command, driver::ModelLayout* layout) {
  const auto add = [&](const char* name, std::int64_t* ranks, const char* help) {
    command->add_option(name, *ranks, help)
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 10))
        ->type_name("N")
        ->capture_default_str();
  };
  add("--dp", &layout->dp, "Split the sequences over so many copies of the model (data parallelism)");
  add("--tp", &layout->tp,
      "Split its matrices and heads over so many devices of this machine (tensor parallelism)");
  add("--pp", &layout->pp,
      "Put its layers on so many groups of devices, one behind the other (pipeline parallelism)");
  add("--cp", &layout->cp, "Split the tokens of a sequence over so many devices (context parallelism)");
  add("--ep", &layout->ep,
      "Split the sequences and its experts over so many devices, which exchange tokens (expert parallelism)");
}

void SetMemory(state::Device* device, int processes) {
  MemoryLimit limit = MemoryOfProcess(processes);
  device->memory_bytes = limit.bytes;
  device->memory_source = std::move(limit.source);
}

bool UsesCpu(const recipe::Recipe& recipe, const DeviceChoice& choice) {
  return choice.kind == "cpu" || (choice.kind == "auto" && recipe.cluster.device == "cpu");
}

int ThreadsOf(const DeviceChoice& choice, std::int64_t ranks) {
  const int all = choice.threads > 0 ? choice.threads : CoresOfProcess();
  return std::max(1, all / static_cast<int>(ranks));
}

plan::DeviceProfile ProfileOf(const recipe::Recipe& recipe, const DeviceChoice& choice) {
  if (UsesCpu(recipe, choice)) return backend::cpu::CpuBackend::CpuProfile();
  return backend::cuda::CudaProfile(IsDeterministic(recipe, choice), ChipOf(recipe.cluster.device));
}

bool IsDeterministic(const recipe::Recipe& recipe, const DeviceChoice& choice) {
  return choice.deterministic && recipe.precision.deterministic;
}

absl::StatusOr<state::Device> MakeDevice(const recipe::Recipe& recipe, const DeviceChoice& choice,
                                         ProcessGroup* group) {
  const CoreLimit limit = CoreLimitOfProcess();
  int cores = limit.cores;  // of this host, on which ranks compute together
  int threads_of_rank = 0;  // where ranks are processes
  if (group != nullptr) {
    const launch::Placement& placement = group->placement();
    cores =
        CoresOfRanks(limit, placement.bound_within, static_cast<int>(std::thread::hardware_concurrency()));
    threads_of_rank = choice.threads > 0 ? ThreadsOf(choice, placement.local_size)
                                         : ShareOfCores(limit, cores, placement.local_size);
  }
  if (UsesCpu(recipe, choice)) {
    state::Device device = group == nullptr ? MakeCpuDevice(choice) : group->CpuDevice(threads_of_rank);
    device.shares_cores = (group == nullptr ? recipe.world_size() : group->placement().local_size) > cores;
    device.host_threads = threads_of_rank;
    return device;
  }
#ifdef ENGINE_CUDA
  const bool has_threads = choice.one_process && !recipe.has_one_rank();
  absl::StatusOr<state::Device> device = group != nullptr ? MakeCudaRank(recipe, choice, group)
                                         : has_threads    ? MakeCudaThreads(recipe, choice)
                                                          : MakeCudaDevice(recipe, choice);
#else
  absl::StatusOr<state::Device> device = NotFound("this program was compiled without CUDA");
#endif
  if (device.ok()) {
    device->host_threads = threads_of_rank;
    return device;
  }
  return absl::Status(
      device.status().code(),
      fmt::format(
          "{}: {}\n    hint: `engine doctor` says what is missing; {} runs it on the CPU",
          AskedBy(recipe, choice), Message(device.status()),
          recipe.precision.compute == "fp32" ? "--device cpu" : "--device cpu --set precision.compute=fp32"));
}

int ExitCodeOf(const absl::Status& status) {
  switch (train::VerdictOf(status)) {
    case train::Verdict::kNone:
      break;
    case train::Verdict::kMachine:
      return kMachineSuspect;
    case train::Verdict::kTrue:
      return kBadNumber;
  }
  if (absl::IsAborted(status)) return kPeerLost;
  return absl::IsInternal(status) ? kDeviceFailed : kFailed;
}

}  // namespace engine::cli
