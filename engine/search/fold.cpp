#include "engine/search/fold.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "engine/compile/flat_exchange.h"
#include "engine/compile/policy.h"
#include "engine/search/iteration_time.h"
#include "engine/search/known_states.h"
#include "engine/search/pipelines.h"
#include "engine/search/probes.h"
#include "engine/search/stage_memory.h"
#include "engine/search/whole_plans.h"

namespace engine::search {
namespace {

compile::CompileOptions InWholeMicrobatches(compile::CompileOptions options) {
  options.halves = false;
  return options;
}

compile::CompileOptions WithoutHash(compile::CompileOptions options) {
  options.hash = false;
  return options;
}

compile::CompileOptions WithEvaluation(compile::CompileOptions options) {
  options.evaluation = true;  // it counts for the arena
  return options;
}

// Whether a layout's plan is compiled whole: blocks with experts have several buckets, and what their shards are exchanged
// beside is not derived.
bool IsUnfolded(const recipe::Recipe& recipe) {
  return recipe.model.experts > 0 && compile::ZeroStageOf(recipe.parallelism) > 1;
}

// Sets what an estimate says of memory, from the stage with the largest arena.
void SetMemory(const FoldedLayout& layout, std::int64_t halves, Estimate* estimate) {
  for (size_t s = 0; s < layout.states.size(); ++s) {
    const plan::MemoryBreakdown memory =
        MemoryOf(layout.recipe, halves, *layout.states[s], layout.schedule, layout.chunks, s);
    if (memory.total() <= estimate->arena_bytes) continue;
    estimate->memory = memory;
    estimate->arena_bytes = memory.total();
    estimate->stage = static_cast<std::int32_t>(s);
  }
}

}  // namespace

// Puts estimates together: of a layout's pipeline, the facts of its chunks and the states of its stages, each of which
// has a memo of its own. Where halves may be held up, a second one estimates whole microbatches.
class Folder::Impl {
 public:
  explicit Impl(compile::CompileOptions options)
      : options_(WithoutHash(std::move(options))),
        pipelines_(options_.profile),
        probes_(options_),
        states_(options_.profile),
        unfolded_(WithEvaluation(options_)) {}

  std::int64_t probes() const {
    return probes_.compiled() + unfolded_.probes() + (whole_ != nullptr ? whole_->probes() : 0);
  }

  absl::StatusOr<std::int64_t> LeastBytes(const recipe::Recipe& recipe) {
    if (IsUnfolded(recipe)) return 0;
    ASSIGN_OR_RETURN(const compile::FlatExchange exchange, compile::ExchangeOf(recipe, options_));
    const std::vector<std::int64_t>& blocks = pipelines_.BlocksOf(recipe);
    const PassSchedule& schedule = pipelines_.ScheduleOf(recipe);
    const std::int64_t input_bytes = BlockInputBytes(recipe);
    ASSIGN_OR_RETURN(const std::vector<const StageStates*> states, StatesOf(recipe, exchange, blocks));
    std::vector<std::int64_t> bytes(states.size(), 0);
    for (size_t c = 0; c < blocks.size(); ++c)
      bytes[c % states.size()] += schedule.slots[c] * blocks[c] * input_bytes;
    std::int64_t most = 0;
    for (size_t s = 0; s < states.size(); ++s) most = std::max(most, states[s]->memory.total() + bytes[s]);
    return most;
  }

  double LeastSeconds(const recipe::Recipe& recipe) {
    const std::vector<std::int64_t>& blocks = pipelines_.BlocksOf(recipe);
    const std::int64_t halves = compile::Halves(recipe, options_);
    const double seconds = probes_.block_times().LeastSeconds(recipe, halves, blocks);
    if (halves == 1 || !compile::MayHoldUpHalves(recipe, options_)) return seconds;
    return std::min(seconds, probes_.block_times().LeastSeconds(recipe, 1, blocks));
  }

