// Exchange of whole buckets: reductions of gradients and gathers of parameters, and where they stand in the
// passes of a microbatch.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/compile/draft.h"
#include "engine/compile/estimates.h"
#include "engine/plan/plan.h"

namespace engine::compile {

// How flat buffers are exchanged within the passes.
struct FlatExchange {
  bool behind = false;                        // computation
  std::int32_t stream = plan::kBucketStream;  // where `behind`
  bool beside_conversions = true;             // also where these run in line: they are not NCCL's
  plan::AxisSet pushed = {};                  // shards over these axes are pushed, where `behind`
  // Who adds up what pushed sums gather, as far down as that goes.
  plan::Addition addition = plan::Addition::kByReader;
  bool at_begin = false;  // parameters are gathered behind the first passes that read them, where `behind`
};

// A kernel or a collective over flat buffers, the collective in place.
plan::Instruction Flat(const char* kernel, std::string name);
plan::Instruction FlatCollective(plan::Collective collective, std::string name, plan::Group group,
                                 const plan::BufferRef& buffer, const plan::Plan& plan);

// The sum of a bucket's gradients over the axes on which they are partial. The scratch of what is pushed is not placed yet.
plan::Instruction Reduce(const plan::Plan& plan, const plan::Bucket& bucket, std::size_t index,
                         const FlatExchange& exchange, const plan::DeviceProfile& profile);
// The gather of a bucket's parameters that are updated in shards.
plan::Instruction Gather(const plan::Plan& plan, const plan::Bucket& bucket, std::size_t index,
                         const FlatExchange& exchange);

// Puts the reduction of each early bucket behind the last instruction of these passes, which are in their order,
// that adds to its gradients. Where gradients are kept in shards, what a
// microbatch gives is then added to the shard: at once, or where exchange is behind computation before the
// next bucket is reduced. The scratch of what is pushed is not placed yet.
void ReduceEarly(const plan::Plan& plan, const plan::StagePlan& stage, const plan::DeviceProfile& profile,
                 const FlatExchange& exchange, const std::vector<DraftSegment*>& passes);

// Where a pass exchanges nothing else: puts the reductions that the last microbatch pushes one by one as
// near to its end as leaves room for each beside computation. Links between GPUs sleep 50 ms after what they
// carried last, and GPUs at their power limit compute 1.7 % faster beside links that sleep
// (docs/performance.md). Not where the rates of computation or of links are unknown.
void ReduceLate(const Rates& rates, DraftSegment* pass);

// Where parameters are kept in shards: gathers each bucket before the pass's first instruction that reads
// it, where exchange is behind computation one bucket ahead.
void GatherParameters(const plan::Plan& plan, const plan::StagePlan& stage, const FlatExchange& exchange,
                      DraftSegment* pass);

// Of the passes of a microbatch, in order: what is the first to read a bucket that is gathered when their
// program begins waits for that.
void JoinGathers(const plan::Plan& plan, const plan::StagePlan& stage,
                 const std::vector<DraftSegment*>& passes);

}  // namespace engine::compile
