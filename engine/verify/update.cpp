#include "engine/verify/update.h"

#include <algorithm>

#include "engine/verify/bucket_places.h"
#include "engine/verify/bucket_sums.h"
#include "engine/verify/norm_sum.h"
#include "engine/verify/scale_update.h"
#include "engine/verify/text.h"
#include "engine/verify/update_streams.h"

namespace engine::verify {
namespace {

bool SamePlaces(const std::vector<plan::BufferRef>& have, const std::vector<plan::BufferRef>& want) {
  return std::equal(have.begin(), have.end(), want.begin(), want.end(), SamePlace);
}

// The kernel's numbers are all there, what does not decay does not, and what is trained otherwise is.
absl::Status IsTold(const plan::OptimizerDef& optimizer, const plan::Instruction& instruction,
                    const plan::Bucket& bucket) {
  if (bucket.moves_by_sign()) {
    if (instruction.attributes().Float(plan::kSignStep, 0) == bucket.training.sign_step)
      return absl::OkStatus();
    return Internal("does not move parameters by {}", bucket.training.sign_step);
  }
  for (const plan::OptimizerAttribute& attribute : optimizer.attributes) {
    if (!instruction.attributes().Has(attribute.name)) return Internal("is not told its {}", attribute.name);
  }
  if (!instruction.attributes().Has(plan::kWeightDecay)) return Internal("is not told its weight decay");
  const double rate = instruction.attributes().Float(plan::kLearningRateScale, 1);
  if (rate != bucket.training.learning_rate_scale) {
    return Internal("multiplies the learning rate by {} for parameters whose scale is {}", rate,
                    bucket.training.learning_rate_scale);
  }
  const double decay = instruction.attributes().Float(plan::kWeightDecay);
  if (bucket.training.weight_decay.has_value()) {
    if (decay == *bucket.training.weight_decay) return absl::OkStatus();
    return Internal("has weight decay {} for parameters whose own is {}", decay,
                    *bucket.training.weight_decay);
  }
  if (bucket.weight_decay || decay == 0) return absl::OkStatus();
  return Internal("has weight decay {} for parameters that do not decay", decay);
}

// What is kept in 16 bits is rounded by draws, which have a name.
absl::Status Draws(const plan::Instruction& instruction, const char* draws, DType dtype) {
  const bool narrow = dtype != DType::kF32;
  if (instruction.attributes().Has(draws) == narrow) return absl::OkStatus();
  return Internal("rounds to {} {} the attribute {}", Name(dtype), narrow ? "without" : "with", draws);
}

// Shows of one stage that each bucket is updated once, by whole sums and the clip factor, and gathered again where it
// was updated in shards. It hands each instruction that passes and update have to those that follow its part.
class UpdateVerifier {
 public:
  UpdateVerifier(const plan::Plan& plan, std::int32_t stage_index)
      : plan_(plan),
        index_(stage_index),
        stage_(plan.stages[static_cast<size_t>(stage_index)]),
        sums_(plan, stage_index),
        norm_(plan, stage_index, sums_),
        scales_(plan, stage_index),
        streams_(stage_),
        buckets_(stage_.buckets.size()) {}

