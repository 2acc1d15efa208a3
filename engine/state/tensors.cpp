#include "engine/state/tensors.h"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/base/status.h"
#include "engine/checkpoint/flat_range.h"
#include "engine/plan/control.h"
#include "engine/plan/snapshot.h"
#include "engine/state/weights.h"

namespace engine::state {
namespace {

using checkpoint::Box;
using executor::LocalTensor;
using executor::OptimizerRange;
using executor::RankState;
using plan::Bucket;
using plan::Plan;
using plan::PlanParameter;

// A state has one name in every layout; copies of it, of which stages may have several, are equal.
struct NamedState {
  std::string name;
  size_t stage = 0;
  size_t index = 0;  // among the stage's
};

// Every state of a run that checkpoints keep, once, in the plan's order.
std::vector<NamedState> StatesOf(const Plan& plan) {
  std::vector<NamedState> states;
  absl::flat_hash_set<std::string> known;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const std::vector<plan::State>& of_stage = plan.stages[s].states;
    for (size_t i = 0; i < of_stage.size(); ++i) {
      std::string name = plan.StateName(of_stage[i]);
      const bool saved = of_stage[i].spec.life == graph::Lifetime::kRun;
      if (saved && known.insert(name).second)
        states.push_back({.name = std::move(name), .stage = s, .index = i});
    }
  }
  return states;
}

const plan::State& StateOf(const Plan& plan, const NamedState& state) {
  return plan.stages[state.stage].states[state.index];
}

// The pieces of one rank.
class RankPieces {
 public:
  explicit RankPieces(const std::vector<checkpoint::TensorInfo>& tensors) {
    for (size_t i = 0; i < tensors.size(); ++i) numbers_.emplace(tensors[i].name, static_cast<int>(i));
  }

  // `data`: where the box's elements, of `dtype`, lie in the arena.
  void Add(const std::string& tensor, const Box& box, const void* data, DType dtype) {
    pieces_.push_back({numbers_.at(tensor), box, static_cast<const std::byte*>(data), dtype});
  }

  std::vector<ArenaPiece> Take() { return std::move(pieces_); }

 private:
  absl::flat_hash_map<std::string, int> numbers_;  // of the tensors, by name
  std::vector<ArenaPiece> pieces_;
};

}  // namespace

bool HasScaler(const Plan& plan) { return plan.loss_scaler.skips; }

const Shape& ShapeOf(const Plan& plan, const plan::State& state) {
  return plan.values[static_cast<size_t>(state.buffer.value)].shape;
}

Box WholeBox(const Shape& shape) {
  Box box;
  for (std::int64_t size : shape) {
    box.start.push_back(0);
    box.count.push_back(size);
  }
  return box;
}

const PlanParameter& ParameterOf(const Plan& plan, std::int32_t index) {
  return plan.parameters[static_cast<size_t>(index)];
}

Box LocalBox(const Plan& plan, const RankState& rank, std::int32_t index) {
  const PlanParameter& parameter = ParameterOf(plan, index);
  const plan::LocalValue& value = plan.values[static_cast<size_t>(parameter.value)];
  const Extent extent = value.layout.ExtentOf(value.shape, plan.mesh, rank.coordinates());
  Box box;
  for (int dim = 0; dim < parameter.logical_shape.rank(); ++dim) {
    const Interval& interval = extent.dims[static_cast<size_t>(dim)][0];
    const std::int64_t end = std::min(interval.start + interval.length, parameter.logical_shape[dim]);
    box.start.push_back(interval.start);
    box.count.push_back(std::max<std::int64_t>(0, end - interval.start));
  }
  return box;
}

const Bucket& BucketOf(const RankState& rank, std::int32_t parameter) {
  const std::vector<Bucket>& buckets = rank.stage().buckets;
  const auto holds = [&](const Bucket& bucket) {
    return std::any_of(bucket.items.begin(), bucket.items.end(),
                       [&](const Bucket::Item& item) { return item.parameter == parameter; });
  };
  const auto found = std::find_if(buckets.begin(), buckets.end(), holds);
  ENGINE_CHECK(found != buckets.end(), "parameter {} is on no stage of rank {}", parameter, rank.rank());
  return *found;
}

