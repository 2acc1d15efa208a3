#include "engine/verify/update.h"

#include <algorithm>
#include <utility>

#include "engine/verify/text.h"

namespace engine::verify {
namespace {

plan::AxisSet Minus(plan::AxisSet set, plan::AxisSet remove) {
  plan::AxisSet rest;
  for (graph::Axis axis : graph::kAxes) {
    if (set.Has(axis) && !remove.Has(axis)) rest = rest | plan::AxisSet::Of(axis);
  }
  return rest;
}

// This rank's part of a buffer that is cut into `shards` over `axes`.
plan::BufferRef Shard(plan::BufferRef buffer, std::int64_t shards, plan::AxisSet axes) {
  if (shards == 1) return buffer;
  buffer.elements /= shards;
  buffer.shard_axes = axes;
  buffer.shard_stride = buffer.bytes();
  return buffer;
}

// What the optimizer moves of a bucket on this rank: master weights, or the parameters themselves.
plan::BufferRef OwnParameters(const plan::Bucket& bucket) {
  return bucket.parameter_shard.elements > 0 ? bucket.parameter_shard
                                             : Shard(bucket.parameter, bucket.shards, bucket.reduce);
}
plan::BufferRef OwnWeights(const plan::Bucket& bucket) {
  return bucket.master.elements > 0 ? bucket.master : OwnParameters(bucket);
}

bool SamePlaces(const std::vector<plan::BufferRef>& have, const std::vector<plan::BufferRef>& want) {
  return std::equal(have.begin(), have.end(), want.begin(), want.end(), SamePlace);
}

// The kernel's numbers are all there, and what does not decay does not.
absl::Status IsTold(const plan::OptimizerDef& optimizer, const plan::Instruction& instruction,
                    const plan::Bucket& bucket) {
  for (const plan::OptimizerAttribute& attribute : optimizer.attributes) {
    if (!instruction.attributes().Has(attribute.name)) return Internal("is not told its {}", attribute.name);
  }
  if (!instruction.attributes().Has(plan::kWeightDecay)) return Internal("is not told its weight decay");
  const double decay = instruction.attributes().Float(plan::kWeightDecay);
  if (bucket.weight_decay || decay == 0) return absl::OkStatus();
  return Internal("has weight decay {} for parameters that do not decay", decay);
}

// Follows the update segment of one stage, gradient by gradient.
class UpdateVerifier {
 public:
  UpdateVerifier(const plan::Plan& plan, std::int32_t stage_index)
      : plan_(plan), index_(stage_index), stage_(plan.stages[static_cast<size_t>(stage_index)]) {}

  absl::Status Run() {
    for (size_t b = 0; b < stage_.buckets.size(); ++b) RETURN_IF_ERROR(Enter(b));
    // A microbatch passes backward through the last chunk first.
    for (size_t c = stage_.chunks.size(); c-- > 0;) {
      for (const plan::Segment* segment : GradientSegments(stage_, stage_.chunks[c])) {
        RETURN_IF_ERROR(Early(*segment));
      }
    }
    const plan::Segment& update = stage_.segments[static_cast<size_t>(stage_.update())];
    for (size_t i = 0; i < update.instructions.size(); ++i) {
      const absl::Status status = Step(update.instructions[i]);
      if (!status.ok()) return WithContext(status, InstructionName(index_, update, i));
    }
    return Finish();
  }

 private:
  struct State {
    plan::AxisSet partial;  // axes over which the gradient is still to be summed
    bool tie = false;       // still to be summed over the holders of its copies
    bool scattered = false;
    bool early = false;      // reduced behind a backward pass
    bool under_way = false;  // its reduction, until something waits for it
    bool gathered = true;
    int squares = 0;
    int updates = 0;
  };

  std::string Name(size_t bucket) const { return fmt::format("stage {} bucket.{}", index_, bucket); }

