#include "engine/backend/cuda/launch/attention_contest.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <numeric>
#include <utility>

#include "engine/backend/cuda/attention/sm90a.h"
#include "engine/backend/cuda/device/device.h"
#include "engine/backend/cuda/gemm/gemm.h"
#include "engine/backend/cuda/gemm/trial.h"
#include "engine/backend/cuda/profile/profile.h"
#include "engine/base/units.h"
#include "engine/plan/control.h"

namespace engine::backend::cuda {
namespace {

// ---------------------------------------------------------------------------------------------- the operands

constexpr std::int64_t kAlignment = 256;

// Memory of a trial, cut from what is lent to it where there is enough, and else its own.
class TrialMemory {
 public:
  TrialMemory() = default;
  ~TrialMemory() { cudaFree(owned_); }
  TrialMemory(const TrialMemory&) = delete;
  TrialMemory& operator=(const TrialMemory&) = delete;

  // Takes them from the front of what is lent where there is enough. ResourceExhausted where the device is too full.
  absl::Status Allocate(std::int64_t bytes, std::span<std::byte>* lent) {
    const auto rounded = static_cast<std::size_t>(RoundUp(bytes, kAlignment));
    if (rounded <= lent->size()) {
      data_ = lent->data();
      *lent = lent->subspan(rounded);
      return absl::OkStatus();
    }
    if (const cudaError_t error = cudaMalloc(&owned_, rounded); error != cudaSuccess) {
      owned_ = nullptr;
      cudaGetLastError();  // so that no later launch is blamed
      return ToStatus(error, "cudaMalloc");
    }
    data_ = static_cast<std::byte*>(owned_);
    return absl::OkStatus();
  }
  std::byte* data() const { return data_; }

 private:
  void* owned_ = nullptr;
  std::byte* data_ = nullptr;
};

std::int64_t BytesOf(const TensorView& view) { return view.shape.elements() * SizeOf(view.dtype); }

template <typename Number>
absl::Status Copy(const std::vector<Number>& numbers, void* to) {
  RETURN_IF_CUDA_ERROR(
      cudaMemcpy(to, numbers.data(), numbers.size() * sizeof(Number), cudaMemcpyHostToDevice));
  return absl::OkStatus();
}

// [B, S]
absl::Status FillPositions(const TensorView& view, const DimExtent& of_queries) {
  std::vector<std::int32_t> positions;
  positions.reserve(static_cast<std::size_t>(view.shape.elements()));
  for (std::int64_t i = 0; i < view.shape.elements(); ++i)
    positions.push_back(static_cast<std::int32_t>(LogicalIndex(of_queries, i % view.shape[1])));
  return Copy(positions, view.data);
}

// The keys of each query's document. [B, S, 2]
absl::Status FillSpans(const TensorView& view, const DimExtent& of_queries,
                       const std::vector<std::int64_t>& documents, std::int64_t keys) {
  std::vector<std::int32_t> bounds;  // where documents end
  std::partial_sum(documents.begin(), documents.end(), std::back_inserter(bounds));
  std::vector<std::int32_t> spans;
  spans.reserve(static_cast<std::size_t>(view.shape.elements()));
  for (std::int64_t i = 0; i < view.shape.elements() / 2; ++i) {
    const std::int64_t position = LogicalIndex(of_queries, i % view.shape[1]);
    const auto end = std::upper_bound(bounds.begin(), bounds.end(), position);
    spans.push_back(end == bounds.begin() ? 0 : *std::prev(end));
    spans.push_back(end == bounds.end() ? static_cast<std::int32_t>(keys) : *end);
  }
  return Copy(spans, view.data);
}

// Where scores are normal numbers, the sum of their exponentials is near T·√e. [B, S, H]
absl::Status FillLse(const TensorView& view, std::int64_t keys) {
  const auto lse = static_cast<float>(std::log(static_cast<double>(keys)) + 0.5);
  return Copy(std::vector<float>(static_cast<std::size_t>(view.shape.elements()), lse), view.data);
}

// Tensors like those of `like`, and a control block.
class TrialOperands {
 public:
  absl::Status Make(cudaStream_t stream, const LaunchArgs& like, const AttentionShape& shape,
                    const std::vector<std::int64_t>& documents, std::span<std::byte>* lent) {
    args_ = like;
    std::int64_t bytes = RoundUp(plan::kControlNumbers * SizeOf(DType::kF64), kAlignment);
    std::vector<std::pair<TensorView*, std::int64_t>> places;
    for (std::vector<TensorView>* views : {&args_.inputs, &args_.outputs}) {
      for (TensorView& view : *views) {
        places.emplace_back(&view, bytes);
        bytes += RoundUp(BytesOf(view), kAlignment);
      }
    }
    RETURN_IF_ERROR(memory_.Allocate(bytes, lent));
    RETURN_IF_CUDA_ERROR(cudaMemsetAsync(memory_.data(), 0, static_cast<std::size_t>(bytes), stream));
    RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream));  // what is copied there follows on no stream of ours
    for (const auto& [view, place] : places) view->data = memory_.data() + place;
    for (std::size_t i = 0; i < args_.inputs.size(); ++i) RETURN_IF_ERROR(Fill(stream, i, shape, documents));
    RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream));
    return absl::OkStatus();
  }
  const LaunchArgs& args() const { return args_; }
  KernelContext context() const { return {.control = reinterpret_cast<const double*>(memory_.data())}; }

 private:
  absl::Status Fill(cudaStream_t stream, std::size_t input, const AttentionShape& shape,
                    const std::vector<std::int64_t>& documents) {
    const TensorView& view = args_.inputs[input];
    const bool is_int = view.dtype == DType::kI32;
    if (is_int && view.shape.rank() == 3) return FillSpans(view, QueryPositions(), documents, shape.keys);
    if (is_int) return FillPositions(view, QueryPositions());
    const bool is_lse =
        view.shape == Shape{shape.batch, shape.queries, shape.heads} && view.dtype == DType::kF32;
    if (is_lse) return FillLse(view, shape.keys);
    ASSIGN_OR_RETURN(const cudaDataType type, ToCudaType(view.dtype));
    return FillRandom(stream, view.data, BytesOf(view), type, input);
  }
  DimExtent QueryPositions() const {
    const TensorView& q = args_.inputs[0];
    return q.extent.dims.empty() ? DimExtent{{0, q.shape[1]}} : q.extent.dims[1];
  }

  LaunchArgs args_;
  TrialMemory memory_;
};

