// The plans of few blocks that stand for a Folder's layouts (search/fold.h), and what has been read off them.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/base/status.h"
#include "engine/compile/compile.h"
#include "engine/recipe/recipe.h"
#include "engine/search/block_times.h"
#include "engine/search/chunk_facts.h"
#include "engine/search/fold_keys.h"
#include "engine/search/stage_states.h"

namespace engine::search {

// Where a chunk stands in the pipeline: what it holds beside blocks depends on it.
enum class ChunkKind : std::uint8_t { kFirst, kMiddle, kLast, kWhole };
inline constexpr std::size_t kChunkKinds = 4;

// What a plan of few blocks says of chunks.
struct Probe {
  std::int64_t blocks = 0;
  bool refused = false;                       // its microbatches cannot be cut into halves: no facts
  std::array<ChunkFacts, kChunkKinds> facts;  // by ChunkKind
  std::array<ChunkFacts, 3> longer;           // of a middle chunk, kMore longer
  // Between stages, of a microbatch.
  std::int64_t send_bytes = 0, send_back_bytes = 0;

  // What one block adds to a pass.
  PassTime EachForward() const { return longer[1].forward - longer[0].forward; }
  PassTime EachBackward() const { return longer[1].backward - longer[0].backward; }
};

// Compiles probes, each once, and keeps what they say, under keys of what it depends on. Recipes differ in layout,
// batch and recomputation alone; `halves`: parts that a microbatch of theirs is cut into.
class Probes {
 public:
  explicit Probes(compile::CompileOptions options) : options_(std::move(options)) {}

  // The probe that says what a chunk of so many blocks needs: its chunks are as long, or shorter and grow evenly.
  // Error: a layout that the model does not allow.
  absl::StatusOr<const Probe*> Of(const recipe::Recipe& recipe, std::int64_t halves, std::int64_t blocks);

  // Facts of chunks of so many blocks, in the pipeline's order.
  absl::StatusOr<Chunks> ChunksOf(const recipe::Recipe& recipe, std::int64_t halves,
                                  const std::vector<std::int64_t>& blocks);

  // Parameters of the whole model; a probe of so many blocks is compiled where there is none to read them off.
  absl::StatusOr<ModelParameters*> ParametersOf(const recipe::Recipe& recipe, std::int64_t halves,
                                                std::int64_t blocks);

  const BlockTimes& block_times() const { return block_times_; }
  std::int64_t compiled() const { return compiled_; }  // plans so far

 private:
  struct Compiled;  // one plan

  absl::StatusOr<Compiled> Compile(const recipe::Recipe& recipe, std::int64_t halves,
                                   const std::vector<std::int64_t>& blocks);
  absl::StatusOr<Probe> Make(const recipe::Recipe& recipe, std::int64_t halves, std::int64_t blocks,
                             const Probe* even);
  absl::StatusOr<Probe> MakeOfOneStage(const recipe::Recipe& recipe, std::int64_t halves, std::int64_t blocks,
                                       const Probe* even);
  absl::StatusOr<const Probe*> Known(const recipe::Recipe& recipe, std::int64_t halves, std::int64_t blocks,
                                     const Probe* even);

  compile::CompileOptions options_;
  std::int64_t compiled_ = 0;
  absl::flat_hash_map<ProbeKey, std::unique_ptr<absl::StatusOr<Probe>>> known_;
  absl::flat_hash_map<EvaluationKey, std::vector<ChunkFacts::Evaluation>> evaluations_;  // by stage
  absl::flat_hash_map<ParameterKey, std::unique_ptr<ModelParameters>> parameters_;
  BlockTimes block_times_;
};

}  // namespace engine::search