  absl::Status Enter(size_t b) {
    const plan::Bucket& bucket = stage_.buckets[b];
    plan::AxisSet copies;  // axes that do not split the parameters
    plan::AxisSet partial;
    for (size_t i = 0; i < bucket.items.size(); ++i) {
      const plan::PlanParameter& parameter = plan_.parameters[static_cast<size_t>(bucket.items[i].parameter)];
      if (parameter.gradient < 0) return Internal("{}: {} has no gradient", Name(b), parameter.name);
      const plan::Layout& gradient = plan_.values[static_cast<size_t>(parameter.gradient)].layout;
      const plan::Layout& layout = plan_.values[static_cast<size_t>(parameter.value)].layout;
      plan::AxisSet not_split;
      for (graph::Axis axis : graph::kAxes) {
        const bool split = layout.At(axis).split();
        if (!split) not_split = not_split | plan::AxisSet::Of(axis);
        if (split != gradient.At(axis).split() || (split && layout.At(axis) != gradient.At(axis))) {
          return Internal("{}: {} is split as {}, its gradient as {}", Name(b), parameter.name,
                          layout.ToString(), gradient.ToString());
        }
      }
      const plan::AxisSet own = plan_.mesh.Active(gradient.PartialAxes());
      not_split = plan_.mesh.Active(not_split);
      if (i > 0 && !(own == partial && not_split == copies)) {
        return Internal("{}: {} is partial over {} and repeated over {}, the items before it over {} and {}",
                        Name(b), parameter.name, own.ToString(), not_split.ToString(), partial.ToString(),
                        copies.ToString());
      }
      partial = own;
      copies = not_split;
    }
    states_.push_back({.partial = partial, .tie = bucket.tied()});
    if (bucket.gradient_shard.elements > 0) {  // reduced in each microbatch: VerifyShards
      states_.back().partial = {};
      states_.back().scattered = true;
    }
    copies_.push_back(copies);
    return absl::OkStatus();
  }

  // The bucket whose gradients (or parameters) these bytes are, for longer than a microbatch.
  size_t Find(const plan::BufferRef& ref, plan::BufferRef plan::Bucket::*buffer) const {
    for (size_t b = 0; b < stage_.buckets.size(); ++b) {
      const plan::Bucket& bucket = stage_.buckets[b];
      const plan::BufferRef& shard =
          buffer == &plan::Bucket::gradient ? bucket.gradient_shard : bucket.parameter_shard;
      const plan::BufferRef& whole = shard.elements > 0 ? shard : bucket.*buffer;
      if (!ref.in_slot && ref.offset >= whole.offset && ref.offset < whole.offset + whole.bytes()) return b;
    }
    return stage_.buckets.size();
  }

  // Reductions behind a backward pass: in the last microbatch, after everything that adds to the bucket.
  absl::Status Early(const plan::Segment& backward) {
    for (size_t i = 0; i < backward.instructions.size(); ++i) {
      const plan::Instruction& instruction = backward.instructions[i];
      for (const plan::BufferRef& output : instruction.outputs) {
        const size_t b =
            instruction.IsBucketExchange() ? stage_.buckets.size() : Find(output, &plan::Bucket::gradient);
        if (b == stage_.buckets.size() || !states_[b].early) continue;
        return Internal("{} adds to the gradients of bucket.{}, which are already reduced",
                        InstructionName(index_, backward, i), b);
      }
      if (!instruction.IsBucketExchange()) continue;
      if (IsInTurns(stage_, instruction.inputs[0])) {
        const bool sums = instruction.collective() == plan::Collective::kReduceScatter;
        const absl::Status arrives = sums ? Arrives(instruction) : absl::OkStatus();
        if (!arrives.ok()) return WithContext(arrives, InstructionName(index_, backward, i));
        continue;
      }
      absl::Status status = instruction.last_only() && instruction.detached() &&
                                    (instruction.half == plan::Half::kBoth) == backward.halves &&
                                    !instruction.group().IsTie()
                                ? Communicate(instruction)
                                : Internal("is no reduction behind the last backward pass");
      if (!status.ok()) return WithContext(status, InstructionName(index_, backward, i));
      const size_t b = Find(instruction.inputs[0], &plan::Bucket::gradient);
      if (b == stage_.buckets.size())
        return Internal("{} reduces no gradients", InstructionName(index_, backward, i));
      states_[b].early = true;
      states_[b].under_way = false;  // the update begins when all of it has arrived
      status = Arrives(instruction);
      if (!status.ok()) return WithContext(status, InstructionName(index_, backward, i));
    }
    return absl::OkStatus();
  }

