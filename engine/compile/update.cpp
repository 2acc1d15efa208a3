#include "engine/compile/update.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/compile/buckets.h"
#include "engine/plan/arena.h"

namespace engine::compile {
namespace {

plan::Instruction Zero(std::string name, const plan::BufferRef& buffer) {
  plan::Instruction instruction = Flat("zero", std::move(name));
  instruction.outputs = {buffer};
  return instruction;
}

// A tensor's scale, its inverse and its format are the same on all ranks of the stage, which hold parts or
// copies of it, and start equal: so of a state's numbers the maximum changes the largest value alone, and the
// next scale is one again.
plan::Instruction ReduceStates(const plan::Plan& plan, const plan::StagePlan& stage) {
  plan::AxisSet ranks;
  for (graph::Axis axis : graph::kAxes) ranks = ranks | plan::AxisSet::Of(axis);
  plan::Instruction reduction = FlatCollective(plan::Collective::kAllReduce, "states.all_reduce",
                                               plan.mesh.Active(ranks), stage.scales, plan);
  reduction.AsBucketExchange()->reduction = graph::Reduction::kMax;
  return reduction;
}

plan::Instruction Update(const plan::Plan& plan, const plan::Bucket& bucket, const plan::StagePlan& stage,
                         const OptimizerSettings& optimizer, const std::string& name) {
  const std::string kernel(plan::OptimizerOf(*optimizer.def, bucket.training).kernel);
  plan::Instruction instruction = Flat(kernel.c_str(), fmt::format("{}.{}", name, kernel));
  const bool own_master = bucket.master.elements > 0;
  const plan::BufferRef parameter = OwnParameters(bucket);
  const plan::BufferRef& weights = own_master ? bucket.master : parameter;
  instruction.inputs = {weights, OwnGradients(bucket)};
  instruction.outputs = {weights};
  for (const plan::BufferRef& state : bucket.states) {
    instruction.inputs.push_back(state);
    instruction.outputs.push_back(state);
  }
  instruction.inputs.push_back(stage.control);
  if (own_master) instruction.outputs.push_back(parameter);
  graph::Attributes& attributes = instruction.AsKernel()->attributes;
  if (bucket.moves_by_sign()) {
    attributes = {{plan::kSignStep, bucket.training.sign_step}};
    return instruction;
  }
  attributes = optimizer.attributes;
  const double of_role = bucket.weight_decay ? optimizer.weight_decay : 0.0;
  attributes.Set(plan::kWeightDecay, bucket.training.weight_decay.value_or(of_role));
  if (bucket.training.learning_rate_scale != 1)
    attributes.Set(plan::kLearningRateScale, bucket.training.learning_rate_scale);
  // Of the draws that round narrow states and weights; all copies of a tied parameter draw the same.
  const std::string stream = bucket.tied() ? "tied" + plan.mesh.HoldersSuffix(bucket.holders) : name;
  const auto narrow = [](const plan::BufferRef& buffer) { return buffer.dtype != DType::kF32; };
  if (std::any_of(bucket.states.begin(), bucket.states.end(), narrow))
    attributes.Set(plan::kStateDraws, stream + ".moments");
  if (narrow(weights)) attributes.Set(plan::kWeightDraws, stream + ".weights");
  return instruction;
}

void PlaceScratch(const plan::DeviceProfile& profile, std::int64_t base, plan::Instruction* instruction,
                  std::int64_t* peak) {
  if (!profile.scratch_bytes || instruction->AsKernel() == nullptr) return;
  std::vector<graph::TensorType> inputs;
  std::vector<graph::TensorType> outputs;
  for (const plan::BufferRef& ref : instruction->inputs) inputs.push_back({{ref.elements}, ref.dtype});
  for (const plan::BufferRef& ref : instruction->outputs) outputs.push_back({{ref.elements}, ref.dtype});
  const std::int64_t bytes =
      profile.scratch_bytes(instruction->kernel(), inputs, outputs, instruction->attributes());
  if (bytes == 0) return;
  instruction->scratch = {.offset = base, .elements = bytes, .dtype = DType::kU8};
  *peak = std::max(*peak, bytes);
}

// Tied buckets have copies on other stages, which add up in the same way without a norm to compute beside it; nor do
// parameters that move by a sign have a part in the norm, which would wait for them.
bool IsReducedBeside(const plan::Bucket& bucket) {
  return !bucket.reduce.empty() && !bucket.early && !bucket.tied() && !bucket.moves_by_sign();
}

// Of the buckets that are not early; in line first, as collectives of NCCL are on one stream at a time.
std::vector<plan::Instruction> LateReductions(const plan::Plan& plan, const plan::StagePlan& stage,
                                              const FlatExchange& exchange,
                                              const plan::DeviceProfile& profile) {
  std::vector<plan::Instruction> reductions;
  for (const bool beside : {false, true}) {
    for (size_t b = 0; b < stage.buckets.size(); ++b) {
      const plan::Bucket& bucket = stage.buckets[b];
      if (bucket.reduce.empty() || bucket.early || IsReducedBeside(bucket) != beside) continue;
      reductions.push_back(Reduce(plan, bucket, b, beside ? exchange : FlatExchange(), profile));
    }
  }
  return reductions;
}

// What the bucket adds to the square of the norm.
plan::Instruction Squares(const plan::Bucket& bucket, const plan::StagePlan& stage, size_t index) {
  plan::Instruction squares = Flat("sum_squares", fmt::format("bucket.{}.sum_squares", index));
  squares.inputs = {OwnGradients(bucket)};
  squares.outputs = {stage.scalars};
  squares.outputs[0].offset += SizeOf(DType::kF64);
  squares.outputs[0].elements = 1;
  squares.AsKernel()->accumulate = 1;
  // Of the axes that repeat the reduced gradient, ZeRO's shards take back those that it is reduced over.
  for (graph::Axis axis : graph::kAxes) {
    const bool sharded = bucket.shards > 1 && bucket.reduce.Has(axis);
    if (bucket.copies.Has(axis) && !sharded)
      squares.AsKernel()->only_first = squares.only_first() | plan::AxisSet::Of(axis);
  }
  return squares;
}

}  // namespace

plan::Instruction ReduceScalars(const plan::Plan& plan, const plan::StagePlan& stage) {
  return FlatCollective(plan::Collective::kAllReduce, "scalars.all_reduce", plan::AxisSet::World(),
                        stage.scalars, plan);
}

plan::Segment BeginSegment(std::string name, const plan::Plan& plan, const plan::StagePlan& stage,
                           const FlatExchange& exchange) {
  plan::Segment segment;
  segment.name = std::move(name);
  segment.instructions.push_back(Zero("scalars.zero", stage.scalars));
  for (size_t b = 0; b < stage.buckets.size(); ++b) {
    const plan::Bucket& bucket = stage.buckets[b];
    if (bucket.gathered_at_begin()) segment.instructions.push_back(Gather(plan, bucket, b, exchange));
  }
  return segment;
}

plan::Segment UpdateSegment(const plan::Plan& plan, const plan::StagePlan& stage,
                            const OptimizerSettings& optimizer, const FlatExchange& exchange,
                            const plan::DeviceProfile& profile, std::int64_t transient_base,
                            std::int64_t* transient_bytes) {
  plan::Segment segment;
  segment.name = "update";
  std::vector<plan::Instruction>& out = segment.instructions;
  for (size_t b = 0; b < stage.buckets.size(); ++b) {
    const plan::Bucket& bucket = stage.buckets[b];
    if (bucket.tied() && !bucket.frozen()) {
      out.push_back(FlatCollective(plan::Collective::kAllReduce, fmt::format("bucket.{}.tie", b),
                                   plan::Group::OfHolders(bucket.holders), bucket.gradient, plan));
    }
  }
  FlatExchange beside = exchange;
  beside.behind = exchange.behind && std::any_of(stage.buckets.begin(), stage.buckets.end(),
                                                 [](const plan::Bucket& bucket) { return bucket.early; });
  const std::vector<plan::Instruction> late = LateReductions(plan, stage, beside, profile);
  out.insert(out.end(), late.begin(), late.end());
  for (const bool early : {true, false}) {
    for (size_t b = 0; b < stage.buckets.size(); ++b) {
      const plan::Bucket& bucket = stage.buckets[b];
      if (!bucket.owned || bucket.frozen() || bucket.moves_by_sign() || bucket.early != early) continue;
      out.push_back(Squares(bucket, stage, b));
      if (beside.behind && IsReducedBeside(bucket))
        out.back().waits_for_bucket = static_cast<std::int32_t>(b);
    }
  }
  if (plan.mesh.world() > 1) out.push_back(ReduceScalars(plan, stage));
  // Before anything is gathered behind the update: collectives of NCCL are on one stream at a time.
  if (stage.scales.elements > 0 && plan.mesh.ranks_per_stage() > 1) out.push_back(ReduceStates(plan, stage));
  plan::Instruction clip = Flat("clip_factor", "clip_factor");
  clip.inputs = {stage.scalars};
  clip.outputs = {stage.control};
  clip.AsKernel()->attributes = {{"clip", optimizer.clip_gradient_norm}};
  plan::SetScaler(plan.loss_scaler, &clip.AsKernel()->attributes);
  out.push_back(std::move(clip));
  for (size_t b = 0; b < stage.buckets.size(); ++b) {
    const plan::Bucket& bucket = stage.buckets[b];
    if (bucket.frozen()) continue;
    const std::string name = fmt::format("bucket.{}", b);
    out.push_back(Update(plan, bucket, stage, optimizer, name));
    if (bucket.shards == 1 || bucket.parameter_shard.elements > 0) continue;
    out.push_back(Gather(plan, bucket, b, beside));
  }
  if (stage.scales.elements > 0) {
    plan::Instruction states = Flat("fp8_update", "states.fp8_update");
    states.inputs = {stage.scales};
    states.outputs = {stage.scales};
    states.AsKernel()->attributes = {{"margin", std::int64_t{0}}};
    out.push_back(std::move(states));
  }
  *transient_bytes = 0;
  for (plan::Instruction& instruction : out)
    PlaceScratch(profile, transient_base, &instruction, transient_bytes);
  for (plan::Instruction& instruction : out) {  // where pushed gradients arrive, all at once
    if (instruction.AsKernel() != nullptr || instruction.scratch.elements == 0) continue;
    *transient_bytes = plan::Aligned(*transient_bytes);
    instruction.scratch.offset = transient_base + *transient_bytes;
    *transient_bytes += instruction.scratch.bytes();
  }
  return segment;
}

}  // namespace engine::compile
