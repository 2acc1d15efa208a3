// What a checkpoint names, and where a rank has it: everything by logical coordinates, so that any layout can read what any other wrote.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/checkpoint/box.h"
#include "engine/checkpoint/metadata.h"
#include "engine/executor/rank_state.h"
#include "engine/plan/optimizer.h"
#include "engine/plan/plan.h"

namespace engine::state {

inline constexpr const char* kScalerName =
    "loss_scaler";  // f64 [plan::kSavedControlNumbers], of fp16: the control block

bool HasScaler(const plan::Plan& plan);
const plan::PlanParameter& ParameterOf(const plan::Plan& plan, std::int32_t index);
const Shape& ShapeOf(const plan::Plan& plan, const plan::State& state);
checkpoint::Box WholeBox(const Shape& shape);

// This rank's box of a parameter, padding cut off; a count of 0 where the rank holds padding only. Weights
// are split into contiguous parts, so one interval a dim.
checkpoint::Box LocalBox(const plan::Plan& plan, const executor::RankState& rank, std::int32_t parameter);
// Boxes of a range of optimizer state, padding cut off; the range's memory starts with the first box.
std::vector<checkpoint::Box> RangeBoxes(const plan::Plan& plan, const executor::RankState& rank,
                                        const executor::OptimizerRange& range);

const plan::Bucket& BucketOf(const executor::RankState& rank, std::int32_t parameter);
// Whether this rank is the one of several copies that saves what the bucket holds: weights and states that are split (`sharded`) or not.
bool Saves(const executor::RankState& rank, const plan::Bucket& bucket, bool sharded);

// The name in a checkpoint of what an optimizer keeps of a parameter.
std::string TensorName(const plan::OptimizerState& state, const std::string& parameter);
// All tensors of a checkpoint of the plan's run.
std::vector<checkpoint::TensorInfo> TensorsOf(const plan::Plan& plan);
// A part of the rank's arena that holds a box of one of these tensors.
struct ArenaPiece {
  int tensor = 0;  // index into the tensors
  checkpoint::Box box;
  const std::byte* data = nullptr;  // the box's elements, row-major and contiguous
  DType dtype = DType::kF32;        // of these: the tensor's own, or bf16 or f16 of one of f32
};
// What this rank has to give of them: of ranks that hold the same elements, one gives them.
std::vector<ArenaPiece> PiecesOf(const plan::Plan& plan, const std::vector<checkpoint::TensorInfo>& tensors,
                                 const executor::RankState& rank);

}  // namespace engine::state
