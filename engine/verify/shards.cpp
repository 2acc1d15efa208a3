#include <cstdint>
#include <vector>

#include "engine/verify/buffers_in_turn.h"
#include "engine/verify/gathers_at_begin.h"
#include "engine/verify/sharded_buckets.h"
#include "engine/verify/verify.h"

namespace engine::verify {
namespace {

// In the order of the passes, without the update.
std::vector<std::int32_t> SegmentsOf(const plan::StagePlan& stage, plan::FormId form) {
  std::vector<std::int32_t> segments = {stage.ends[form].first};
  for (const plan::Chunk& chunk : stage.chunks) {
    const plan::ChunkPasses& passes = chunk.passes[form];
    segments.insert(segments.end(), {passes.forward, passes.backward, passes.weights});
  }
  if (form != plan::kTrainForm) segments.push_back(stage.ends[form].last);
  std::erase(segments, -1);
  return segments;
}

// A kernel that runs in every microbatch, from one buffer to another.
absl::Status FlatKernel(const plan::Instruction& instruction, std::uint32_t accumulate) {
  if (instruction.inputs.size() == 1 && instruction.outputs.size() == 1 &&
      instruction.stream == plan::kComputeStream && instruction.only_first().empty() &&
      instruction.accumulate() == accumulate && instruction.fresh() == accumulate) {
    return absl::OkStatus();
  }
  return Internal("{} is not from one buffer to another, in every microbatch", instruction.kernel());
}

// Follows the buffers that buckets take in turn, and the gathers of when a program begins, through one
// segment of a stage after the other. Shows that an instruction that touches what is kept in shards is one
// that may, and for both halves at once; that it comes in its turn is what the three that it leads along
// show.
class ShardVerifier {
 public:
  explicit ShardVerifier(const ShardedBuckets& buckets)
      : buckets_(buckets), gathers_(buckets), gradients_(buckets), parameters_(buckets) {}

  absl::Status Run() {
    const plan::StagePlan& stage = buckets_.stage();
    for (plan::FormId form = 0; form < buckets_.plan().FormsEnd(); ++form) {
      gathers_.StartProgram();
      for (std::int32_t s : SegmentsOf(stage, form))
        RETURN_IF_ERROR(Walk(stage.segments[static_cast<size_t>(s)]));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Walk(const plan::Segment& segment) {
    gathers_.StartSegment(segment);
    gradients_.StartSegment();
    parameters_.StartSegment();
    for (size_t i = 0; i < segment.instructions.size(); ++i) {
      const absl::Status status = Step(segment, segment.instructions[i]);
      if (!status.ok()) return WithContext(status, InstructionName(buckets_.index(), segment, i));
    }
    RETURN_IF_ERROR(gradients_.EndSegment(segment));
    RETURN_IF_ERROR(parameters_.EndSegment(segment));
    gathers_.EndSegment();
    return absl::OkStatus();
  }

  absl::Status Step(const plan::Segment& segment, const plan::Instruction& instruction) {
    if (instruction.waits_for_bucket >= 0) RETURN_IF_ERROR(Join(instruction));
    if (instruction.IsBucketExchange()) return Exchange(segment, instruction);
    if (instruction.kernel() == "copy" && instruction.op() == nullptr) {
      RETURN_IF_ERROR(FlatKernel(instruction, 0));
      RETURN_IF_ERROR(OfBothHalves(segment, instruction));
      return parameters_.Copy(instruction);
    }
    if (instruction.kernel() == "add_shard") {
      RETURN_IF_ERROR(FlatKernel(instruction, 1));
      RETURN_IF_ERROR(OfBothHalves(segment, instruction));
      return gradients_.Add(instruction);
    }
    for (const plan::BufferRef& input : instruction.inputs) {
      RETURN_IF_ERROR(gathers_.Read(input));
      RETURN_IF_ERROR(parameters_.Read(input));
    }
    for (size_t k = 0; k < instruction.outputs.size(); ++k) {
      const size_t* b = buckets_.Find(instruction.outputs[k], graph::ValueKind::kAccumulator);
      if (b == nullptr) continue;
      RETURN_IF_ERROR(OfBothHalves(segment, instruction));
      RETURN_IF_ERROR(gradients_.Sum(instruction, k, *b));
    }
    return absl::OkStatus();
  }

  // Of both halves, where two run the segment at once: buffers that buckets take in turn hold what is whole,
  // or nothing.
  static absl::Status OfBothHalves(const plan::Segment& segment, const plan::Instruction& instruction) {
    if ((instruction.half == plan::Half::kBoth) == segment.halves) return absl::OkStatus();
    return Internal("runs once for {}", segment.halves ? "each half" : "both halves");
  }

  // What is under way of the bucket has come to its end.
  absl::Status Join(const plan::Instruction& instruction) {
    const auto b = static_cast<size_t>(instruction.waits_for_bucket);
    if (instruction.stream != plan::kComputeStream || instruction.AsKernel() == nullptr)
      return Internal("waits for bucket.{}, and is no computation", b);
    const bool at_begin = gathers_.Join(b);
    const bool gradients = gradients_.Join(b);
    const bool parameters = parameters_.Join(b);
    if (at_begin || gradients || parameters) return absl::OkStatus();
    return Internal("waits for bucket.{}, of which nothing is under way", b);
  }

  absl::Status Exchange(const plan::Segment& segment, const plan::Instruction& instruction) {
    if (instruction.inputs.size() != 1 || instruction.outputs.size() != 1)
      return Internal("takes one buffer");
    const plan::BufferRef& ref = instruction.inputs[0];
    if (const size_t* b = buckets_.AtBeginIn(ref)) return gathers_.Gather(instruction, *b);
    if (gathers_.Begins()) return Internal("gathers no bucket's parameters");
    if (!IsInTurns(buckets_.stage(), ref)) return absl::OkStatus();  // VerifyGradients
    RETURN_IF_ERROR(OfBothHalves(segment, instruction));
    if (instruction.collective() == plan::Collective::kAllGather) return parameters_.Gather(instruction);
    if (instruction.collective() == plan::Collective::kReduceScatter) return gradients_.Reduce(instruction);
    return Internal("{} of what is kept in shards", instruction.kernel());
  }

  const ShardedBuckets& buckets_;
  GathersAtBegin gathers_;
  GradientsInTurn gradients_;
  ParametersInTurn parameters_;
};

}  // namespace

absl::Status VerifyShards(const plan::Plan& plan) {
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    if (!Trains(plan.stages[s])) continue;
    ASSIGN_OR_RETURN(const ShardedBuckets buckets, ShardedBuckets::Of(plan, static_cast<std::int32_t>(s)));
    RETURN_IF_ERROR(ShardVerifier(buckets).Run());
  }
  return absl::OkStatus();
}

}  // namespace engine::verify
