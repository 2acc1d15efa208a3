#include "engine/search/stage_memory.h"

#include <algorithm>

#include "engine/ops/fp8.h"
#include "engine/plan/arena.h"
#include "engine/plan/control.h"

namespace engine::search {

using plan::Aligned;

plan::MemoryBreakdown MemoryOf(const recipe::Recipe& recipe, std::int64_t halves, const StageStates& states,
                               const PassSchedule& schedule, const Chunks& chunks, std::size_t stage) {
  plan::MemoryBreakdown memory = states.memory;
  const std::int64_t microbatches = recipe.microbatches() * halves;
  std::int64_t tensors = 0;  // quantised
  std::int64_t begin = 0;
  std::int64_t pass = 0;
  std::int64_t evaluation = 0;
  std::int64_t evaluate = 0;
  const size_t stages = static_cast<size_t>(recipe.parallelism.pp);
  for (size_t c = stage; c < chunks.size(); c += stages) {
    const ChunkFacts& chunk = chunks[c];
    const std::int64_t staged = chunk.fed_elements * microbatches * SizeOf(DType::kI32);
    memory.parameters += chunk.derived_bytes;
    memory.control += 2 * Aligned(staged);
    memory.activations += schedule.slots[c] * halves * chunk.slot_bytes;
    memory.communication += chunk.transfer_bytes;
    tensors += chunk.states;
    begin = std::max(begin, chunk.begin_bytes);
    pass = std::max(pass, chunk.pass_bytes);
    evaluation += chunk.evaluation.fed_bytes + chunk.evaluation.transfer_bytes;
    evaluate = std::max(evaluate, chunk.evaluation.bytes);
  }
  memory.control += Aligned(plan::ScalarsFor(states.numbers) * SizeOf(DType::kF64)) +
                    Aligned(plan::kControlNumbers * SizeOf(DType::kF64));
  memory.control += Aligned(tensors * ops::kScaleNumbers * SizeOf(DType::kF32));
  memory.transients = Aligned(std::max({begin, pass + states.sum_bytes, states.update_bytes}));
  memory.evaluation = std::max<std::int64_t>(
      0, evaluation + Aligned(evaluate) - memory.activations - memory.communication - memory.transients);
  return memory;
}

std::int64_t BlockInputBytes(const recipe::Recipe& recipe) {
  const recipe::Parallelism& p = recipe.parallelism;
  const std::int64_t tokens = recipe.training.micro_batch * recipe.data.sequence_length / p.cp;
  const std::int64_t split = p.sequence_parallel ? p.tp : 1;
  return tokens * recipe.model.hidden / split * (recipe.precision.compute == "fp32" ? 4 : 2);
}

}  // namespace engine::search