  // What is pushed arrives behind the transients of passes, where nothing of a microbatch lies.
  absl::Status Arrives(const plan::Instruction& instruction) const {
    const plan::BufferRef& scratch = instruction.scratch;
    if (scratch.elements == 0 && !instruction.push()) return absl::OkStatus();
    const std::int64_t begin = stage_.transient_base + stage_.pass_bytes;
    const std::int64_t end = stage_.transient_base + stage_.memory.transients;
    if (instruction.push() && scratch.elements > 0 && !scratch.in_slot && scratch.offset >= begin &&
        scratch.offset + scratch.bytes() <= end) {
      return absl::OkStatus();
    }
    return Internal("arrives at [{}, {}), not behind the transients of passes, in [{}, {})", scratch.offset,
                    scratch.offset + scratch.bytes(), begin, end);
  }

  // Gradients are reduced beside the norm of others, and the parameters that nothing in the update reads
  // again are gathered behind it. Beside that no other collective runs.
  absl::Status OnItsStream(const plan::Instruction& instruction) {
    const bool exchanges = instruction.collective() != plan::Collective::kNone;
    const bool gathers =
        instruction.IsBucketExchange() && instruction.collective() == plan::Collective::kAllGather;
    const bool reduces = instruction.IsBucketExchange() && exchanges && !gathers &&
                         !instruction.group().IsTie() &&
                         Find(instruction.inputs[0], &plan::Bucket::gradient) < stage_.buckets.size();
    const bool behind = instruction.detached() && (gathers || reduces);
    const bool before = instruction.stream == plan::kComputeStream && !instruction.push();
    if (instruction.last_only() || !(before || behind)) {
      return Internal("runs on stream {}, and {} waits for it", instruction.stream,
                      instruction.detached() ? "nothing" : "the next");
    }
    const bool reducing =
        std::any_of(states_.begin(), states_.end(), [](const State& state) { return state.under_way; });
    if (before && exchanges && (gathering_ || reducing)) {
      return Internal("runs beside what is {} behind the update", gathering_ ? "gathered" : "reduced");
    }
    gathering_ = gathering_ || (behind && gathers);
    return absl::OkStatus();
  }

  absl::Status Join(const plan::Instruction& instruction) {
    if (instruction.waits_for_bucket < 0) return absl::OkStatus();
    const auto b = static_cast<size_t>(instruction.waits_for_bucket);
    if (b >= states_.size() || !states_[b].under_way || instruction.AsKernel() == nullptr)
      return Internal("waits for bucket.{}, of which nothing is under way", b);
    states_[b].under_way = false;
    return absl::OkStatus();
  }

  // What arrives beside kernels and other exchange has a place of its own.
  absl::Status Scribbles(const plan::Instruction& instruction) {
    const plan::BufferRef& scratch = instruction.scratch;
    if (scratch.elements == 0) return absl::OkStatus();
    for (const auto& [other, arrives] : scratches_) {
      if ((arrives || instruction.push()) && scratch.Overlaps(*other))
        return Internal("its scratch at {} is also where pushed gradients arrive", scratch.offset);
    }
    scratches_.emplace_back(&scratch, instruction.push());
    return absl::OkStatus();
  }

  absl::Status Step(const plan::Instruction& instruction) {
    RETURN_IF_ERROR(OnItsStream(instruction));
    RETURN_IF_ERROR(Scribbles(instruction));
    RETURN_IF_ERROR(Join(instruction));
    if (instruction.collective() != plan::Collective::kNone) return Communicate(instruction);
    if (instruction.kernel() == "sum_squares") return Squares(instruction);
    if (instruction.kernel() == "clip_factor") return Clip(instruction);
    if (instruction.kernel() == plan_.optimizer->kernel) return Update(instruction);
    if (instruction.kernel() == "fp8_update") return States(instruction);
    return Internal("the update knows no kernel {}", instruction.kernel());
  }

