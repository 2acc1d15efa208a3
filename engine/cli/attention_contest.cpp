#include "engine/cli/attention_contest.h"

#include <cstdio>
#include <utility>

#include "engine/base/print.h"
#include "engine/cli/attention_report.h"
#include "engine/cli/device.h"

#ifdef ENGINE_CUDA
#include <array>
#include <memory>
#include <span>

#include "engine/backend/cuda/device/device.h"
#include "engine/backend/cuda/launch/attention_contest.h"
#include "engine/backend/cuda/libraries/libraries.h"
#endif

namespace engine::cli {
namespace {

#ifdef ENGINE_CUDA

namespace cuda = backend::cuda;
using Kernels = cuda::AttentionKernels;

// The GPU that a run takes, as runs open it whose bits repeat, and others.
struct OpenedDevices {
  std::unique_ptr<cuda::Device> repeating, other;
};

absl::StatusOr<OpenedDevices> OpenDevices() {
  OpenedDevices devices;
  cuda::DeviceOptions options;
  ASSIGN_OR_RETURN(devices.repeating, cuda::Device::Open(options));
  options.deterministic = false;
  ASSIGN_OR_RETURN(devices.other, cuda::Device::Open(options));
  return devices;
}

struct KernelsInContest {
  const char* name;
  Kernels kernels;
  bool repeats;
};
constexpr std::array kForwardContest = {KernelsInContest{"own", Kernels::kOwn, true},
                                        KernelsInContest{"cuDNN", Kernels::kCudnn, true},
                                        KernelsInContest{"reference", Kernels::kReference, true}};
constexpr std::array kBackwardContest = {KernelsInContest{"own", Kernels::kOwn, true},
                                         KernelsInContest{"cuDNN, bits repeat", Kernels::kCudnn, true},
                                         KernelsInContest{"cuDNN, bits vary", Kernels::kCudnn, false},
                                         KernelsInContest{"reference", Kernels::kReference, true}};

std::vector<backend::TensorView> ViewsOf(const std::vector<graph::TensorType>& types) {
  std::vector<backend::TensorView> views;
  views.reserve(types.size());
  for (const graph::TensorType& type : types)
    views.push_back({nullptr, type.dtype, type.shape, Extent::Whole(type.shape), type.shape});
  return views;
}

plan::Instruction InstructionOf(const AttentionLaunch& launch) {
  plan::Instruction instruction;
  instruction.name = launch.op->name;
  plan::Kernel kernel{.name = std::string(launch.op->name), .op = launch.op, .attributes = launch.attributes};
  kernel.accumulate = kernel.fresh = launch.op->accumulates;
  instruction.what = std::move(kernel);
  return instruction;
}

// Which kernels a run has whose choice nothing was timed for.
Kernels RuleOf(const cuda::Device& device, const AttentionLaunch& launch) {
  const cuda::AttentionOp* op = cuda::FindAttentionOp(launch.op->name);
  cuda::AttentionShape shape = cuda::ShapeOf(*op, launch.inputs, launch.attributes);
  shape.chip = cuda::ChipOf(device);
  return cuda::KernelsOf(shape, op->backward);
}

// Marks what runs choose whose bits repeat, or others, for which cuDNN has one row, too: its last one.
void Mark(Kernels rule, const std::vector<cuda::AttentionEntrant>& entrants, bool bits_repeat,
          AttentionContest* contest) {
  std::vector<std::size_t> rows;
  std::size_t of_rule = 0;
  for (std::size_t i = 0; i < entrants.size(); ++i) {
    const Kernels kernels = entrants[i].way.kernels;
    const bool other_form = i + 1 < entrants.size() && kernels == entrants[i + 1].way.kernels;
    if (bits_repeat ? !contest->kernels[i].repeats : other_form) continue;
    if (kernels == rule) of_rule = i;
    if (kernels != Kernels::kReference) rows.push_back(i);
  }
  MarkChosen(contest, of_rule, rows,
             bits_repeat ? &ContestedKernels::chosen : &ContestedKernels::chosen_else);
}

absl::StatusOr<AttentionContest> Hold(const OpenedDevices& devices, const AskedAttention& shape,
                                      bool backward, bool reference) {
  ASSIGN_OR_RETURN(const AttentionLaunch launch, AttentionLaunchOf(shape, backward));
  const plan::Instruction instruction = InstructionOf(launch);
  backend::LaunchArgs args;
  args.instruction = &instruction;
  args.inputs = ViewsOf(launch.inputs);
  args.outputs = ViewsOf(launch.outputs);
  args.inputs[0].extent.dims[1] = {Interval{launch.first_position, shape.length}};
  args.inputs[0].logical[1] = shape.keys;

  AttentionContest contest = {.shape = shape, .backward = backward, .kernels = {}};
  const Kernels rule = RuleOf(*devices.repeating, launch);
  std::vector<cuda::AttentionEntrant> entrants;
  for (const KernelsInContest& kernels : backward ? std::span<const KernelsInContest>(kBackwardContest)
                                                  : std::span<const KernelsInContest>(kForwardContest)) {
    if (kernels.kernels == Kernels::kReference && !reference && rule != Kernels::kReference) continue;
    entrants.push_back({{kernels.kernels}, (kernels.repeats ? devices.repeating : devices.other).get()});
    contest.kernels.push_back({.name = kernels.name, .repeats = kernels.repeats, .why_not = {}});
  }
  ASSIGN_OR_RETURN(std::vector<cuda::AttentionTime> times,
                   cuda::TimeAttention(args, entrants, {.documents = shape.documents}));
  for (std::size_t i = 0; i < times.size(); ++i) {
    ContestedKernels& kernels = contest.kernels[i];
    kernels.why_not = std::move(times[i].why_not);
    kernels.milliseconds = times[i].milliseconds;
    kernels.scratch_bytes = times[i].scratch_bytes;
  }
  Mark(rule, entrants, true, &contest);
  Mark(rule, entrants, false, &contest);
  return contest;
}

nlohmann::ordered_json MachineOf(const OpenedDevices& devices) {
  const absl::StatusOr<cuda::LoadedLibrary> cudnn = cuda::LoadCudnn();
  return {{"gpu", devices.repeating->properties().name}, {"cudnn", cudnn.ok() ? cudnn->version : ""}};
}

// Of all shapes; what is printed as text is printed as it comes.
int HoldAll(const ContestArguments& arguments, const std::vector<AskedAttention>& shapes) {
  const absl::StatusOr<OpenedDevices> devices = OpenDevices();
  if (!devices.ok()) {
    Print(stderr, "engine doctor: {}\n", Message(devices.status()));
    return kNoDevice;
  }
  nlohmann::ordered_json json = MachineOf(*devices);
  json["contests"] = nlohmann::json::array();
  for (const AskedAttention& shape : shapes) {
    for (const bool backward : {false, true}) {
      const absl::StatusOr<AttentionContest> contest = Hold(*devices, shape, backward, arguments.reference);
      if (!contest.ok()) {
        Print(stderr, "engine doctor: --attention '{}': {}\n", shape.text, Message(contest.status()));
        return kDeviceFailed;
      }
      if (arguments.json) {
        json["contests"].push_back(ToJson(*contest));
      } else {
        Print(stdout, "{}", ToText(*contest));
        std::fflush(stdout);
      }
    }
  }
  if (arguments.json)
    Print(stdout, "{}\n", json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
  return 0;
}

#else

int HoldAll(const ContestArguments&, const std::vector<AskedAttention>&) {
  Print(stderr,
        "engine doctor: --attention times kernels on a GPU, and this program was compiled without CUDA\n");
  return kNoDevice;
}

#endif

}  // namespace

int PrintAttentionContests(const ContestArguments& arguments) {
  std::vector<AskedAttention> shapes;
  for (const std::string& text : arguments.shapes) {
    absl::StatusOr<AskedAttention> shape = ParseAttentionShape(text);
    if (!shape.ok()) {
      Print(stderr, "engine doctor: {}\n", Message(shape.status()));
      return kUsage;
    }
    shapes.push_back(*std::move(shape));
  }
  return HoldAll(arguments, shapes);
}

}  // namespace engine::cli
