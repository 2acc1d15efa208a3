#include "engine/compile/flat_exchange.h"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <utility>

#include "engine/compile/buckets.h"
#include "engine/compile/placements.h"

namespace engine::compile {
namespace {

// Computation between two reductions that ReduceLate moves, in times of what one of them is estimated to
// take. On two H200, 39 MB took 0.17 to 0.19 ms where 0.12 are estimated.
constexpr double kReductionRoom = 2;

// Shards are pushed where all ranks that hold one reach each other.
bool IsPushed(const plan::Bucket& bucket, plan::AxisSet pushed) {
  return bucket.shards > 1 && (bucket.reduce.bits() & ~pushed.bits()) == 0;
}

// Where the parts of a pushed sum arrive; its offset is known when the lanes' is.
void TakeSumScratch(const plan::Plan& plan, const plan::DeviceProfile& profile, const plan::Bucket& bucket,
                    plan::Instruction* instruction) {
  if (!profile.exchange_bytes) return;
  const std::int64_t bytes = profile.exchange_bytes(plan::Collective::kReduceScatter, graph::Reduction::kSum,
                                                    {{bucket.elements}, bucket.gradient_dtype},
                                                    {{bucket.shard_elements()}, bucket.gradient_dtype},
                                                    graph::Axis::kDp, plan.mesh.GroupSize(bucket.reduce),
                                                    /*push=*/true);
  instruction->scratch = {.elements = bytes, .dtype = DType::kU8};
}

std::string GatherName(size_t bucket) { return fmt::format("bucket.{}.all_gather", bucket); }

plan::Instruction Copy(std::string name, const plan::BufferRef& from, const plan::BufferRef& to) {
  plan::Instruction instruction = Flat("copy", std::move(name));
  instruction.inputs = {from};
  instruction.outputs = {to};
  return instruction;
}

// What the microbatch has given to this rank's shard is added to it.
plan::Instruction AddShard(const plan::Bucket& bucket, size_t index) {
  plan::Instruction instruction = Flat("add_shard", fmt::format("bucket.{}.add_shard", index));
  instruction.inputs = {ShardOf(bucket, bucket.gradient)};
  instruction.outputs = {bucket.gradient_shard};
  instruction.accumulate = 1;
  instruction.fresh = 1;
  return instruction;
}

// The instructions of a segment that read a bucket's parameters.
struct Reads {
  size_t bucket = 0;
  size_t first = 0, last = 0;
};

// Of the buckets that are kept in shards, in the order in which the reads begin.
std::vector<Reads> ReadsOfShards(const plan::Plan& plan, const plan::StagePlan& stage,
                                 const plan::Segment& segment, bool gathered_at_begin) {
  absl::flat_hash_map<std::int32_t, size_t> bucket_of;  // by parameter
  for (size_t b = 0; b < stage.buckets.size(); ++b) {
    const plan::Bucket& bucket = stage.buckets[b];
    if (bucket.parameter_shard.elements == 0 || bucket.gathered_at_begin() != gathered_at_begin) continue;
    for (const plan::Bucket::Item& item : bucket.items) bucket_of[item.parameter] = b;
  }
  std::vector<Reads> reads;
  if (bucket_of.empty()) return reads;
  for (size_t i = 0; i < segment.instructions.size(); ++i) {
    for (const plan::BufferRef& input : segment.instructions[i].inputs) {
      if (input.value < 0) continue;
      const plan::LocalValue& value = plan.values[static_cast<size_t>(input.value)];
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

}  // namespace

plan::Instruction Flat(const char* kernel, std::string name) {
  plan::Instruction instruction;
  instruction.kernel = kernel;
  instruction.name = std::move(name);
  return instruction;
}

plan::Instruction FlatCollective(plan::Collective collective, std::string name, plan::Group group,
                                 const plan::BufferRef& buffer, const plan::Plan& plan) {
  plan::Instruction instruction = Flat(plan::Name(collective), std::move(name));
  instruction.collective = collective;
  instruction.wire_bytes =
      plan::WireBytes(collective, buffer.bytes(), buffer.bytes(), plan.mesh.GroupSize(group));
  instruction.group = std::move(group);
  instruction.flat = true;
  instruction.inputs = {buffer};
  instruction.outputs = {buffer};
  return instruction;
}

std::string ReductionName(const plan::Bucket& bucket, size_t index) {
  return fmt::format("bucket.{}.{}", index, bucket.shards > 1 ? "reduce_scatter" : "all_reduce");
}

plan::Instruction Reduce(const plan::Plan& plan, const plan::Bucket& bucket, size_t index,
                         const FlatExchange& exchange, const plan::DeviceProfile& profile) {
  const plan::Collective collective =
      bucket.shards > 1 ? plan::Collective::kReduceScatter : plan::Collective::kAllReduce;
  plan::Instruction reduction =
      FlatCollective(collective, ReductionName(bucket, index), bucket.reduce, bucket.gradient, plan);
  reduction.stream = exchange.behind ? exchange.stream : plan::kComputeStream;
  reduction.push = exchange.behind && IsPushed(bucket, exchange.pushed);
  reduction.detached = exchange.behind;
  if (reduction.push) TakeSumScratch(plan, profile, bucket, &reduction);
  return reduction;
}

plan::Instruction Gather(const plan::Plan& plan, const plan::Bucket& bucket, size_t index,
                         const FlatExchange& exchange) {
  plan::Instruction gather =
      FlatCollective(plan::Collective::kAllGather, GatherName(index), bucket.reduce, bucket.parameter, plan);
  gather.stream = exchange.behind ? exchange.stream : plan::kComputeStream;
  gather.push = exchange.behind && IsPushed(bucket, exchange.pushed);
  gather.detached = exchange.behind;
  return gather;
}

void ReduceEarly(const plan::Plan& plan, const plan::Chunk& chunk, const plan::DeviceProfile& profile,
                 const FlatExchange& exchange, plan::StagePlan* stage) {
  absl::flat_hash_map<std::int32_t, size_t> bucket_of;  // by value of the gradient
  for (size_t b = 0; b < stage->buckets.size(); ++b) {
    if (!stage->buckets[b].early) continue;
    for (const plan::Bucket::Item& item : stage->buckets[b].items) {
      bucket_of[plan.parameters[static_cast<size_t>(item.parameter)].gradient] = b;
    }
  }
  absl::flat_hash_map<size_t, std::pair<plan::Segment*, size_t>>
      last;  // instruction that adds last, by bucket
  std::vector<plan::Segment*> segments = {&stage->segments[static_cast<size_t>(chunk.train().backward)]};
  if (chunk.train().weights >= 0)
    segments.push_back(&stage->segments[static_cast<size_t>(chunk.train().weights)]);
  for (plan::Segment* segment : segments) {
    for (size_t i = 0; i < segment->instructions.size(); ++i) {
      for (const plan::BufferRef& output : segment->instructions[i].outputs) {
        if (const auto it = bucket_of.find(output.value); it != bucket_of.end())
          last[it->second] = {segment, i};
      }
    }
  }
  for (plan::Segment* segment : segments) {
    std::vector<std::vector<size_t>> behind(segment->instructions.size());
    for (const auto& [bucket, place] : last) {
      if (place.first == segment) behind[place.second].push_back(bucket);
    }
    std::vector<plan::Instruction> instructions;
    std::vector<plan::Instruction> under_way;  // additions of what is being exchanged
    const auto add_shards = [&] {
      for (plan::Instruction& addition : under_way) instructions.push_back(std::move(addition));
      under_way.clear();
    };
    for (size_t i = 0; i < segment->instructions.size(); ++i) {
      instructions.push_back(std::move(segment->instructions[i]));
      std::sort(behind[i].begin(), behind[i].end());
      for (size_t b : behind[i]) {
        const plan::Bucket& bucket = stage->buckets[b];
        add_shards();
        instructions.push_back(Reduce(plan, bucket, b, exchange, profile));
        instructions.back().last_only = bucket.gradient_shard.elements == 0;
        instructions.back().joint = plan.lanes > 1;
        if (bucket.gradient_shard.elements == 0) continue;
        under_way.push_back(AddShard(bucket, b));
        under_way.back().joint = plan.lanes > 1;
        if (exchange.behind) under_way.back().joins = instructions.back().name;
        if (!exchange.behind) add_shards();
      }
    }
    add_shards();
    segment->instructions = std::move(instructions);
  }
}

void ReduceLate(const Rates& rates, plan::Segment* segment) {
  // Where one is slower than is taken for granted, what comes late is waited for.
  if (rates.matmul_flops == 0 || rates.link_bandwidth == 0) return;
  std::vector<plan::Instruction>& list = segment->instructions;
  const auto is_reduction = [](const plan::Instruction& i) {
    return i.flat && i.push && i.detached && i.last_only;
  };
  for (const plan::Instruction& i : list) {
    if (i.collective != plan::Collective::kNone && !is_reduction(i)) return;
  }
  // From the end: each goes behind the last instruction that leaves it time enough before the next one.
  std::vector<const plan::Instruction*> behind(list.size(), nullptr);
  size_t at = list.size() - 1;
  for (size_t i = list.size(); i-- > 0;) {
    if (!is_reduction(list[i])) continue;
    double needed_s = kReductionRoom * EstimateSeconds(list[i], rates);  // of computation before the next
    for (; at > i && needed_s > 0; --at) {
      if (!is_reduction(list[at])) needed_s -= EstimateSeconds(list[at], rates);
    }
    behind[at] = &list[i];
  }
  std::vector<plan::Instruction> moved;
  moved.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    if (!is_reduction(list[i])) moved.push_back(list[i]);
    if (behind[i] != nullptr) moved.push_back(*behind[i]);
  }
  list = std::move(moved);
}

void GatherParameters(const plan::Plan& plan, const plan::StagePlan& stage, const FlatExchange& exchange,
                      bool lanes, plan::Segment* segment) {
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
  std::vector<plan::Instruction> instructions;
  for (size_t i = 0; i < segment->instructions.size(); ++i) {
    for (size_t b : before[i]) {
      const plan::Bucket& bucket = stage.buckets[b];
      instructions.push_back(
          Copy(fmt::format("bucket.{}.copy", b), bucket.parameter_shard, ShardOf(bucket, bucket.parameter)));
      instructions.back().joint = lanes;
      instructions.push_back(Gather(plan, bucket, b, exchange));
      instructions.back().joint = lanes;
    }
    instructions.push_back(std::move(segment->instructions[i]));
  }
  segment->instructions = std::move(instructions);
}

void JoinGathers(const plan::Plan& plan, const plan::StagePlan& stage,
                 const std::vector<plan::Segment*>& passes) {
  absl::flat_hash_set<size_t> joined;
  for (plan::Segment* pass : passes) {
    for (const Reads& reads : ReadsOfShards(plan, stage, *pass, /*gathered_at_begin=*/true)) {
      if (!joined.insert(reads.bucket).second) continue;
      plan::Instruction& reader = pass->instructions[reads.first];
      ENGINE_CHECK(reader.joins.empty(), "{} {}: waits for {} and for bucket.{}", pass->name, reader.name,
                   reader.joins, reads.bucket);
      reader.joins = GatherName(reads.bucket);
    }
  }
}

}  // namespace engine::compile