  absl::Status Communicate(const plan::Instruction& instruction) {
    if (instruction.inputs.size() != 1 || instruction.outputs.size() != 1 ||
        !SamePlace(instruction.inputs[0], instruction.outputs[0])) {
      return Internal("{} of a flat buffer is not in place", instruction.kernel());
    }
    const plan::BufferRef& ref = instruction.inputs[0];
    if (stage_.scales.elements > 0 && SamePlace(ref, stage_.scales)) return ReduceStates(instruction);
    if (instruction.reduction() != graph::Reduction::kSum) return Internal("takes no sum");
    if (SamePlace(ref, stage_.scalars)) return ReduceScalars(instruction);
    if (instruction.collective() == plan::Collective::kAllGather) return Gather(instruction);
    const size_t b = Find(ref, &plan::Bucket::gradient);
    if (b == stage_.buckets.size() || !SamePlace(ref, stage_.buckets[b].gradient)) {
      return Internal("{} of bytes that are no bucket's gradients", instruction.kernel());
    }
    State& state = states_[b];
    if (state.scattered) return Internal("the gradients of bucket.{} are already scattered", b);
    if (instruction.group().IsTie()) {
      if (!state.tie)
        return Internal("the gradients of bucket.{} are not (or no longer) to be summed over the tie", b);
      if (instruction.collective() != plan::Collective::kAllReduce) return Internal("a tie is an all_reduce");
      const plan::Group holders = plan::Group::OfHolders(stage_.buckets[b].holders);
      if (!(instruction.group() == holders)) {
        return Internal("sums the gradients of bucket.{} over the {}, but its copies are the {}'s", b,
                        plan_.mesh.NameOf(instruction.group()), plan_.mesh.NameOf(holders));
      }
      state.tie = false;
      return absl::OkStatus();
    }
    const plan::AxisSet extra = Minus(instruction.group().axes, state.partial);
    if (!extra.empty() || instruction.group().axes.HasPp()) {
      return Internal("sums the gradients of bucket.{} over {}, but they are partial over {} only", b,
                      plan_.mesh.NameOf(instruction.group()), state.partial.ToString());
    }
    state.partial = Minus(state.partial, instruction.group().axes);
    if (instruction.detached()) state.under_way = true;
    if (instruction.collective() == plan::Collective::kAllReduce) return absl::OkStatus();
    if (instruction.collective() != plan::Collective::kReduceScatter) {
      return Internal("{} does not sum gradients", instruction.kernel());
    }
    state.scattered = true;
    const std::int64_t shards = plan_.mesh.GroupSize(instruction.group());
    if (stage_.buckets[b].shards == shards) return absl::OkStatus();
    return Internal("scatters bucket.{} into {} shards, its optimizer state has {}", b, shards,
                    stage_.buckets[b].shards);
  }

  absl::Status ReduceScalars(const plan::Instruction& instruction) {
    if (instruction.collective() != plan::Collective::kAllReduce ||
        !(instruction.group() == plan::AxisSet::World())) {
      return Internal("loss and norm are summed over the world, not by {} over {}", instruction.kernel(),
                      plan_.mesh.NameOf(instruction.group()));
    }
    if (scalars_summed_++ > 0) return Internal("loss and norm are summed twice");
    for (size_t b = 0; b < stage_.buckets.size(); ++b) {
      if (stage_.buckets[b].owned && states_[b].squares == 0) {
        return Internal("the norm is summed before that of bucket.{} is in it", b);
      }
    }
    return absl::OkStatus();
  }

  // The axes of a stage's ranks: each of them holds parts or copies of the tensors that the states are of.
  plan::AxisSet StageRanks() const {
    plan::AxisSet axes;
    for (graph::Axis axis : graph::kAxes) axes = axes | plan::AxisSet::Of(axis);
    return plan_.mesh.Active(axes);
  }