// ----------------------------------------------------------------------------------------------- the entrants

constexpr int kMostRepetitions = 400;
constexpr float kSlowMs = 400;  // what takes so long is timed once

// One entrant, as far as it has come.
struct Contender {
  plan::Instruction instruction;
  AttentionTime result;
  std::function<absl::Status()> run;
  std::unique_ptr<Stopwatch> stopwatch;
  std::vector<float> times;

  bool runs() const { return result.why_not.empty(); }
};

std::vector<graph::TensorType> TypesOf(const std::vector<TensorView>& views) {
  std::vector<graph::TensorType> types;
  types.reserve(views.size());
  for (const TensorView& view : views) types.push_back({.shape = view.shape, .dtype = view.dtype});
  return types;
}

std::string WhyNot(const AttentionEntrant& entrant, const AttentionShape& shape, bool backward) {
  const AttentionKernels kernels = KernelsOf(shape, backward);
  if (kernels == entrant.way.kernels) return "";
  return std::string(entrant.way.kernels == AttentionKernels::kCudnn ? WhyNotCudnn(shape) : WhyNotOwn(shape));
}

Contender Enter(const LaunchArgs& args, const AttentionOp& op, const AttentionEntrant& entrant) {
  Contender contender;
  contender.instruction = *args.instruction;
  plan::Kernel& kernel = std::get<plan::Kernel>(contender.instruction.what);
  kernel.attributes.Set("grad_group_bytes", entrant.way.grad_group_bytes);
  kernel.attributes.Set("kernel", std::string(AttributeOf(entrant.way.kernels)));
  const std::vector<graph::TensorType> inputs = TypesOf(args.inputs);
  AttentionShape shape = ShapeOf(op, inputs, kernel.attributes);
  shape.chip = ChipOf(*entrant.device);
  contender.result.why_not = WhyNot(entrant, shape, op.backward);
  contender.result.scratch_bytes =
      CudaProfile(entrant.device->deterministic(), shape.chip)
          .scratch_bytes(op.name, inputs, TypesOf(args.outputs), kernel.attributes);
  return contender;
}

