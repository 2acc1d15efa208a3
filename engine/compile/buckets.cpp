#include "engine/compile/buckets.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "engine/base/units.h"
#include "engine/plan/arena.h"

namespace engine::compile {
namespace {

constexpr std::int64_t kItemAlignment = 128;  // elements: 256 bytes of bf16, 512 of fp32

plan::AxisSet ReduceAxes(const plan::Plan& plan, const plan::PlanParameter& parameter) {
  if (parameter.gradient < 0) return {};
  return plan.mesh.Active(plan.values[static_cast<size_t>(parameter.gradient)].layout.PartialAxes());
}

DType GradientDType(const plan::Plan& plan, const plan::PlanParameter& parameter) {
  if (parameter.gradient < 0) return DType::kF32;
  return plan.values[static_cast<size_t>(parameter.gradient)].dtype;
}

// Axes on which the parameter is repeated: those that do not split it.
plan::AxisSet CopyAxes(const plan::Plan& plan, const plan::PlanParameter& parameter) {
  const plan::Layout& layout = plan.values[static_cast<size_t>(parameter.value)].layout;
  plan::AxisSet copies;
  for (graph::Axis axis : graph::kAxes) {
    if (!layout.At(axis).split()) copies = copies | plan::AxisSet::Of(axis);
  }
  return plan.mesh.Active(copies);
}

plan::BufferRef ReserveAt(std::int64_t elements, DType dtype, std::int64_t* cursor, std::int64_t* item) {
  const plan::BufferRef ref{.offset = *cursor, .elements = elements, .dtype = dtype};
  *cursor += plan::Aligned(ref.bytes());
  *item += plan::Aligned(ref.bytes());
  return ref;
}

// Where a bucket's elements are no parameter's: first and end of each gap, in bytes of its gradients.
std::vector<std::int64_t> GapsOf(const plan::Bucket& bucket) {
  std::vector<std::int64_t> gaps;
  std::int64_t end = 0;
  const auto add = [&](std::int64_t next) {
    if (next > end)
      gaps.insert(gaps.end(), {end * SizeOf(bucket.gradient_dtype), next * SizeOf(bucket.gradient_dtype)});
  };
  for (const plan::Bucket::Item& item : bucket.items) {
    add(item.offset_elements);
    end = item.offset_elements + item.elements;
  }
  add(bucket.elements);
  return gaps;
}

// Buffers that buckets take in turn.
struct TurnBuffers {
  std::vector<std::int64_t> bytes, offsets;
  size_t next = 0;  // bucket of those that take them
};

// How many of those that have a `shard` one block has at most: its experts, say, and the rest, which are summed over other
// ranks. Their passes read them by turns, so that each needs a buffer while the block runs.
std::size_t MostOfABlock(const std::vector<plan::Bucket>& buckets, plan::BufferRef plan::Bucket::*shard) {
  std::map<std::int32_t, std::size_t> of_block;
  std::size_t most = 1;
  for (const plan::Bucket& bucket : buckets) {
    if ((bucket.*shard).elements > 0) most = std::max(most, ++of_block[bucket.block]);
  }
  return most;
}

// Buffers for whole buckets, of those that have a `shard`: as many as one block has, and where exchange is behind
// computation twice as many, so that one block's are exchanged while the next is computed with. Of gradients, buckets with gaps in different places have
// different buffers: gaps keep the zeros that they start with, and count in the sum of squares.
void PlaceInTurns(int buffers, plan::BufferRef plan::Bucket::*shard, plan::BufferRef plan::Bucket::*whole,
                  DType plan::Bucket::*dtype, std::int64_t* cursor, std::int64_t* item,
                  std::vector<plan::Bucket>* buckets) {
  const bool gradients = whole == &plan::Bucket::gradient;
  const size_t count = static_cast<size_t>(buffers) * MostOfABlock(*buckets, shard);
  std::map<std::vector<std::int64_t>, TurnBuffers> by_gaps;
  const auto turns_of = [&](const plan::Bucket& bucket) -> TurnBuffers& {
    return by_gaps[gradients ? GapsOf(bucket) : std::vector<std::int64_t>()];
  };
  for (const plan::Bucket& bucket : *buckets) {
    if ((bucket.*shard).elements == 0) continue;
    TurnBuffers& turns = turns_of(bucket);
    turns.bytes.resize(count);
    std::int64_t& most = turns.bytes[turns.next++ % count];
    most = std::max(most, bucket.elements * SizeOf(bucket.*dtype));
  }
  for (auto& [gaps, turns] : by_gaps) {
    for (const std::int64_t most : turns.bytes)
      turns.offsets.push_back(ReserveAt(most, DType::kU8, cursor, item).offset);
    turns.next = 0;
  }
  for (plan::Bucket& bucket : *buckets) {
    if ((bucket.*shard).elements == 0) continue;
    TurnBuffers& turns = turns_of(bucket);
    plan::BufferRef& place = bucket.*whole;
    place = {
        .offset = turns.offsets[turns.next++ % count], .elements = bucket.elements, .dtype = bucket.*dtype};
  }
}

}  // namespace

plan::BufferRef ShardOf(const plan::Bucket& bucket, plan::BufferRef buffer) {
  if (bucket.shards == 1) return buffer;
  buffer.elements = bucket.shard_elements();
  buffer.shard_axes = bucket.reduce;
  buffer.shard_stride = buffer.bytes();
  return buffer;
}

plan::BufferRef OwnParameters(const plan::Bucket& bucket) {
  return bucket.parameter_shard.elements > 0 ? bucket.parameter_shard : ShardOf(bucket, bucket.parameter);
}
plan::BufferRef OwnGradients(const plan::Bucket& bucket) {
  return bucket.gradient_shard.elements > 0 ? bucket.gradient_shard : ShardOf(bucket, bucket.gradient);
}

void PlaceBuckets(const BucketStorage& storage, std::int64_t* cursor, plan::MemoryBreakdown* memory,
                  std::vector<plan::Bucket>* buckets) {
  for (plan::Bucket& bucket : *buckets) {
    const bool in_shards = storage.training && storage.zero_stage > 2 && bucket.block >= 0;
    (in_shards ? bucket.parameter_shard : bucket.parameter) =
        ReserveAt(in_shards ? bucket.shard_elements() : bucket.elements, bucket.parameter_dtype, cursor,
                  &memory->parameters);
  }
  PlaceInTurns(storage.in_turns, &plan::Bucket::parameter_shard, &plan::Bucket::parameter,
               &plan::Bucket::parameter_dtype, cursor, &memory->parameters, buckets);
  if (!storage.training) return;
  for (plan::Bucket& bucket : *buckets) {
    if (bucket.frozen()) continue;
    const bool in_shards = storage.zero_stage > 1 && bucket.block >= 0;
    if (in_shards) {
      bucket.gradient_shard = ReserveAt(bucket.shard_elements(), DType::kF32, cursor, &memory->gradients);
    } else {
      bucket.gradient = ReserveAt(bucket.elements, bucket.gradient_dtype, cursor, &memory->gradients);
    }
  }
  PlaceInTurns(storage.in_turns, &plan::Bucket::gradient_shard, &plan::Bucket::gradient,
               &plan::Bucket::gradient_dtype, cursor, &memory->gradients, buckets);
  for (plan::Bucket& bucket : *buckets) {
    if (bucket.frozen()) continue;
    const std::int64_t shard = bucket.shard_elements();
    if (bucket.parameter_dtype != DType::kF32 && (storage.bulk_masters || !bucket.bulk)) {
      bucket.master = ReserveAt(shard, DType::kF32, cursor, &memory->optimizer);
    }
    for (const plan::OptimizerState& state : plan::OptimizerOf(*storage.optimizer, bucket.training).states) {
      bucket.states.push_back(ReserveAt(shard, state.StoredAs(storage.moments), cursor, &memory->optimizer));
    }
  }
  if (!storage.gather_at_begin) return;
  int behind_update = 2;  // of the blocks whose passes nothing would hide the gather of
  for (plan::Bucket& bucket : *buckets) {
    if (!bucket.early || bucket.shards == 1 || bucket.parameter_shard.elements > 0) continue;
    if (behind_update-- <= 0) bucket.parameter_shard = ShardOf(bucket, bucket.parameter);
  }
}

plan::BufferRef ItemRef(const plan::BufferRef& of, const plan::Bucket::Item& item, std::int32_t value) {
  plan::BufferRef ref = of;
  ref.value = value;
  ref.offset += item.offset_elements * SizeOf(of.dtype);
  ref.elements = item.elements;
  return ref;
}

std::vector<plan::Bucket> MakeBuckets(const plan::Plan& plan, const std::vector<bool>& used,
                                      const std::vector<std::int32_t>& units, std::int64_t zero_stage,
                                      std::int32_t stage) {
  std::vector<plan::Bucket> buckets;
  using Holders = std::vector<std::int32_t>;                                 // of what is tied
  using Settings = std::tuple<bool, double, std::optional<double>, double>;  // graph::TrainingSettings
  std::map<std::tuple<unsigned, unsigned, bool, bool, Settings, Holders, DType, DType, std::int32_t>, size_t>
      index;
  for (size_t p = 0; p < plan.parameters.size(); ++p) {
    if (!used[p]) continue;
    const plan::PlanParameter& parameter = plan.parameters[p];
    const plan::LocalValue& value = plan.values[static_cast<size_t>(parameter.value)];
    const DType gradient = GradientDType(plan, parameter);
    const plan::AxisSet reduce = ReduceAxes(plan, parameter);
    const plan::AxisSet copies = CopyAxes(plan, parameter);
    const bool bulk = graph::FactsOf(parameter.role).bulk;
    const bool early = units[p] != kNoUnit && !reduce.empty() && bulk && !parameter.tied();
    const graph::TrainingSettings& training = parameter.training;
    const auto key = std::make_tuple(
        reduce.bits(), copies.bits(), parameter.weight_decay, bulk,
        Settings(training.frozen, training.learning_rate_scale, training.weight_decay, training.sign_step),
        parameter.tied() ? parameter.holders : Holders(), value.dtype, gradient, early ? units[p] : kNoUnit);
    const auto [it, fresh] = index.try_emplace(key, buckets.size());
    if (fresh) {
      plan::Bucket bucket;
      bucket.reduce = reduce;
      bucket.copies = copies;
      bucket.weight_decay = parameter.weight_decay;
      bucket.training = training;
      bucket.bulk = bulk;
      bucket.holders = parameter.holders;
      bucket.owned = !parameter.tied() || parameter.holders.front() == stage;
      bucket.early = early;
      const bool of_block =
          early && plan.units[static_cast<size_t>(units[p])].kind == graph::Unit::Kind::kBlock;
      bucket.block = of_block ? units[p] : -1;
      bucket.shards = zero_stage > 0 ? plan.mesh.GroupSize(reduce) : 1;
      bucket.parameter_dtype = value.dtype;
      bucket.gradient_dtype = gradient;
      buckets.push_back(bucket);
    }
    plan::Bucket& bucket = buckets[it->second];
    bucket.items.push_back({static_cast<std::int32_t>(p), bucket.elements, value.local.elements()});
    bucket.elements = RoundUp(bucket.elements + value.local.elements(), kItemAlignment);
  }
  for (plan::Bucket& bucket : buckets)
    bucket.elements = RoundUp(bucket.elements, bucket.shards * kItemAlignment);
  return buckets;
}

}  // namespace engine::compile