  absl::Status ReduceStates(const plan::Instruction& instruction) {
    if (instruction.collective() != plan::Collective::kAllReduce ||
        instruction.reduction() != graph::Reduction::kMax || !(instruction.group() == StageRanks())) {
      return Internal("of the states the largest over {} are taken, not {}{} over {}",
                      StageRanks().ToString(), instruction.kernel(),
                      instruction.reduction() == graph::Reduction::kMax ? " (max)" : "",
                      plan_.mesh.NameOf(instruction.group()));
    }
    if (states_updated_) return Internal("the states are already updated");
    if (states_reduced_) return Internal("the largest of the states are taken twice");
    states_reduced_ = true;
    return absl::OkStatus();
  }

  absl::Status Gather(const plan::Instruction& instruction) {
    const size_t b = Find(instruction.inputs[0], &plan::Bucket::parameter);
    if (b == stage_.buckets.size() || !SamePlace(instruction.inputs[0], stage_.buckets[b].parameter)) {
      return Internal("gathers bytes that are no bucket's parameters");
    }
    State& state = states_[b];
    if (state.updates == 0 || state.gathered) {
      return Internal("the parameters of bucket.{} are whole: nothing to gather", b);
    }
    if (!(instruction.group() == stage_.buckets[b].reduce)) {
      return Internal("gathers bucket.{} over {}, its shards lie over {}", b,
                      plan_.mesh.NameOf(instruction.group()), stage_.buckets[b].reduce.ToString());
    }
    state.gathered = true;
    return absl::OkStatus();
  }

  // Gradients of this bucket, whole sums: all of them, or this rank's shard.
  absl::Status ReadsSum(const plan::BufferRef& ref, size_t b) const {
    const State& state = states_[b];
    if (!state.partial.empty()) {
      return Internal("reads the gradients of bucket.{}, which are still partial over {}", b,
                      state.partial.ToString());
    }
    if (state.tie) return Internal("reads the gradients of bucket.{} before they are summed over the tie", b);
    if (state.under_way)
      return Internal("reads the gradients of bucket.{} and does not wait for their reduction", b);
    const plan::Bucket& bucket = stage_.buckets[b];
    const plan::BufferRef own =
        bucket.gradient_shard.elements > 0
            ? bucket.gradient_shard
            : Shard(bucket.gradient, state.scattered ? bucket.shards : 1, bucket.reduce);
    if (SamePlace(ref, own)) return absl::OkStatus();
    return Internal("reads {} gradients of bucket.{} at {}, not {}", ref.elements, b, ref.offset,
                    state.scattered ? "its shard" : "all of them");
  }

  absl::Status Squares(const plan::Instruction& instruction) {
    if (instruction.inputs.size() != 1 || instruction.outputs.size() != 1)
      return Internal("takes one buffer");
    const size_t b = Find(instruction.inputs[0], &plan::Bucket::gradient);
    if (b == stage_.buckets.size()) return Internal("reads bytes that are no bucket's gradients");
    RETURN_IF_ERROR(ReadsSum(instruction.inputs[0], b));
    if (!stage_.buckets[b].owned) return Internal("bucket.{} is counted by the stage that owns it", b);
    if (states_[b].squares++ > 0) return Internal("bucket.{} is counted twice in the norm", b);
    const plan::AxisSet repeated =
        Minus(copies_[b], states_[b].scattered ? stage_.buckets[b].reduce : plan::AxisSet());
    if (!(instruction.only_first() == repeated)) {
      return Internal("bucket.{} is repeated over {}, but counted on the first of {}", b, repeated.ToString(),
                      instruction.only_first().ToString());
    }
    plan::BufferRef norm = stage_.scalars;
    norm.offset += SizeOf(DType::kF64);
    norm.elements = 1;
    if (!SamePlace(instruction.outputs[0], norm) || instruction.accumulate() != 1) {
      return Internal("does not add to the norm");
    }
    return absl::OkStatus();
  }

