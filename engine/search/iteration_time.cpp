#include "engine/search/iteration_time.h"

#include <algorithm>
#include <cstddef>

#include "engine/compile/policy.h"
#include "engine/plan/mesh.h"
#include "engine/plan/plan.h"
#include "engine/predict/cost.h"
#include "engine/search/block_exchange.h"

namespace engine::search {
namespace {

const StageStates& StatesOfChunk(const FoldedLayout& layout, size_t chunk) {
  return *layout.states[chunk % layout.states.size()];
}

// Seconds of the passes of chunk `c`. Where gradients are kept in shards, each microbatch reduces them.
void AddPasses(const FoldedLayout& layout, size_t c, plan::PassTimes* times) {
  const StageStates& of = StatesOfChunk(layout, c);
  const ChunkFacts& facts = layout.chunks[c];
  const std::int64_t n = layout.blocks[c];
  const double blocks = static_cast<double>(n);
  double forward = facts.forward.seconds();
  double backward = facts.backward.seconds();
  if (compile::ZeroStageOf(layout.recipe.parallelism) > 1 && of.reduce.seconds > 0) {
    const PassTime each_forward = layout.probe.EachForward();
    const PassTime each_backward = layout.probe.EachBackward();
    const bool behind = layout.exchange.behind;
    BlockExchange in_pass;
    if (of.gather.seconds > 0) in_pass = {.gather = &of.gather, .before_s = of.before_gather_s};
    forward = PlayBlocks(n, each_forward, facts.forward - each_forward * blocks, behind, in_pass).seconds;
    in_pass.reduce = &of.reduce;
    in_pass.after_s = of.after_reduce_s;
    const PlayedBlocks played =
        PlayBlocks(n, each_backward, facts.backward - each_backward * blocks, behind, in_pass);
    backward = played.seconds;
    // The last block's sum is added to its shard in the pass.
    backward += played.busy + played.finish;
  }
  times->forward.push_back(forward);
  times->backward.push_back(backward);
  times->weights.push_back(facts.weights.seconds());
}

// What exchange makes of the last pass of chunk `c` (PassTimes::ending), where gradients are reduced once an
// iteration. Adds to `held_up_s`.
plan::PassTimes::Ending EndingOf(const FoldedLayout& layout, size_t c, double busy, double* held_up_s) {
  const StageStates& of = StatesOfChunk(layout, c);
  plan::PassTimes::Ending ending;
  if (of.reduce.seconds == 0) return ending;
  const bool last = c + 1 == layout.chunks.size();
  BlockExchange in_pass;
  in_pass.reduce = &of.reduce;
  if (last) in_pass.reduce_head = &of.reduce_head;
  const std::int64_t n = layout.blocks[c];
  const PassTime all = layout.chunks[c].backward + layout.chunks[c].weights;
  const PlayedBlocks with =
      PlayBlocks(n, all * (1 / static_cast<double>(n)), {}, layout.exchange.behind, in_pass, busy);
  // Where conversions behind computation share the stream, the last one stands behind all reductions but one.
  const bool shares = all.behind_s > 0 && layout.exchange.stream == plan::kExchangeStream;
  const double head = last ? of.reduce_head.seconds : 0;
  const double exchanged =
      shares ? busy + all.behind_s + static_cast<double>(n) * of.reduce.seconds + head : 0;
  const double pass = std::max(with.seconds, exchanged - of.reduce.seconds);
  ending.longer = pass - all.seconds();
  if (shares) *held_up_s += ending.longer;
  ending.busy = std::max(with.busy - (pass - with.seconds), exchanged - pass);
  ending.finish = with.finish;
  return ending;
}

// Seconds of transfers between chunks.
void TimeTransfers(const FoldedLayout& layout, plan::PassTimes* times) {
  const size_t chunks = layout.chunks.size();
  times->send.assign(chunks, 0);
  times->send_back.assign(chunks, 0);
  if (chunks == 1) return;
  const Probe& probe = layout.probe;
  plan::Plan plan;
  plan.mesh = plan::Mesh::Of(layout.recipe.parallelism);
  const size_t stages = layout.states.size();
  for (size_t c = 0; c < chunks; ++c) plan.chunk_stage.push_back(static_cast<std::int32_t>(c % stages));
  const predict::CostModel costs(plan, layout.recipe.cluster);
  for (size_t c = 0; c + 1 < chunks; ++c) {
    const std::int32_t chunk = static_cast<std::int32_t>(c);
    times->send[c] =
        c < stages ? costs.TransferSeconds(
                         {.value = -1, .from_chunk = chunk, .to_chunk = chunk + 1, .bytes = probe.send_bytes})
                   : times->send[c - stages];
    times->send_back[c + 1] =
        times->send[c] * static_cast<double>(probe.send_back_bytes) / static_cast<double>(probe.send_bytes);
  }
}

// When all stages have come to the sum over the world, of an iteration whose passes take so long.
double MeetingSeconds(const FoldedLayout& layout, const plan::PassTimes& times) {
  const std::vector<double> ends = PlayPasses(layout.schedule, times, layout.recipe.microbatches());
  double meeting = 0;
  for (size_t s = 0; s < ends.size(); ++s) {
    double begin = 0;
    for (size_t c = s; c < layout.chunks.size(); c += ends.size()) begin += layout.chunks[c].begin.seconds();
    meeting = std::max(meeting, begin + ends[s] + layout.states[s]->before_meeting_s);
  }
  return meeting;
}

}  // namespace

IterationTime TimeIteration(const FoldedLayout& layout, double slow_s) {
  plan::PassTimes times;
  for (size_t c = 0; c < layout.chunks.size(); ++c) AddPasses(layout, c, &times);
  double rest = 0;
  for (const StageStates* of : layout.states) rest = std::max(rest, of->after_meeting_s);
  IterationTime time{.seconds = LeastSecondsOfPasses(times, layout.recipe) + rest};
  if (time.seconds > slow_s) return time;
  if (compile::ZeroStageOf(layout.recipe.parallelism) < 2) {
    times.ending = [&](size_t c, double busy) { return EndingOf(layout, c, busy, &time.held_up_s); };
  }
  TimeTransfers(layout, &times);
  time.seconds = MeetingSeconds(layout, times) + rest;
  return time;
}

// Each stage waits for the first microbatch's way to it, then does all that is its own, and what it ends with goes back
// to the first stage, but for weights passes, which stay.
double LeastSecondsOfPasses(const plan::PassTimes& times, const recipe::Recipe& recipe) {
  const size_t stages = static_cast<size_t>(recipe.parallelism.pp);
  const std::int64_t microbatches = recipe.microbatches();
  const bool deferred = DefersWeights(recipe.parallelism);
  double most = 0;
  double way = 0;
  for (size_t s = 0; s < stages; ++s) {
    double work = 0;
    for (size_t c = s; c < times.forward.size(); c += stages)
      work += times.forward[c] + times.backward[c] + times.weights[c];
    most = std::max(most, way + work * static_cast<double>(microbatches));
    way += times.forward[s] + (deferred ? 0 : times.backward[s]);
  }
  return most;
}

}  // namespace engine::search