// As much as the hungriest needs for whom there is enough.
absl::Status AllocateScratch(std::vector<Contender>* contenders, TrialMemory* scratch,
                             std::span<std::byte>* lent) {
  while (true) {
    Contender* hungriest = nullptr;
    for (Contender& contender : *contenders) {
      if (!contender.runs()) continue;
      if (hungriest == nullptr || contender.result.scratch_bytes > hungriest->result.scratch_bytes)
        hungriest = &contender;
    }
    if (hungriest == nullptr || hungriest->result.scratch_bytes == 0) return absl::OkStatus();
    absl::Status status = scratch->Allocate(hungriest->result.scratch_bytes, lent);
    if (!absl::IsResourceExhausted(status)) return status;
    hungriest->result.why_not =
        fmt::format("no room for {} of scratch", FormatBytes(hungriest->result.scratch_bytes));
  }
}

absl::Status Start(const AttentionOp& op, const AttentionEntrant& entrant, const TrialOperands& operands,
                   const TrialMemory& scratch, Contender* contender) {
  LaunchArgs args = operands.args();
  args.instruction = &contender->instruction;
  args.scratch = {scratch.data(), static_cast<std::size_t>(contender->result.scratch_bytes)};
  ASSIGN_OR_RETURN(Enqueue enqueue, FindKernel(op.name)->prepare(*entrant.device, args));
  const cudaStream_t stream = entrant.device->compute();
  contender->run = [enqueue = std::move(enqueue), stream, context = operands.context()] {
    return enqueue(stream, context);
  };
  contender->stopwatch = std::make_unique<Stopwatch>(stream);
  RETURN_IF_ERROR(contender->stopwatch->Open());
  RETURN_IF_ERROR(contender->stopwatch->Time(contender->run, 1).status());  // loads the kernels
  ASSIGN_OR_RETURN(const float milliseconds, contender->stopwatch->Time(contender->run, 1));
  contender->times = {milliseconds};
  return absl::OkStatus();
}

// All in turns: the clock falls while the card heats up, which must not favour who came first.
absl::Status TimeInTurns(const AttentionTiming& timing, std::vector<Contender>* contenders) {
  for (int round = 0; round < timing.rounds; ++round) {
    for (Contender& contender : *contenders) {
      if (!contender.runs() || contender.times[0] > kSlowMs) continue;
      if (round == 0) {
        ASSIGN_OR_RETURN(contender.times[0], contender.stopwatch->Time(contender.run, 3));
      }
      const int repetitions = Repetitions(contender.times[0], timing.round_ms, kMostRepetitions);
      ASSIGN_OR_RETURN(const float milliseconds, contender.stopwatch->Time(contender.run, repetitions));
      contender.times.push_back(milliseconds);
    }
  }
  for (Contender& contender : *contenders) {
    if (!contender.runs()) continue;
    std::vector<float>& times = contender.times;
    if (times.size() > 1) times.erase(times.begin());
    std::sort(times.begin(), times.end());
    contender.result.milliseconds = times[times.size() / 2];
  }
  return absl::OkStatus();
}

}  // namespace

CudaChip ChipOf(const Device& device) {
  return {device.properties().major, device.properties().major == 9 && HasAttentionSm90a()};
}

absl::StatusOr<std::vector<AttentionTime>> TimeAttention(const LaunchArgs& args,
                                                         std::span<const AttentionEntrant> entrants,
                                                         const AttentionTiming& timing,
                                                         std::span<std::byte> lent) {
  const AttentionOp* op = FindAttentionOp(args.instruction->kernel());
  ENGINE_CHECK(op != nullptr, "{} is no attention", args.instruction->kernel());
  std::vector<Contender> contenders;
  contenders.reserve(entrants.size());
  for (const AttentionEntrant& entrant : entrants) contenders.push_back(Enter(args, *op, entrant));
  TrialMemory scratch;
  TrialOperands operands;
  RETURN_IF_ERROR(operands.Make(entrants[0].device->compute(), args,
                                ShapeOf(*op, TypesOf(args.inputs), args.instruction->attributes()),
                                timing.documents, &lent));
  RETURN_IF_ERROR(AllocateScratch(&contenders, &scratch, &lent));
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    Contender& contender = contenders[i];
    if (!contender.runs()) continue;
    const absl::Status status = Start(*op, entrants[i], operands, scratch, &contender);
    if (status.ok()) continue;
    contender.result.why_not = Message(status);
    cudaGetLastError();  // of a refused launch; anything worse stays and is met by the next call
  }
  RETURN_IF_ERROR(TimeInTurns(timing, &contenders));
  std::vector<AttentionTime> results;
  results.reserve(contenders.size());
  for (const Contender& contender : contenders) results.push_back(contender.result);
  return results;
}

}  // namespace engine::backend::cuda
