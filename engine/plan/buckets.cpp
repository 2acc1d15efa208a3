#include "engine/plan/buckets.h"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "engine/base/units.h"
#include "engine/plan/arena.h"
#include "engine/plan/placements.h"

namespace engine::plan {
namespace {

constexpr std::int64_t kItemAlignment = 128;  // elements: 256 bytes of bf16, 512 of fp32

AxisSet ReduceAxes(const Plan& plan, const PlanParameter& parameter) {
  if (parameter.gradient < 0) return {};
  return plan.mesh.Active(plan.values[static_cast<size_t>(parameter.gradient)].layout.PartialAxes());
}

DType GradientDType(const Plan& plan, const PlanParameter& parameter) {
  if (parameter.gradient < 0) return DType::kF32;
  return plan.values[static_cast<size_t>(parameter.gradient)].dtype;
}

// Axes on which the parameter is repeated: those that do not split it.
AxisSet CopyAxes(const Plan& plan, const PlanParameter& parameter) {
  const Layout& layout = plan.values[static_cast<size_t>(parameter.value)].layout;
  AxisSet copies;
  for (Axis axis : graph::kAxes) {
    if (!layout.At(axis).split()) copies = copies | AxisSet::Of(axis);
  }
  return plan.mesh.Active(copies);
}

Instruction Flat(const char* kernel, std::string name) {
  Instruction instruction;
  instruction.kernel = kernel;
  instruction.name = std::move(name);
  return instruction;
}

Instruction FlatCollective(Collective collective, std::string name, AxisSet group, const BufferRef& buffer,
                           const Plan& plan) {
  Instruction instruction = Flat(plan::Name(collective), std::move(name));
  instruction.collective = collective;
  instruction.group = group;
  instruction.flat = true;
  instruction.inputs = {buffer};
  instruction.outputs = {buffer};
  instruction.wire_bytes = WireBytes(collective, buffer.bytes(), buffer.bytes(), plan.mesh.GroupSize(group));
  return instruction;
}

Instruction Zero(std::string name, const BufferRef& buffer) {
  Instruction instruction = Flat("zero", std::move(name));
  instruction.outputs = {buffer};
  return instruction;
}

// The sum of a bucket's gradients over the axes on which they are partial.
Instruction Reduction(const Plan& plan, const Bucket& bucket, size_t index) {
  const bool scatter = bucket.shards > 1;
  return FlatCollective(scatter ? Collective::kReduceScatter : Collective::kAllReduce,
                        fmt::format("bucket.{}.{}", index, scatter ? "reduce_scatter" : "all_reduce"),
                        bucket.reduce, bucket.gradient, plan);
}

// A tensor's scale, its inverse and its format are the same on all ranks of the stage, which hold parts or
// copies of it, and start equal: so of a state's numbers the maximum changes the largest value alone, and the
// next scale is one again.
Instruction ReduceStates(const Plan& plan, const StagePlan& stage) {
  AxisSet ranks;
  for (Axis axis : graph::kAxes) ranks = ranks | AxisSet::Of(axis);
  Instruction reduction = FlatCollective(Collective::kAllReduce, "states.all_reduce", plan.mesh.Active(ranks),
                                         stage.states, plan);
  reduction.reduction = graph::Reduction::kMax;
  return reduction;
}

// Shards are pushed where all ranks that hold one reach each other.
bool IsPushed(const Bucket& bucket, AxisSet pushed) {
  return bucket.shards > 1 && (bucket.reduce.bits() & ~pushed.bits()) == 0;
}

// Where the parts of a pushed sum arrive; its offset is known when the lanes' is.
void TakeSumScratch(const Plan& plan, const DeviceProfile& profile, const Bucket& bucket,
                    Instruction* instruction) {
  if (!profile.exchange_bytes) return;
  const std::int64_t bytes = profile.exchange_bytes(
      Collective::kReduceScatter, graph::Reduction::kSum, {{bucket.elements}, bucket.gradient_dtype},
      {{bucket.shard_elements()}, bucket.gradient_dtype}, Axis::kDp, plan.mesh.GroupSize(bucket.reduce),
      /*push=*/true);
  instruction->scratch = {.elements = bytes, .dtype = DType::kU8};
}

Instruction Reduce(const Plan& plan, const Bucket& bucket, size_t index, const FlatExchange& exchange,
                   const DeviceProfile& profile) {
  Instruction reduction = Reduction(plan, bucket, index);
  reduction.stream = exchange.behind ? kExchangeStream : kComputeStream;
  reduction.push = exchange.behind && IsPushed(bucket, exchange.pushed);
  reduction.detached = exchange.behind;
  if (reduction.push) TakeSumScratch(plan, profile, bucket, &reduction);
  return reduction;
}

std::string GatherName(size_t bucket) { return fmt::format("bucket.{}.all_gather", bucket); }

Instruction Copy(std::string name, const BufferRef& from, const BufferRef& to) {
  Instruction instruction = Flat("copy", std::move(name));
  instruction.inputs = {from};
  instruction.outputs = {to};
  return instruction;
}

// This rank's shard of a whole flat buffer.
BufferRef ShardOf(const Bucket& bucket, BufferRef buffer) {
  if (bucket.shards == 1) return buffer;
  buffer.elements = bucket.shard_elements();
  buffer.shard_axes = bucket.reduce;
  buffer.shard_stride = buffer.bytes();
  return buffer;
}

// Where this rank's parameters and gradients of a bucket outlive a microbatch.
BufferRef OwnParameters(const Bucket& bucket) {
  return bucket.parameter_shard.elements > 0 ? bucket.parameter_shard : ShardOf(bucket, bucket.parameter);
}
BufferRef OwnGradients(const Bucket& bucket) {
  return bucket.gradient_shard.elements > 0 ? bucket.gradient_shard : ShardOf(bucket, bucket.gradient);
}

// What the microbatch has given to this rank's shard is added to it.
Instruction AddShard(const Bucket& bucket, size_t index) {
  Instruction instruction = Flat("add_shard", fmt::format("bucket.{}.add_shard", index));
  instruction.inputs = {ShardOf(bucket, bucket.gradient)};
  instruction.outputs = {bucket.gradient_shard};
  instruction.accumulate = 1;
  instruction.fresh = 1;
  return instruction;
}

Instruction AdamW(const Bucket& bucket, const StagePlan& stage, const recipe::Optimizer& optimizer,
                  const std::string& name) {
  Instruction instruction = Flat("adamw", name + ".adamw");
  const bool own_master = bucket.master.elements > 0;
  const BufferRef parameter = OwnParameters(bucket);
  instruction.inputs = {own_master ? bucket.master : parameter, OwnGradients(bucket), bucket.moment1,
                        bucket.moment2, stage.control};
  instruction.outputs = {own_master ? bucket.master : parameter, bucket.moment1, bucket.moment2};
  if (own_master) instruction.outputs.push_back(parameter);
  instruction.attributes = {{"beta1", optimizer.beta1},
                            {"beta2", optimizer.beta2},
                            {"epsilon", optimizer.epsilon},
                            {"weight_decay", bucket.weight_decay ? optimizer.weight_decay : 0.0}};
  // Of the draws that round narrow moments and weights; both copies of a tied table draw the same.
  const std::string stream = bucket.tied ? "tied" : name;
  if (bucket.moment1.dtype != DType::kF32) instruction.attributes.Set("stream", stream + ".moments");
  if (instruction.inputs[0].dtype != DType::kF32) {
    instruction.attributes.Set("weight_stream", stream + ".weights");
  }
  return instruction;
}

void PlaceScratch(const DeviceProfile& profile, std::int64_t base, Instruction* instruction,
                  std::int64_t* peak) {
  if (!profile.scratch_bytes || instruction->collective != Collective::kNone) return;
  std::vector<graph::TensorType> inputs;
  std::vector<graph::TensorType> outputs;
  for (const BufferRef& ref : instruction->inputs) inputs.push_back({{ref.elements}, ref.dtype});
  for (const BufferRef& ref : instruction->outputs) outputs.push_back({{ref.elements}, ref.dtype});
  const std::int64_t bytes =
      profile.scratch_bytes(instruction->kernel, inputs, outputs, instruction->attributes);
  if (bytes == 0) return;
  instruction->scratch = {.offset = base, .elements = bytes, .dtype = DType::kU8};
  *peak = std::max(*peak, bytes);
}

BufferRef ReserveAt(std::int64_t elements, DType dtype, std::int64_t* cursor, std::int64_t* item) {
  const BufferRef ref{.offset = *cursor, .elements = elements, .dtype = dtype};
  *cursor += Aligned(ref.bytes());
  *item += Aligned(ref.bytes());
  return ref;
}

// Buffers for whole buckets, of those that have a `shard`: where exchange is behind computation two, so that
// one bucket is exchanged while the next is computed with.
void PlaceInTurns(int buffers, BufferRef Bucket::*shard, BufferRef Bucket::*whole, DType Bucket::*dtype,
                  std::int64_t* cursor, std::int64_t* item, std::vector<Bucket>* buckets) {
  const size_t count = static_cast<size_t>(buffers);
  std::vector<std::int64_t> bytes(count, 0);
  size_t turn = 0;
  for (const Bucket& bucket : *buckets) {
    if ((bucket.*shard).elements == 0) continue;
    std::int64_t& most = bytes[turn++ % count];
    most = std::max(most, bucket.elements * SizeOf(bucket.*dtype));
  }
  std::vector<std::int64_t> offsets;
  offsets.reserve(count);
  for (std::int64_t most : bytes) offsets.push_back(ReserveAt(most, DType::kU8, cursor, item).offset);
  turn = 0;
  for (Bucket& bucket : *buckets) {
    if ((bucket.*shard).elements == 0) continue;
    BufferRef& place = bucket.*whole;
    place = {.offset = offsets[turn++ % count], .elements = bucket.elements, .dtype = bucket.*dtype};
  }
}

}  // namespace

void PlaceBuckets(const BucketStorage& storage, std::int64_t* cursor, MemoryBreakdown* memory,
                  std::vector<Bucket>* buckets) {
  for (Bucket& bucket : *buckets) {
    const bool in_shards = storage.training && storage.zero_stage > 2 && bucket.block >= 0;
    (in_shards ? bucket.parameter_shard : bucket.parameter) =
        ReserveAt(in_shards ? bucket.shard_elements() : bucket.elements, bucket.parameter_dtype, cursor,
                  &memory->parameters);
  }
  PlaceInTurns(storage.in_turns, &Bucket::parameter_shard, &Bucket::parameter, &Bucket::parameter_dtype,
               cursor, &memory->parameters, buckets);
  if (!storage.training) return;
  for (Bucket& bucket : *buckets) {
    const bool in_shards = storage.zero_stage > 1 && bucket.block >= 0;
    if (in_shards) {
      bucket.gradient_shard = ReserveAt(bucket.shard_elements(), DType::kF32, cursor, &memory->gradients);
    } else {
      bucket.gradient = ReserveAt(bucket.elements, bucket.gradient_dtype, cursor, &memory->gradients);
    }
  }
  PlaceInTurns(storage.in_turns, &Bucket::gradient_shard, &Bucket::gradient, &Bucket::gradient_dtype, cursor,
               &memory->gradients, buckets);
  const DType moments = storage.narrow_moments ? DType::kBF16 : DType::kF32;
  for (Bucket& bucket : *buckets) {
    const std::int64_t shard = bucket.shard_elements();
    if (bucket.parameter_dtype != DType::kF32 && (storage.matrix_masters || !bucket.weight_decay)) {
      bucket.master = ReserveAt(shard, DType::kF32, cursor, &memory->optimizer);
    }
    bucket.moment1 = ReserveAt(shard, moments, cursor, &memory->optimizer);
    bucket.moment2 = ReserveAt(shard, moments, cursor, &memory->optimizer);
  }
  if (!storage.gather_at_begin) return;
  int behind_update = 2;  // of the blocks whose passes nothing would hide the gather of
  for (Bucket& bucket : *buckets) {
    if (!bucket.early || bucket.shards == 1 || bucket.parameter_shard.elements > 0) continue;
    if (behind_update-- <= 0) bucket.parameter_shard = ShardOf(bucket, bucket.parameter);
  }
}

BufferRef ItemRef(const BufferRef& of, const Bucket::Item& item, std::int32_t value) {
  BufferRef ref = of;
  ref.value = value;
  ref.offset += item.offset_elements * SizeOf(of.dtype);
  ref.elements = item.elements;
  return ref;
}

std::vector<Bucket> MakeBuckets(const Plan& plan, const std::vector<bool>& used,
                                const std::vector<std::int32_t>& layers, std::int32_t blocks,
                                std::int64_t zero_stage, bool first_stage) {
  std::vector<Bucket> buckets;
  std::map<std::tuple<unsigned, unsigned, bool, bool, DType, DType, std::int32_t>, size_t> index;
  for (size_t p = 0; p < plan.parameters.size(); ++p) {
    if (!used[p]) continue;
    const PlanParameter& parameter = plan.parameters[p];
    const LocalValue& value = plan.values[static_cast<size_t>(parameter.value)];
    const DType gradient = GradientDType(plan, parameter);
    const AxisSet reduce = ReduceAxes(plan, parameter);
    const AxisSet copies = CopyAxes(plan, parameter);
    const bool early = layers[p] != kNoLayer && !reduce.empty() && parameter.weight_decay && !parameter.tied;
    const auto key = std::make_tuple(reduce.bits(), copies.bits(), parameter.weight_decay, parameter.tied,
                                     value.dtype, gradient, early ? layers[p] : kNoLayer);
    const auto [it, fresh] = index.try_emplace(key, buckets.size());
    if (fresh) {
      Bucket bucket;
      bucket.reduce = reduce;
      bucket.copies = copies;
      bucket.weight_decay = parameter.weight_decay;
      bucket.tied = parameter.tied;
      bucket.owned = !parameter.tied || first_stage;
      bucket.early = early;
      bucket.block = early && layers[p] < blocks ? layers[p] : -1;
      bucket.shards = zero_stage > 0 ? plan.mesh.GroupSize(reduce) : 1;
      bucket.parameter_dtype = value.dtype;
      bucket.gradient_dtype = gradient;
      buckets.push_back(bucket);
    }
    Bucket& bucket = buckets[it->second];
    bucket.items.push_back({static_cast<std::int32_t>(p), bucket.elements, value.local.elements()});
    bucket.elements = RoundUp(bucket.elements + value.local.elements(), kItemAlignment);
  }
  for (Bucket& bucket : buckets) bucket.elements = RoundUp(bucket.elements, bucket.shards * kItemAlignment);
  return buckets;
}

void ReduceEarly(const Plan& plan, const Chunk& chunk, const DeviceProfile& profile,
                 const FlatExchange& exchange, StagePlan* stage) {
  absl::flat_hash_map<std::int32_t, size_t> bucket_of;  // by value of the gradient
  for (size_t b = 0; b < stage->buckets.size(); ++b) {
    if (!stage->buckets[b].early) continue;
    for (const Bucket::Item& item : stage->buckets[b].items) {
      bucket_of[plan.parameters[static_cast<size_t>(item.parameter)].gradient] = b;
    }
  }
  absl::flat_hash_map<size_t, std::pair<Segment*, size_t>> last;  // instruction that adds last, by bucket
  std::vector<Segment*> segments = {&stage->segments[static_cast<size_t>(chunk.backward)]};
  if (chunk.weights >= 0) segments.push_back(&stage->segments[static_cast<size_t>(chunk.weights)]);
  for (Segment* segment : segments) {
    for (size_t i = 0; i < segment->instructions.size(); ++i) {
      for (const BufferRef& output : segment->instructions[i].outputs) {
        if (const auto it = bucket_of.find(output.value); it != bucket_of.end())
          last[it->second] = {segment, i};
      }
    }
  }
  for (Segment* segment : segments) {
    std::vector<std::vector<size_t>> behind(segment->instructions.size());
    for (const auto& [bucket, place] : last) {
      if (place.first == segment) behind[place.second].push_back(bucket);
    }
    std::vector<Instruction> instructions;
    std::vector<Instruction> under_way;  // additions of what is being exchanged
    const auto add_shards = [&] {
      for (Instruction& addition : under_way) instructions.push_back(std::move(addition));
      under_way.clear();
    };
    for (size_t i = 0; i < segment->instructions.size(); ++i) {
      instructions.push_back(std::move(segment->instructions[i]));
      std::sort(behind[i].begin(), behind[i].end());
      for (size_t b : behind[i]) {
        const Bucket& bucket = stage->buckets[b];
        add_shards();
        instructions.push_back(Reduce(plan, bucket, b, exchange, profile));
        instructions.back().last_only = bucket.gradient_shard.elements == 0;
        if (bucket.gradient_shard.elements == 0) continue;
        under_way.push_back(AddShard(bucket, b));
        if (exchange.behind) under_way.back().joins = instructions.back().name;
        if (!exchange.behind) add_shards();
      }
    }
    add_shards();
    segment->instructions = std::move(instructions);
  }
}

namespace {

// The instructions of a segment that read a bucket's parameters.
struct Reads {
  size_t bucket = 0;
  size_t first = 0, last = 0;
};

// Of the buckets that are kept in shards, in the order in which the reads begin.
std::vector<Reads> ReadsOfShards(const Plan& plan, const StagePlan& stage, const Segment& segment,
                                 bool gathered_at_begin) {
  absl::flat_hash_map<std::int32_t, size_t> bucket_of;  // by parameter
  for (size_t b = 0; b < stage.buckets.size(); ++b) {
    const Bucket& bucket = stage.buckets[b];
    if (bucket.parameter_shard.elements == 0 || bucket.gathered_at_begin() != gathered_at_begin) continue;
    for (const Bucket::Item& item : bucket.items) bucket_of[item.parameter] = b;
  }
  std::vector<Reads> reads;
  if (bucket_of.empty()) return reads;
  for (size_t i = 0; i < segment.instructions.size(); ++i) {
    for (const BufferRef& input : segment.instructions[i].inputs) {
      if (input.value < 0) continue;
      const LocalValue& value = plan.values[static_cast<size_t>(input.value)];
      if (value.kind != graph::ValueKind::kParameter || !bucket_of.contains(value.parameter)) continue;
      const size_t b = bucket_of.at(value.parameter);
      const auto known =
          std::find_if(reads.begin(), reads.end(), [&](const Reads& r) { return r.bucket == b; });
      if (known == reads.end()) {
        reads.push_back({b, i, i});
      } else {
        known->last = i;
      }
    }
  }
  return reads;
}

Instruction Gather(const Plan& plan, const Bucket& bucket, size_t index, const FlatExchange& exchange) {
  Instruction gather =
      FlatCollective(Collective::kAllGather, GatherName(index), bucket.reduce, bucket.parameter, plan);
  gather.stream = exchange.behind ? kExchangeStream : kComputeStream;
  gather.push = exchange.behind && IsPushed(bucket, exchange.pushed);
  gather.detached = exchange.behind;
  return gather;
}

}  // namespace

void GatherParameters(const Plan& plan, const StagePlan& stage, const FlatExchange& exchange,
                      Segment* segment) {
  const std::vector<Reads> reads = ReadsOfShards(plan, stage, *segment, /*gathered_at_begin=*/false);
  std::vector<std::vector<size_t>> before(segment->instructions.size());  // buckets gathered there
  for (size_t k = 0; k < reads.size(); ++k) {
    // Ahead of its own first read, but behind the reads of what its buffer holds until then.
    size_t at = exchange.behind ? (k == 0 ? 0 : reads[k - 1].first + 1) : reads[k].first;
    for (size_t other = 0; other < k; ++other) {
      if (stage.buckets[reads[other].bucket].parameter.offset ==
          stage.buckets[reads[k].bucket].parameter.offset) {
        at = std::max(at, reads[other].last + 1);
      }
    }
    ENGINE_CHECK(at <= reads[k].first, "{}: bucket.{} is read while its buffer is in use", segment->name,
                 reads[k].bucket);
    before[at].push_back(reads[k].bucket);
    if (exchange.behind) segment->instructions[reads[k].first].joins = GatherName(reads[k].bucket);
  }
  std::vector<Instruction> instructions;
  for (size_t i = 0; i < segment->instructions.size(); ++i) {
    for (size_t b : before[i]) {
      const Bucket& bucket = stage.buckets[b];
      instructions.push_back(
          Copy(fmt::format("bucket.{}.copy", b), bucket.parameter_shard, ShardOf(bucket, bucket.parameter)));
      instructions.push_back(Gather(plan, bucket, b, exchange));
    }
    instructions.push_back(std::move(segment->instructions[i]));
  }
  segment->instructions = std::move(instructions);
}

void JoinGathers(const Plan& plan, const StagePlan& stage, const std::vector<Segment*>& passes) {
  absl::flat_hash_set<size_t> joined;
  for (Segment* pass : passes) {
    for (const Reads& reads : ReadsOfShards(plan, stage, *pass, /*gathered_at_begin=*/true)) {
      if (!joined.insert(reads.bucket).second) continue;
      Instruction& reader = pass->instructions[reads.first];
      ENGINE_CHECK(reader.joins.empty(), "{} {}: waits for {} and for bucket.{}", pass->name, reader.name,
                   reader.joins, reads.bucket);
      reader.joins = GatherName(reads.bucket);
    }
  }
}

Instruction ReduceScalars(const Plan& plan, const StagePlan& stage) {
  return FlatCollective(Collective::kAllReduce, "scalars.all_reduce", AxisSet::World(), stage.scalars, plan);
}

Segment BeginSegment(std::string name, const Plan& plan, const StagePlan& stage,
                     const FlatExchange& exchange) {
  Segment segment;
  segment.name = std::move(name);
  segment.instructions.push_back(Zero("scalars.zero", stage.scalars));
  for (size_t b = 0; b < stage.buckets.size(); ++b) {
    const Bucket& bucket = stage.buckets[b];
    if (bucket.gathered_at_begin()) segment.instructions.push_back(Gather(plan, bucket, b, exchange));
  }
  return segment;
}

namespace {

// Tied buckets have another stage's copy, which adds up in the same way without a norm to compute beside it.
bool IsReducedBeside(const Bucket& bucket) { return !bucket.reduce.empty() && !bucket.early && !bucket.tied; }

// Of the buckets that are not early; in line first, as collectives of NCCL are on one stream at a time.
std::vector<Instruction> LateReductions(const Plan& plan, const StagePlan& stage,
                                        const FlatExchange& exchange, const DeviceProfile& profile) {
  std::vector<Instruction> reductions;
  for (const bool beside : {false, true}) {
    for (size_t b = 0; b < stage.buckets.size(); ++b) {
      const Bucket& bucket = stage.buckets[b];
      if (bucket.reduce.empty() || bucket.early || IsReducedBeside(bucket) != beside) continue;
      reductions.push_back(Reduce(plan, bucket, b, beside ? exchange : FlatExchange(), profile));
    }
  }
  return reductions;
}

// What the bucket adds to the square of the norm.
Instruction Squares(const Bucket& bucket, const StagePlan& stage, size_t index) {
  Instruction squares = Flat("sum_squares", fmt::format("bucket.{}.sum_squares", index));
  squares.inputs = {OwnGradients(bucket)};
  squares.outputs = {stage.scalars};
  squares.outputs[0].offset += SizeOf(DType::kF64);
  squares.outputs[0].elements = 1;
  squares.accumulate = 1;
  // Of the axes that repeat the reduced gradient, ZeRO's shards take back those that it is reduced over.
  for (Axis axis : graph::kAxes) {
    const bool sharded = bucket.shards > 1 && bucket.reduce.Has(axis);
    if (bucket.copies.Has(axis) && !sharded) squares.only_first = squares.only_first | AxisSet::Of(axis);
  }
  return squares;
}

}  // namespace

Segment UpdateSegment(const Plan& plan, const StagePlan& stage, const recipe::Optimizer& optimizer,
                      bool dynamic_loss_scale, const FlatExchange& exchange, const DeviceProfile& profile,
                      std::int64_t transient_base, std::int64_t* transient_bytes) {
  Segment segment;
  segment.name = "update";
  std::vector<Instruction>& out = segment.instructions;
  for (size_t b = 0; b < stage.buckets.size(); ++b) {
    const Bucket& bucket = stage.buckets[b];
    if (bucket.tied) {
      out.push_back(FlatCollective(Collective::kAllReduce, fmt::format("bucket.{}.tie", b), AxisSet::Tie(),
                                   bucket.gradient, plan));
    }
  }
  FlatExchange beside = exchange;
  beside.behind = exchange.behind && std::any_of(stage.buckets.begin(), stage.buckets.end(),
                                                 [](const Bucket& bucket) { return bucket.early; });
  const std::vector<Instruction> late = LateReductions(plan, stage, beside, profile);
  out.insert(out.end(), late.begin(), late.end());
  for (const bool early : {true, false}) {
    for (size_t b = 0; b < stage.buckets.size(); ++b) {
      const Bucket& bucket = stage.buckets[b];
      if (!bucket.owned || bucket.early != early) continue;
      out.push_back(Squares(bucket, stage, b));
      if (beside.behind && IsReducedBeside(bucket)) out.back().joins = Reduction(plan, bucket, b).name;
    }
  }
  if (plan.mesh.world() > 1) out.push_back(ReduceScalars(plan, stage));
  // Before anything is gathered behind the update: collectives of NCCL are on one stream at a time.
  if (stage.states.elements > 0 && plan.mesh.ranks_per_stage() > 1) out.push_back(ReduceStates(plan, stage));
  Instruction clip = Flat("clip_factor", "clip_factor");
  clip.inputs = {stage.scalars};
  clip.outputs = {stage.control};
  clip.attributes = {{"clip", optimizer.clip_grad_norm}};
  if (dynamic_loss_scale) {  // Megatron-LM's defaults
    clip.attributes.Set("dynamic", std::int64_t{1});
    clip.attributes.Set("window", std::int64_t{1000});
    clip.attributes.Set("hysteresis", std::int64_t{2});
    clip.attributes.Set("min_scale", 1.0);
  }
  out.push_back(std::move(clip));
  for (size_t b = 0; b < stage.buckets.size(); ++b) {
    const Bucket& bucket = stage.buckets[b];
    const std::string name = fmt::format("bucket.{}", b);
    out.push_back(AdamW(bucket, stage, optimizer, name));
    if (bucket.shards == 1 || bucket.parameter_shard.elements > 0) continue;
    out.push_back(Gather(plan, bucket, b, beside));
  }
  if (stage.states.elements > 0) {
    Instruction states = Flat("fp8_update", "states.fp8_update");
    states.inputs = {stage.states};
    states.outputs = {stage.states};
    states.attributes = {{"margin", std::int64_t{0}}};
    out.push_back(std::move(states));
  }
  *transient_bytes = 0;
  for (Instruction& instruction : out) PlaceScratch(profile, transient_base, &instruction, transient_bytes);
  for (Instruction& instruction : out) {  // where pushed gradients arrive, all at once
    if (instruction.collective == Collective::kNone || instruction.scratch.elements == 0) continue;
    *transient_bytes = Aligned(*transient_bytes);
    instruction.scratch.offset = transient_base + *transient_bytes;
    *transient_bytes += instruction.scratch.bytes();
  }
  return segment;
}

}  // namespace engine::plan