  // As CompileUnverified chooses: without halves where these are held up and that takes less time.
  absl::StatusOr<Estimate> Fold(const recipe::Recipe& recipe, double slow_s) {
    constexpr double kHardly = 0.05;  // of an iteration
    if (IsUnfolded(recipe)) return unfolded_.Fold(recipe, slow_s);
    const bool may_hold_up = compile::MayHoldUpHalves(recipe, options_);
    absl::StatusOr<Estimate> halves =
        FoldAsSaid(recipe, may_hold_up ? std::numeric_limits<double>::infinity() : slow_s);
    const bool refused = halves.ok() && halves->halves_refused;
    if (!refused && (!halves.ok() || !may_hold_up || halves->held_up_s < kHardly * halves->iteration_s))
      return halves;
    if (whole_ == nullptr) whole_ = std::make_unique<Impl>(InWholeMicrobatches(options_));
    ASSIGN_OR_RETURN(const Estimate whole, whole_->FoldAsSaid(recipe, slow_s));
    return refused || whole.iteration_s < halves->iteration_s ? whole : *halves;
  }

 private:
  absl::StatusOr<Estimate> FoldAsSaid(const recipe::Recipe& recipe, double slow_s) {
    ASSIGN_OR_RETURN(const compile::FlatExchange exchange, compile::ExchangeOf(recipe, options_));
    const std::vector<std::int64_t>& blocks = pipelines_.BlocksOf(recipe);
    const PassSchedule& schedule = pipelines_.ScheduleOf(recipe);
    const std::int64_t halves = compile::Halves(recipe, options_);
    Estimate estimate;
    ASSIGN_OR_RETURN(const Chunks chunks, probes_.ChunksOf(recipe, halves, blocks));
    estimate.halves_refused = chunks.refused;
    if (chunks.refused) return estimate;
    ASSIGN_OR_RETURN(const std::vector<const StageStates*> states, StatesOf(recipe, exchange, blocks));
    ASSIGN_OR_RETURN(const Probe* probe, probes_.Of(recipe, halves, blocks[0]));
    const FoldedLayout layout = {.recipe = recipe,
                                 .exchange = exchange,
                                 .blocks = blocks,
                                 .chunks = chunks,
                                 .states = states,
                                 .schedule = schedule,
                                 .probe = *probe};
    SetMemory(layout, halves, &estimate);
    const IterationTime time = TimeIteration(layout, slow_s);
    estimate.iteration_s = time.seconds;
    estimate.held_up_s = time.held_up_s;
    return estimate;
  }

  // By stage, of chunks of so many blocks.
  absl::StatusOr<std::vector<const StageStates*>> StatesOf(const recipe::Recipe& recipe,
                                                           const compile::FlatExchange& exchange,
                                                           const std::vector<std::int64_t>& blocks) {
    const std::int64_t halves = compile::Halves(recipe, options_);
    ASSIGN_OR_RETURN(ModelParameters * parameters, probes_.ParametersOf(recipe, halves, blocks[0]));
    return states_.Of(recipe, exchange, ShapesOf(recipe, blocks), parameters);
  }

  compile::CompileOptions options_;
  Pipelines pipelines_;
  Probes probes_;
  KnownStates states_;
  WholePlans unfolded_;
  std::unique_ptr<Impl> whole_;  // of microbatches that are not cut
};

Folder::Folder(compile::CompileOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Folder::~Folder() = default;
absl::StatusOr<Estimate> Folder::Fold(const recipe::Recipe& recipe, double slow_s) {
  return impl_->Fold(recipe, slow_s);
}
absl::StatusOr<std::int64_t> Folder::LeastBytes(const recipe::Recipe& recipe) {
  return impl_->LeastBytes(recipe);
}
double Folder::LeastSeconds(const recipe::Recipe& recipe) { return impl_->LeastSeconds(recipe); }
std::int64_t Folder::probes() const { return impl_->probes(); }

}  // namespace engine::search
