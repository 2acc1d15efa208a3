#include "engine/state/state.h"

#include <algorithm>
#include <future>
#include <span>

#include "engine/base/parallel.h"
#include "engine/base/philox.h"
#include "engine/checkpoint/flat_range.h"
#include "engine/plan/control.h"
#include "engine/state/tensors.h"
#include "engine/state/weights.h"

namespace engine::state {
namespace {

using checkpoint::Box;
using executor::LocalTensor;
using executor::OptimizerRange;
using executor::RankExecutor;
using plan::Bucket;
using plan::Plan;
using plan::PlanParameter;

// Initial values of `count` consecutive elements from logical index `index`.
void InitialValues(const graph::Initializer& initializer, PhiloxKey key, std::int64_t index,
                   std::span<float> out) {
  switch (initializer.kind) {
    case graph::Initializer::Kind::kZeros:
      std::fill(out.begin(), out.end(), 0.0F);
      return;
    case graph::Initializer::Kind::kOnes:
      std::fill(out.begin(), out.end(), 1.0F);
      return;
    case graph::Initializer::Kind::kNormal:
      PhiloxNormals(key, static_cast<std::uint64_t>(index), initializer.std, out);
      return;
  }
}

// Calls visit(logical row-major index, count) for each run of a box that is contiguous in the logical tensor,
// in order.
template <typename Visit>
void ForEachRun(const Shape& logical, const Box& box, Visit visit) {
  const int rank = logical.rank();
  if (box.count.elements() == 0) return;
  Shape at = box.start;
  int first = rank - 1;  // of the dims within a run: all behind it are whole
  std::int64_t run = box.count[first];
  for (; first > 0 && box.count[first] == logical[first]; --first) run *= box.count[first - 1];
  for (;;) {
    std::int64_t index = 0;
    for (int dim = 0; dim < rank; ++dim) index = index * logical[dim] + at[dim];
    visit(index, run);
    int dim = first - 1;
    for (; dim >= 0; --dim) {
      if (++at[dim] < box.start[dim] + box.count[dim]) break;
      at[dim] = box.start[dim];
    }
    if (dim < 0) return;
  }
}

// Initial values of `count` elements of a local parameter from `begin` on, as they lie in memory.
void MakeStretch(const Plan& plan, const RankExecutor& executor, const LocalTensor& tensor,
                 std::uint64_t seed, std::int64_t begin, std::int64_t count, ParameterStretch& stretch) {
  const PlanParameter& parameter = ParameterOf(plan, tensor.parameter);
  const PhiloxKey key = MakePhiloxKey(seed, parameter.name);
  const Box box = LocalBox(plan, executor, tensor.parameter);
  const std::int64_t elements = box.count.elements();
  constexpr size_t kElementsAtOnce = size_t{1} << 16;
  const int threads = executor.host_threads();
  ParallelPieces(threads, static_cast<size_t>(count), kElementsAtOnce, [&](size_t first, size_t last) {
    std::span<float> out(stretch.values.get() + first, last - first);
    const auto local = [&](size_t at) { return std::min(begin + static_cast<std::int64_t>(at), elements); };
    for (const Box& part : checkpoint::BoxesOfFlatRange(box, local(first), local(last))) {
      ForEachRun(parameter.logical_shape, part, [&](std::int64_t index, std::int64_t run) {
        InitialValues(parameter.initializer, key, index, out.first(static_cast<size_t>(run)));
        out = out.subspan(static_cast<size_t>(run));
      });
    }
    std::fill(out.begin(), out.end(), 0.0F);  // padding
    RoundStretch(stretch, tensor.view.dtype, first, last);
  });
}

// The control block, where the checkpoint has it: one that was written in another precision has not.
absl::Status LoadScaler(const Plan& plan, const checkpoint::PieceReader& reader, RankExecutor& executor) {
  const checkpoint::TensorInfo* info = reader.Find(kScalerName);
  const Shape shape = {plan::kSavedControlNumbers};
  if (info == nullptr || info->shape != shape || info->dtype != DType::kF64) return absl::OkStatus();
  double control[plan::kControlNumbers];
  plan::StartControl(plan.loss_scaler, control);
  RETURN_IF_ERROR(reader.Read(kScalerName, WholeBox(shape), control));
  plan::ResumeControl(plan.loss_scaler, control);
  return executor.backend().Upload(executor.Control().as<std::byte>(), control, sizeof(control));
}

double NumberAt(const std::vector<std::byte>& bytes, DType dtype, size_t i) {
  return dtype == DType::kF64 ? reinterpret_cast<const double*>(bytes.data())[i]
                              : static_cast<double>(reinterpret_cast<const float*>(bytes.data())[i]);
}

// Whether its numbers that no update changes are those that this run's state starts with.
bool IsOfKind(const plan::State& state, const std::vector<std::byte>& bytes) {
  for (size_t i = 0; i < state.spec.fill.size(); ++i) {
    const bool fixed = ((state.spec.fixed >> i) & 1U) != 0;
    if (fixed && NumberAt(bytes, state.buffer.dtype, i) != state.spec.fill[i]) return false;
  }
  return true;
}

// The states that the checkpoint has and that are of this run's kinds (of quantised tensors: of its formats).
absl::Status LoadStates(const Plan& plan, const checkpoint::PieceReader& reader, RankExecutor& executor) {
  const std::vector<plan::State>& states = executor.stage().states;
  for (size_t i = 0; i < states.size(); ++i) {
    if (states[i].spec.life != graph::Lifetime::kRun) continue;
    const Shape& shape = ShapeOf(plan, states[i]);
    const std::string name = plan.StateName(states[i]);
    const checkpoint::TensorInfo* info = reader.Find(name);
    if (info == nullptr || info->shape != shape || info->dtype != states[i].buffer.dtype) continue;
    std::vector<std::byte> bytes(static_cast<size_t>(states[i].buffer.bytes()));
    RETURN_IF_ERROR(reader.Read(name, WholeBox(shape), bytes.data()));
    if (!IsOfKind(states[i], bytes)) continue;
    auto* const device = reinterpret_cast<std::byte*>(executor.State(i).data);
    RETURN_IF_ERROR(executor.backend().Upload(device, bytes.data(), states[i].buffer.bytes()));
  }
  return absl::OkStatus();
}

absl::Status CheckTensor(const checkpoint::PieceReader& reader, const std::string& name, const Shape& shape) {
  const checkpoint::TensorInfo* info = reader.Find(name);
  if (info == nullptr) return FailedPrecondition("{} has no tensor {}", reader.Name(), name);
  if (info->shape != shape) {
    return FailedPrecondition("tensor {} is {} in {}, but {} in this recipe's model", name,
                              info->shape.ToString(), reader.Name(), shape.ToString());
  }
  if (info->dtype != DType::kF32) {
    return FailedPrecondition("tensor {} is {} in {}, not f32", name, Name(info->dtype), reader.Name());
  }
  return absl::OkStatus();
}

// Whether the checkpoint has all that an optimizer keeps of some parameter.
bool HasStates(const checkpoint::PieceReader& reader, const plan::OptimizerDef& optimizer,
               const std::string& parameter) {
  return std::all_of(optimizer.states.begin(), optimizer.states.end(),
                     [&](const auto& state) { return reader.Find(TensorName(state, parameter)) != nullptr; });
}

// A run goes on with the optimizer that the checkpoint was written by: another one's states say nothing to it.
absl::Status CheckOptimizer(const Plan& plan, const checkpoint::PieceReader& reader) {
  const auto trained =
      std::find_if(plan.parameters.begin(), plan.parameters.end(),
                   [](const PlanParameter& of) { return !of.training.frozen && of.training.sign_step == 0; });
  if (trained == plan.parameters.end()) return absl::OkStatus();  // no state is read
  const std::string& parameter = trained->name;
  if (HasStates(reader, *plan.optimizer, parameter)) return absl::OkStatus();
  for (const plan::OptimizerDef& other : plan::AllOptimizers()) {
    if (!HasStates(reader, other, parameter)) continue;
    return FailedPrecondition(
        "{} was written by the optimizer \"{}\", but optimizer.kind of this recipe is \"{}\", "
        "which cannot go on from its states\n"
        "    hint: optimizer.kind = \"{}\" goes on; a run with \"{}\" begins in another --out",
        reader.Name(), other.kind, plan.optimizer->kind, other.kind, plan.optimizer->kind);
  }
  return absl::OkStatus();  // a checkpoint of another model: its tensors are refused by name
}

absl::Status ReadInto(const checkpoint::PieceReader& reader, const std::string& name, const Box& box,
                      void* device, DType dtype, RankExecutor& executor) {
  std::vector<float> host(static_cast<size_t>(box.count.elements()));
  RETURN_IF_ERROR(reader.Read(name, box, host.data()));
  return UploadFloats(host, device, dtype, executor.backend());
}

// What the optimizer keeps, as it is before the first update. An arena begins as zeros.
absl::Status StartStates(const Plan& plan, std::span<const OptimizerRange> ranges,
                         backend::Backend& backend) {
  for (const OptimizerRange& range : ranges) {
    for (size_t s = 0; s < range.states.size(); ++s) {
      const float initial = plan.optimizer->states[s].initial;
      if (initial == 0) continue;
      const std::vector<float> host(static_cast<size_t>(range.end - range.begin), initial);
      RETURN_IF_ERROR(UploadFloats(host, range.states[s].data, range.states[s].dtype, backend));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status InitializeParameters(const Plan& plan, std::uint64_t seed, RankExecutor& executor) {
  const std::vector<LocalTensor> tensors = executor.Parameters();
  const std::vector<OptimizerRange> ranges = executor.OptimizerState();
  struct Work {
    const LocalTensor* tensor;
    std::int64_t begin, count;
  };
  std::vector<Work> works;
  for (const LocalTensor& tensor : tensors) {
    const std::int64_t elements = tensor.view.shape.elements();
    for (std::int64_t begin = 0; begin < elements; begin += ParameterStretch::kMostElements) {
      works.push_back({&tensor, begin, std::min(ParameterStretch::kMostElements, elements - begin)});
    }
  }
  // One stretch is made on all threads while the one before it is uploaded.
  ParameterStretch stretches[2];
  const auto make = [&](size_t i) {
    MakeStretch(plan, executor, *works[i].tensor, seed, works[i].begin, works[i].count, stretches[i % 2]);
  };
  if (!works.empty()) make(0);
  for (size_t i = 0; i < works.size(); ++i) {
    std::future<void> next;  // waited for at the end of its scope
    if (i + 1 < works.size()) next = std::async(std::launch::async, make, i + 1);
    const Work& work = works[i];
    RETURN_IF_ERROR(
        UploadStretch(stretches[i % 2], work.begin, work.count, *work.tensor, ranges, executor.backend()));
  }
  return StartStates(plan, ranges, executor.backend());
}

absl::Status LoadCheckpoint(const Plan& plan, const checkpoint::PieceReader& reader, bool with_optimizer,
                            RankExecutor& executor) {
  if (with_optimizer) RETURN_IF_ERROR(CheckOptimizer(plan, reader));
  const std::vector<OptimizerRange> ranges = executor.OptimizerState();
  std::vector<float> host;  // of the largest parameter, so that its pages are touched once
  for (const LocalTensor& tensor : executor.Parameters()) {
    const PlanParameter& parameter = ParameterOf(plan, tensor.parameter);
    RETURN_IF_ERROR(CheckTensor(reader, parameter.name, parameter.logical_shape));
    const Box box = LocalBox(plan, executor, tensor.parameter);
    host.assign(static_cast<size_t>(tensor.view.shape.elements()), 0.0F);
    if (box.count.elements() > 0) RETURN_IF_ERROR(reader.Read(parameter.name, box, host.data()));
    RETURN_IF_ERROR(UploadParameter(host, tensor, ranges, executor.backend()));
  }
  if (!with_optimizer) return absl::OkStatus();
  RETURN_IF_ERROR(LoadStates(plan, reader, executor));
  if (HasScaler(plan)) RETURN_IF_ERROR(LoadScaler(plan, reader, executor));
  for (const OptimizerRange& range : ranges) {
    const PlanParameter& parameter = ParameterOf(plan, range.parameter);
    for (size_t s = 0; s < range.states.size(); ++s) {
      const auto& [data, dtype] = range.states[s];
      const std::string name = TensorName(plan.optimizer->states[s], parameter.name);
      if (reader.Find(name) == nullptr) {
        return FailedPrecondition(
            "{} has no tensor {}: {} was frozen in the run that wrote it, and is not in this "
            "recipe\n"
            "    hint: freeze it to go on, or begin another run from these weights",
            reader.Name(), name, parameter.name);
      }
      RETURN_IF_ERROR(CheckTensor(reader, name, parameter.logical_shape));
      std::int64_t offset = 0;
      for (const Box& box : RangeBoxes(plan, executor, range)) {
        RETURN_IF_ERROR(ReadInto(reader, name, box, data + offset, dtype, executor));
        offset += box.count.elements() * SizeOf(dtype);
      }
    }
  }
  return absl::OkStatus();
}

namespace {

// A box of experts' matrices: the same part of the checkpoint's one matrix for each of them.
absl::Status ReadEachExpert(const checkpoint::TensorSource& weights, const std::string& tensor,
                            const Box& box, float* out) {
  Box one;
  for (int dim = 1; dim < box.count.rank(); ++dim) {
    one.start.push_back(box.start[dim]);
    one.count.push_back(box.count[dim]);
  }
  RETURN_IF_ERROR(weights.Read(tensor, one, out));
  const std::int64_t elements = one.count.elements();
  for (std::int64_t expert = 1; expert < box.count[0]; ++expert)
    std::copy_n(out, elements, out + expert * elements);
  return absl::OkStatus();
}

// The mean of a tensor's rows, for the columns of `box` behind its dim 0.
absl::StatusOr<std::vector<float>> MeanOfRows(const checkpoint::TensorSource& weights,
                                              const std::string& tensor, std::int64_t rows, Box box) {
  constexpr std::int64_t kElementsAtATime = std::int64_t{1} << 22;
  box.count[0] = 1;
  const std::int64_t width = box.count.elements();
  const std::int64_t at_a_time = std::max<std::int64_t>(1, kElementsAtATime / width);
  std::vector<double> sums(static_cast<size_t>(width));
  std::vector<float> some(static_cast<size_t>(std::min(at_a_time, rows) * width));
  for (std::int64_t row = 0; row < rows; row += at_a_time) {
    box.start[0] = row;
    box.count[0] = std::min(at_a_time, rows - row);
    RETURN_IF_ERROR(weights.Read(tensor, box, some.data()));
    for (std::int64_t i = 0; i < box.count.elements(); ++i)
      sums[static_cast<size_t>(i % width)] += static_cast<double>(some[static_cast<size_t>(i)]);
  }
  std::vector<float> mean;
  mean.reserve(sums.size());
  for (const double sum : sums) mean.push_back(static_cast<float>(sum / static_cast<double>(rows)));
  return mean;
}

// A box of a matrix whose first rows are the tensor's, and the further ones their mean.
absl::Status ReadFewerRows(const checkpoint::TensorSource& weights, const std::string& tensor, const Box& box,
                           float* out) {
  const std::int64_t rows = weights.Find(tensor)->shape[0];
  const std::int64_t there = std::clamp<std::int64_t>(rows - box.start[0], 0, box.count[0]);
  Box old = box;
  old.count[0] = there;
  if (there > 0) RETURN_IF_ERROR(weights.Read(tensor, old, out));
  if (there == box.count[0]) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<float> mean, MeanOfRows(weights, tensor, rows, box));
  for (std::int64_t row = there; row < box.count[0]; ++row)
    std::copy(mean.begin(), mean.end(), out + row * static_cast<std::int64_t>(mean.size()));
  return absl::OkStatus();
}

absl::Status ReadFrom(const checkpoint::TensorSource& weights, const WeightSource& source, const Box& box,
                      float* out) {
  if (source.each_expert) return ReadEachExpert(weights, source.tensor, box, out);
  if (source.fewer_rows) return ReadFewerRows(weights, source.tensor, box, out);
  return weights.Read(source.tensor, box, out);
}

}  // namespace

absl::Status LoadWeights(const Plan& plan, const checkpoint::TensorSource& weights,
                         std::span<const WeightSource> sources, RankExecutor& executor) {
  const std::vector<OptimizerRange> ranges = executor.OptimizerState();
  std::vector<float> host;  // of the largest parameter, so that its pages are touched once
  for (const LocalTensor& tensor : executor.Parameters()) {
    const WeightSource& source = sources[static_cast<size_t>(tensor.parameter)];
    if (source.tensor.empty()) continue;
    const Box box = LocalBox(plan, executor, tensor.parameter);
    host.assign(static_cast<size_t>(tensor.view.shape.elements()), 0.0F);
    if (box.count.elements() > 0) RETURN_IF_ERROR(ReadFrom(weights, source, box, host.data()));
    RETURN_IF_ERROR(UploadParameter(host, tensor, ranges, executor.backend()));
  }
  return absl::OkStatus();
}

namespace {

// Copies boxes of a logical tensor, whose data lie one after another at `device`, into the whole tensor.
absl::Status ScatterBoxes(const Shape& logical, const std::vector<Box>& boxes, const void* device,
                          DType dtype, RankExecutor& executor, std::vector<float>* out) {
  const std::byte* from = static_cast<const std::byte*>(device);
  for (const Box& box : boxes) {
    std::vector<float> host(static_cast<size_t>(box.count.elements()));
    RETURN_IF_ERROR(DownloadFloats(from, dtype, executor.backend(), host));
    auto at = host.begin();
    ForEachRun(logical, box, [&](std::int64_t index, std::int64_t count) {
      std::copy_n(at, count, out->begin() + index);
      at += count;
    });
    from += box.count.elements() * SizeOf(dtype);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status GatherParameter(const Plan& plan, Ranks& ranks, std::int32_t parameter,
                             std::vector<float>* out) {
  const Shape& logical = ParameterOf(plan, parameter).logical_shape;
  out->assign(static_cast<size_t>(logical.elements()), 0.0F);
  for (const auto& executor : ranks.executors()) {
    for (const LocalTensor& tensor : executor->Parameters()) {
      if (tensor.parameter != parameter || tensor.view.data == nullptr) continue;
      if (!Saves(*executor, BucketOf(*executor, parameter), false)) continue;
      const Box box = LocalBox(plan, *executor, parameter);
      RETURN_IF_ERROR(ScatterBoxes(logical, {box}, tensor.view.data, tensor.view.dtype, *executor, out));
    }
    for (const OptimizerRange& range : executor->OptimizerState()) {
      if (range.parameter != parameter || range.weights == nullptr) continue;
      if (!Saves(*executor, BucketOf(*executor, parameter), true)) continue;
      RETURN_IF_ERROR(ScatterBoxes(logical, RangeBoxes(plan, *executor, range), range.weights,
                                   range.weight_dtype, *executor, out));
    }
  }
  return absl::OkStatus();
}

absl::Status GatherGradient(const Plan& plan, Ranks& ranks, std::int32_t parameter, std::vector<float>* out) {
  const Shape& logical = ParameterOf(plan, parameter).logical_shape;
  out->assign(static_cast<size_t>(logical.elements()), 0.0F);
  for (const auto& executor : ranks.executors()) {
    for (const OptimizerRange& range : executor->OptimizerState()) {
      if (range.parameter != parameter) continue;
      const Bucket& bucket = BucketOf(*executor, parameter);
      if (!Saves(*executor, bucket, bucket.shards > 1)) continue;
      RETURN_IF_ERROR(ScatterBoxes(logical, RangeBoxes(plan, *executor, range), range.gradient,
                                   range.gradient_dtype, *executor, out));
    }
  }
  return absl::OkStatus();
}

}  // namespace engine::state