  absl::Status Run() {
    RETURN_IF_ERROR(sums_.Enter());
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
  struct Bucket {
    bool gathered = true;
    int updates = 0;
  };

  // Reductions behind a backward pass: in the last microbatch, after everything that adds to the bucket.
  absl::Status Early(const plan::Segment& backward) {
    for (size_t i = 0; i < backward.instructions.size(); ++i) {
      const plan::Instruction& instruction = backward.instructions[i];
      for (const plan::BufferRef& output : instruction.outputs) {
        const size_t b = instruction.IsBucketExchange() ? stage_.buckets.size()
                                                        : BucketAt(stage_, output, &plan::Bucket::gradient);
        if (b == stage_.buckets.size() || !sums_.IsReducedBehindPass(b)) continue;
        return Internal("{} adds to the gradients of bucket.{}, which are already reduced",
                        InstructionName(index_, backward, i), b);
      }
      if (instruction.IsBucketExchange()) RETURN_IF_ERROR(Exchange(backward, i));
    }
    return absl::OkStatus();
  }

  // The i-th instruction is an exchange of a bucket behind a backward pass.
  absl::Status Exchange(const plan::Segment& backward, size_t i) {
    const plan::Instruction& instruction = backward.instructions[i];
    const auto named = [&](const absl::Status& status) {
      return status.ok() ? status : WithContext(status, InstructionName(index_, backward, i));
    };
    if (IsInTurns(stage_, instruction.inputs[0])) {
      const bool sums = instruction.collective() == plan::Collective::kReduceScatter;
      return sums ? named(ArrivesBehindPasses(stage_, instruction)) : absl::OkStatus();
    }
    if (!instruction.last_only() || !instruction.detached() ||
        (instruction.half == plan::Half::kBoth) != backward.halves || instruction.group().IsTie()) {
      return named(Internal("is no reduction behind the last backward pass"));
    }
    RETURN_IF_ERROR(named(Communicate(instruction)));
    const size_t b = BucketAt(stage_, instruction.inputs[0], &plan::Bucket::gradient);
    if (b == stage_.buckets.size())
      return Internal("{} reduces no gradients", InstructionName(index_, backward, i));
    sums_.ReducedBehindPass(b);
    return named(ArrivesBehindPasses(stage_, instruction));
  }

  absl::Status Step(const plan::Instruction& instruction) {
    RETURN_IF_ERROR(streams_.Check(instruction, sums_.AnyUnderWay()));
    RETURN_IF_ERROR(sums_.Join(instruction));
    if (instruction.collective() != plan::Collective::kNone) return Communicate(instruction);
    if (instruction.kernel() == "sum_squares") return norm_.Count(instruction);
    if (instruction.kernel() == "clip_factor") return norm_.Clip(instruction);
    const plan::OptimizerDef& by_sign = plan::OptimizerOf(*plan_.optimizer, {.sign_step = 1});
    if (instruction.kernel() == plan_.optimizer->kernel || instruction.kernel() == by_sign.kernel)
      return Update(instruction);
    if (instruction.kernel() == "fp8_update") return scales_.Update(instruction);
    return Internal("the update knows no kernel {}", instruction.kernel());
  }

  absl::Status Communicate(const plan::Instruction& instruction) {
    if (instruction.inputs.size() != 1 || instruction.outputs.size() != 1 ||
        !SamePlace(instruction.inputs[0], instruction.outputs[0])) {
      return Internal("{} of a flat buffer is not in place", instruction.kernel());
    }
    const plan::BufferRef& ref = instruction.inputs[0];
    if (stage_.scales.elements > 0 && SamePlace(ref, stage_.scales)) return scales_.Reduce(instruction);
    if (instruction.reduction() != graph::Reduction::kSum) return Internal("takes no sum");
    if (SamePlace(ref, stage_.scalars)) return norm_.Reduce(instruction);
    if (instruction.collective() == plan::Collective::kAllGather) return Gather(instruction);
    return sums_.Reduce(instruction);
  }

  absl::Status Gather(const plan::Instruction& instruction) {
    const size_t b = BucketAt(stage_, instruction.inputs[0], &plan::Bucket::parameter);
    if (b == stage_.buckets.size() || !SamePlace(instruction.inputs[0], stage_.buckets[b].parameter)) {
      return Internal("gathers bytes that are no bucket's parameters");
    }
    Bucket& state = buckets_[b];
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

  absl::Status Update(const plan::Instruction& instruction) {
    if (instruction.inputs.size() < 2) return Internal("takes {} buffers", instruction.inputs.size());
    const size_t b = BucketAt(stage_, instruction.inputs[1], &plan::Bucket::gradient);
    if (b == stage_.buckets.size()) return Internal("reads bytes that are no bucket's gradients");
    const plan::OptimizerDef& optimizer = plan::OptimizerOf(*plan_.optimizer, stage_.buckets[b].training);
    if (instruction.kernel() != optimizer.kernel)
      return Internal("bucket.{} is updated by {}, not by {}", b, instruction.kernel(), optimizer.kernel);
    const size_t buffers = 3 + optimizer.states.size();  // weights, gradients and control beside states
    if (instruction.inputs.size() != buffers)
      return Internal("takes {} buffers, not {}", instruction.inputs.size(), buffers);
    RETURN_IF_ERROR(sums_.ReadsSum(instruction.inputs[1], b));
    if (!norm_.Clipped()) return Internal("runs before the clip factor is known");
    const plan::Bucket& bucket = stage_.buckets[b];
    Bucket& state = buckets_[b];
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

  absl::Status Finish() const {
    RETURN_IF_ERROR(scales_.Finish());
    for (size_t b = 0; b < stage_.buckets.size(); ++b) {
      const Bucket& state = buckets_[b];
      if (stage_.buckets[b].frozen()) {
        if (state.updates > 0) return Internal("{} is frozen, but updated", BucketName(index_, b));
        continue;
      }
      if (BelongsToNorm(stage_.buckets[b]) && !norm_.Counts(b))
        return Internal("{} is not in the norm", BucketName(index_, b));
      if (state.updates == 0) return Internal("{} is never updated", BucketName(index_, b));
      if (!state.gathered) {
        return Internal("{} is updated in {} shards that are never gathered", BucketName(index_, b),
                        stage_.buckets[b].shards);
      }
    }
    return absl::OkStatus();
  }

  const plan::Plan& plan_;
  const std::int32_t index_;
  const plan::StagePlan& stage_;
  BucketSums sums_;
  NormSum norm_;
  ScaleUpdate scales_;
  UpdateStreams streams_;
  std::vector<Bucket> buckets_;  // what became of them
};

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

}  // namespace engine::verify