bool Saves(const RankState& rank, const Bucket& bucket, bool sharded) {
  return plan::Saves(bucket, rank.coordinates(), sharded);
}

std::string TensorName(const plan::OptimizerState& state, const std::string& parameter) {
  return fmt::format("{}/{}", state.folder, parameter);
}

std::vector<checkpoint::TensorInfo> TensorsOf(const Plan& plan) {
  std::vector<checkpoint::TensorInfo> tensors;
  for (const PlanParameter& parameter : plan.parameters)
    tensors.push_back({parameter.name, parameter.logical_shape, DType::kF32});
  for (const plan::OptimizerState& state : plan.optimizer->states) {
    for (const PlanParameter& parameter : plan.parameters) {
      if (parameter.training.frozen || parameter.training.sign_step > 0) continue;
      tensors.push_back({TensorName(state, parameter.name), parameter.logical_shape, DType::kF32});
    }
  }
  for (NamedState& named : StatesOf(plan)) {
    const plan::State& state = StateOf(plan, named);
    tensors.push_back({std::move(named.name), ShapeOf(plan, state), state.buffer.dtype});
  }
  if (HasScaler(plan)) tensors.push_back({kScalerName, {plan::kSavedControlNumbers}, DType::kF64});
  return tensors;
}

std::vector<Box> RangeBoxes(const Plan& plan, const RankState& rank, const OptimizerRange& range) {
  const Box box = LocalBox(plan, rank, range.parameter);
  const std::int64_t elements = box.count.elements();
  const std::int64_t end = std::min(range.end, elements);
  if (range.begin >= end) return {};
  return checkpoint::BoxesOfFlatRange(box, range.begin, end);
}

std::vector<ArenaPiece> PiecesOf(const Plan& plan, const std::vector<checkpoint::TensorInfo>& tensors,
                                 const RankState& rank) {
  RankPieces result(tensors);
  for (const LocalTensor& tensor : rank.Parameters()) {
    const Bucket& bucket = BucketOf(rank, tensor.parameter);
    if (HasMaster(bucket) || tensor.view.data == nullptr || !Saves(rank, bucket, false)) continue;
    const Box box = LocalBox(plan, rank, tensor.parameter);
    if (box.count.elements() == 0) continue;
    result.Add(ParameterOf(plan, tensor.parameter).name, box, tensor.view.data, tensor.view.dtype);
  }
  for (const OptimizerRange& range : rank.OptimizerState()) {
    const Bucket& bucket = BucketOf(rank, range.parameter);
    if (!Saves(rank, bucket, bucket.shards > 1)) continue;
    const std::string& name = ParameterOf(plan, range.parameter).name;
    std::int64_t elements = 0;
    for (const Box& box : RangeBoxes(plan, rank, range)) {
      if (range.master != nullptr) {
        result.Add(name, box, range.master + elements * SizeOf(DType::kF32), DType::kF32);
      } else if (range.weights != nullptr) {
        result.Add(name, box, range.weights + elements * SizeOf(range.weight_dtype), range.weight_dtype);
      }
      for (size_t s = 0; s < range.states.size(); ++s) {
        const auto& [data, dtype] = range.states[s];
        result.Add(TensorName(plan.optimizer->states[s], name), box, data + elements * SizeOf(dtype), dtype);
      }
      elements += box.count.elements();
    }
  }
  if (rank.rank() % plan.mesh.ranks_per_stage() != 0) return result.Take();
  for (const NamedState& named : StatesOf(plan)) {
    if (&plan.stages[named.stage] != &rank.stage()) continue;
    const plan::State& state = StateOf(plan, named);
    result.Add(named.name, WholeBox(ShapeOf(plan, state)), rank.State(named.index).data, state.buffer.dtype);
  }
  if (rank.rank() == 0 && HasScaler(plan)) {
    result.Add(kScalerName, WholeBox({plan::kSavedControlNumbers}), rank.Control().data, DType::kF64);
  }
  return result.Take();
}

}  // namespace engine::state