  absl::Status Clip(const plan::Instruction& instruction) {
    if (instruction.inputs.size() != 1 || !SamePlace(instruction.inputs[0], stage_.scalars) ||
        instruction.outputs.size() != 1 || !SamePlace(instruction.outputs[0], stage_.control)) {
      return Internal("is not from the scalars to the control block");
    }
    if (clipped_) return Internal("the clip factor is computed twice");
    for (size_t b = 0; b < stage_.buckets.size(); ++b) {
      if (stage_.buckets[b].owned && states_[b].squares == 0) {
        return Internal("the norm is read before that of bucket.{} is in it", b);
      }
    }
    if (plan_.mesh.world() > 1 && scalars_summed_ == 0)
      return Internal("the norm is read before it is summed");
    clipped_ = true;
    return absl::OkStatus();
  }

  absl::Status Update(const plan::Instruction& instruction) {
    const size_t buffers =
        3 + plan_.optimizer->states.size();  // weights, gradients and control beside states
    if (instruction.inputs.size() != buffers)
      return Internal("takes {} buffers, not {}", instruction.inputs.size(), buffers);
    const size_t b = Find(instruction.inputs[1], &plan::Bucket::gradient);
    if (b == stage_.buckets.size()) return Internal("reads bytes that are no bucket's gradients");
    RETURN_IF_ERROR(ReadsSum(instruction.inputs[1], b));
    if (!clipped_) return Internal("runs before the clip factor is known");
    const plan::Bucket& bucket = stage_.buckets[b];
    State& state = states_[b];
    if (state.updates++ > 0) return Internal("bucket.{} is updated twice", b);
    state.gathered = bucket.shards == 1 || bucket.parameter_shard.elements > 0;
    const plan::BufferRef weights = OwnWeights(bucket);
    std::vector<plan::BufferRef> inputs = {weights, instruction.inputs[1]};
    std::vector<plan::BufferRef> outputs = {weights};
    inputs.insert(inputs.end(), bucket.states.begin(), bucket.states.end());
    outputs.insert(outputs.end(), bucket.states.begin(), bucket.states.end());
    inputs.push_back(stage_.control);
    if (bucket.master.elements > 0) outputs.push_back(OwnParameters(bucket));
    if (!SamePlaces(instruction.inputs, inputs) || !SamePlaces(instruction.outputs, outputs)) {
      return Internal("does not update the weights and states of bucket.{}", b);
    }
    RETURN_IF_ERROR(IsTold(*plan_.optimizer, instruction, bucket));
    DType narrowest = DType::kF32;
    for (const plan::BufferRef& buffer : bucket.states) {
      if (buffer.dtype != DType::kF32) narrowest = buffer.dtype;
    }
    RETURN_IF_ERROR(Draws(instruction, plan::kStateDraws, narrowest));
    return Draws(instruction, plan::kWeightDraws, weights.dtype);
  }

  // What is kept in 16 bits is rounded by draws, which have a name.
  static absl::Status Draws(const plan::Instruction& instruction, const char* draws, DType dtype) {
    const bool narrow = dtype != DType::kF32;
    if (instruction.attributes().Has(draws) == narrow) return absl::OkStatus();
    return Internal("rounds to {} {} the attribute {}", engine::Name(dtype), narrow ? "without" : "with",
                    draws);
  }

  absl::Status States(const plan::Instruction& instruction) {
    if (instruction.inputs.size() != 1 || !SamePlace(instruction.inputs[0], stage_.scales) ||
        instruction.outputs.size() != 1 || !SamePlace(instruction.outputs[0], stage_.scales)) {
      return Internal("is not of all states, in place");
    }
    if (states_updated_) return Internal("the states are updated twice");
    if (!StageRanks().empty() && !states_reduced_)
      return Internal("the states are updated by the rank's own largest values, not by those over {}",
                      StageRanks().ToString());
    states_updated_ = true;
    return absl::OkStatus();
  }

  absl::Status Finish() const {
    if (stage_.scales.elements > 0 && !states_updated_)
      return Internal("stage {}: the states are never updated", index_);
    for (size_t b = 0; b < stage_.buckets.size(); ++b) {
      const State& state = states_[b];
      if (stage_.buckets[b].owned && state.squares == 0) return Internal("{} is not in the norm", Name(b));
      if (state.updates == 0) return Internal("{} is never updated", Name(b));
      if (!state.gathered) {
        return Internal("{} is updated in {} shards that are never gathered", Name(b),
                        stage_.buckets[b].shards);
      }
    }
    return absl::OkStatus();
  }

