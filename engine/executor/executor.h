// Walks one rank's program on a backend. No maths, no policy: what to run, in which order, on which bytes, is
// the plan's.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/backend/backend.h"
#include "engine/plan/plan.h"

namespace engine::executor {

// A parameter, or its optimizer state, as this rank holds it.
struct LocalTensor {
  std::int32_t parameter = -1;  // Plan::parameters
  backend::TensorView view;     // local data in the arena; extent and sizes of the padded logical tensor
};

// A contiguous range of a local parameter whose optimizer state this rank keeps (all of it without ZeRO).
struct OptimizerRange {
  std::int32_t parameter = -1;
  std::int64_t begin = 0, end = 0;  // elements of the local tensor
  std::byte* moment1 = nullptr;     // of element `begin`
  std::byte* moment2 = nullptr;
};

// Fills `host` (a local tensor of int32, row-major) with the input of that name of one microbatch.
using FeedFunction = std::function<absl::Status(const std::string& input, std::int64_t microbatch,
                                                const backend::TensorView& host)>;

struct IterationResult {
  double loss_sum = 0;  // Σ cross entropy over the tokens of all ranks
  double grad_norm = 0;
};

class RankExecutor {
 public:
  // Allocates the arena (Plan's size, to the byte) and prepares every launch. The plan must outlive the
  // executor.
  static absl::StatusOr<std::unique_ptr<RankExecutor>> Create(
      const plan::Plan& plan, std::int64_t rank, std::unique_ptr<backend::Backend> backend,
      std::unique_ptr<backend::Communicator> communicator, std::uint64_t seed);
  ~RankExecutor();

  // One iteration of the training program. `iteration`, from 0, keys dropout; `step` counts optimizer steps
  // from 1.
  absl::StatusOr<IterationResult> Train(std::int64_t iteration, std::int64_t step, double learning_rate,
                                        const FeedFunction& feed);
  // One pass of the evaluation program over a global batch; grad_norm is 0.
  absl::StatusOr<IterationResult> Evaluate(const FeedFunction& feed);

  std::int64_t rank() const { return rank_; }
  const plan::Coordinates& coordinates() const { return coordinates_; }
  const plan::StagePlan& stage() const { return stage_; }
  backend::Backend& backend() { return *backend_; }

  // Every parameter of the stage, copies of other stages' included.
  std::vector<LocalTensor> Parameters() const;
  std::vector<LocalTensor> Gradients() const;
  std::vector<OptimizerRange> OptimizerState() const;
  // The logits of the last evaluated microbatch (plans made with keep_logits, ranks of the last stage).
  backend::TensorView Logits() const;

 private:
  struct Prepared;
  RankExecutor(const plan::Plan& plan, std::int64_t rank);
  absl::Status PrepareSegments();
  absl::StatusOr<Prepared> PrepareInstruction(const plan::Instruction& instruction, const plan::Chunk* chunk,
                                              std::int64_t slot);
  absl::Status RunProgram(const plan::Program& program, bool evaluate, const backend::KernelContext& context,
                          const FeedFunction& feed);
  absl::Status RunStep(const plan::Step& step, std::int64_t index, bool evaluate,
                       const backend::KernelContext& context, const FeedFunction& feed);
  absl::Status RunSegment(const plan::Step& step, bool evaluate, const backend::KernelContext& context,
                          const FeedFunction& feed);
  absl::Status Feed(const plan::Step& step, bool evaluate, const FeedFunction& feed);
  std::int64_t PeerOf(std::int32_t chunk) const;
  std::byte* Address(const plan::BufferRef& ref, const plan::Chunk* chunk, std::int64_t slot) const;
  backend::TensorView View(const plan::BufferRef& ref, const plan::Chunk* chunk, std::int64_t slot) const;
  const plan::Chunk* ChunkAt(std::int32_t index) const;
  // The items of every bucket's `buffer`, as the LocalValue that `value` names.
  std::vector<LocalTensor> Tensors(plan::BufferRef plan::Bucket::*buffer,
                                   std::int32_t plan::PlanParameter::*value) const;

  const plan::Plan& plan_;
  const std::int64_t rank_;
  const plan::Coordinates coordinates_;
  const plan::StagePlan& stage_;
  std::unique_ptr<backend::Backend> backend_;
  std::unique_ptr<backend::Communicator> communicator_;
  std::byte* arena_ = nullptr;
  std::uint64_t seed_ = 0;
  // By segment, then by slot (one entry where the segment touches no slot).
  std::vector<std::vector<std::vector<Prepared>>> prepared_;
  std::vector<std::int64_t> tickets_;  // of the running program's sends, by step
  std::vector<std::int32_t> host_input_;
};

}  // namespace engine::executor
