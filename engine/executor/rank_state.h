// Where a rank's state lies in its arena: parameters, what the optimizer keeps, the numbers beside it. It follows from the plan and the rank
// alone, so that a copy of another rank's state can be read as well.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/backend/kernel.h"
#include "engine/plan/plan.h"

namespace engine::executor {

// A parameter, or its optimizer state, as this rank holds it.
struct LocalTensor {
  std::int32_t parameter = -1;  // Plan::parameters
  // Local data in the arena; extent and sizes of the padded logical tensor. No data (null) of a parameter of
  // which the rank keeps ranges only (OptimizerRange).
  backend::TensorView view;
};

// A contiguous range of a local parameter whose optimizer state this rank keeps (all of it without ZeRO).
struct OptimizerRange {
  std::int32_t parameter = -1;
  std::int64_t begin = 0, end = 0;  // elements of the local tensor
  std::byte* master = nullptr;  // fp32, of element `begin`; null where the parameters themselves are updated
  struct State {
    std::byte* data = nullptr;  // likewise
    DType dtype = DType::kF32;
  };
  std::vector<State> states =
      {};  // in the order of plan::Plan::optimizer's; none where the plan only evaluates
  std::byte* gradient = nullptr;  // likewise, as the last update reduced it
  DType gradient_dtype = DType::kF32;
  std::byte* weights = nullptr;  // the parameter itself, likewise; null where the rank keeps all of it
  DType weight_dtype = DType::kF32;
};

class RankState {
 public:
  // The plan outlives it. `arena`: StagePlan::arena_bytes from there on; nothing is read there.
  RankState(const plan::Plan& plan, std::int64_t rank, std::byte* arena);

  std::int64_t rank() const { return rank_; }
  const plan::Coordinates& coordinates() const { return coordinates_; }
  const plan::StagePlan& stage() const { return stage_; }
  const std::string& NameOf(std::int32_t parameter) const {
    return plan_.parameters[static_cast<size_t>(parameter)].name;
  }

  // Every parameter of the stage, copies of other stages' included.
  std::vector<LocalTensor> Parameters() const;
  std::vector<OptimizerRange> OptimizerState() const;
  // Numbers beside the optimizer's that a run goes on with: the control block, f64[kControlNumbers], and those of
  // StagePlan::states.
  backend::TensorView Control() const { return View(stage_.control, nullptr, -1); }
  backend::TensorView State(size_t state) const { return View(stage_.states[state].buffer, nullptr, -1); }
  // `chunk` null and `slot` −1: of a buffer that lies in no slot of a microbatch.
  std::byte* Address(const plan::BufferRef& ref, const plan::Chunk* chunk, std::int64_t slot) const;

 protected:
  // In the arena of a rank with these coordinates, of any stage.
  std::int64_t OffsetOf(const plan::BufferRef& ref, const plan::Chunk* chunk, std::int64_t slot) const;
  backend::TensorView View(const plan::BufferRef& ref, const plan::Chunk* chunk, std::int64_t slot) const;

  const plan::Plan& plan_;
  const std::int64_t rank_;
  const plan::Coordinates coordinates_;
  const plan::StagePlan& stage_;
  std::byte* arena_;
};

}  // namespace engine::executor