  const plan::Plan& plan_;
  const std::int32_t index_;
  const plan::StagePlan& stage_;
  std::vector<State> states_;          // by bucket
  std::vector<plan::AxisSet> copies_;  // by bucket: active axes on which its parameters are repeated
  int scalars_summed_ = 0;
  bool clipped_ = false;
  bool states_reduced_ = false;
  bool states_updated_ = false;
  bool gathering_ = false;  // parameters, behind the update
  std::vector<std::pair<const plan::BufferRef*, bool>>
      scratches_;  // and whether pushed gradients arrive there
};

// The names of the draws that round a copy of tied parameters.
std::string DrawsOf(const plan::Plan& plan, const plan::StagePlan& stage, const plan::Bucket& bucket) {
  std::string draws;
  for (const plan::Instruction& instruction :
       stage.segments[static_cast<size_t>(stage.update())].instructions) {
    if (instruction.kernel() != plan.optimizer->kernel ||
        !SamePlace(instruction.inputs[0], OwnWeights(bucket)))
      continue;
    for (const char* name : {plan::kStateDraws, plan::kWeightDraws}) {
      if (instruction.attributes().Has(name)) draws += " " + instruction.attributes().String(name);
    }
  }
  return draws;
}

// How a stage's update sums the gradients of its copy of tied parameters: each way has an order of its own.
std::string SumsOf(const plan::Plan& /*plan*/, const plan::StagePlan& stage, const plan::Bucket& bucket) {
  std::string sums;
  for (const plan::Instruction& instruction :
       stage.segments[static_cast<size_t>(stage.update())].instructions) {
    if (!instruction.IsBucketExchange() || !SamePlace(instruction.inputs[0], bucket.gradient)) continue;
    sums += fmt::format(" {}{}", instruction.kernel(), instruction.push() ? " (pushed)" : "");
  }
  return sums;
}

// The stage's bucket that has the parameter, or null.
const plan::Bucket* BucketOf(const plan::StagePlan& stage, std::int32_t parameter) {
  for (const plan::Bucket& bucket : stage.buckets) {
    for (const plan::Bucket::Item& item : bucket.items) {
      if (item.parameter == parameter) return &bucket;
    }
  }
  return nullptr;
}

}  // namespace

std::vector<const plan::Segment*> GradientSegments(const plan::StagePlan& stage, const plan::Chunk& chunk) {
  std::vector<const plan::Segment*> segments = {&stage.segments[static_cast<size_t>(chunk.train().backward)]};
  if (chunk.train().weights >= 0)
    segments.push_back(&stage.segments[static_cast<size_t>(chunk.train().weights)]);
  return segments;
}

absl::Status VerifyUpdate(const plan::Plan& plan, std::int32_t stage) {
  if (plan.optimizer == nullptr) return Internal("stage {} is updated by no optimizer", stage);
  return UpdateVerifier(plan, stage).Run();
}

absl::Status TiedCopiesStayEqual(const plan::Plan& plan) {
  for (size_t p = 0; p < plan.parameters.size(); ++p) {
    const plan::PlanParameter& parameter = plan.parameters[p];
    if (!parameter.tied()) continue;
    const auto of = [&](std::int32_t stage, const auto& what) {
      const plan::StagePlan& holder = plan.stages[static_cast<size_t>(stage)];
      const plan::Bucket* bucket = BucketOf(holder, static_cast<std::int32_t>(p));
      return bucket == nullptr ? std::string() : what(plan, holder, *bucket);
    };
    const std::int32_t owner = parameter.holders.front();
    for (std::int32_t holder : parameter.holders) {
      for (const auto& [what, told] : {std::pair("rounds", &DrawsOf), std::pair("sums", &SumsOf)}) {
        const std::string first = of(owner, told);
        const std::string other = of(holder, told);
        if (first == other) continue;
        return Internal("stage {} {} {} by{}, stage {} by{}", owner, what, parameter.name, first, holder,
                        other);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace engine::verify
