#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <vector>

#include "engine/verify/text.h"
#include "engine/verify/verify.h"

namespace engine::verify {
namespace {

// Of no slot.
bool SameFlatPlace(const plan::BufferRef& a, const plan::BufferRef& b) {
  return SamePlace(a, b) && !a.in_slot;
}

// Follows the buffers that buckets take in turn through one segment after the other.
class ShardVerifier {
 public:
  ShardVerifier(const plan::Plan& plan, std::int32_t index)
      : plan_(plan), index_(index), stage_(plan.stages[static_cast<size_t>(index)]) {}

  absl::Status Run() {
    for (size_t b = 0; b < stage_.buckets.size(); ++b) RETURN_IF_ERROR(Enter(b));
    for (const plan::ProgramKind kind : plan::kProgramKinds) {
      begun_.clear();
      for (std::int32_t s : SegmentsOf(kind)) RETURN_IF_ERROR(Walk(stage_.segments[static_cast<size_t>(s)]));
    }
    return absl::OkStatus();
  }

 private:
  enum class Phase { kFree, kSumming, kCopied, kExchanging, kWhole };
  // In the order of the passes, without the update.
  std::vector<std::int32_t> SegmentsOf(plan::ProgramKind kind) const {
    std::vector<std::int32_t> segments = {stage_.ends[kind].first};
    for (const plan::Chunk& chunk : stage_.chunks) {
      const plan::ChunkPasses& passes = chunk.passes[kind];
      segments.insert(segments.end(), {passes.forward, passes.backward, passes.weights});
    }
    if (!plan::FactsOf(kind).trains) segments.push_back(stage_.ends[kind].last);
    std::erase(segments, -1);
    return segments;
  }

  struct Buffer {
    Phase phase = Phase::kFree;
    size_t bucket = 0;
  };
  using Buffers = absl::flat_hash_map<std::int64_t, Buffer>;  // by offset

  const plan::Bucket& BucketAt(size_t b) const { return stage_.buckets[b]; }

  // The axes over which a bucket's gradients are partial: shards lie along them.
  plan::AxisSet AxesOf(const plan::Bucket& bucket) const {
    const plan::PlanParameter& parameter =
        plan_.parameters[static_cast<size_t>(bucket.items.front().parameter)];
    return plan_.mesh.Active(plan_.values[static_cast<size_t>(parameter.gradient)].layout.PartialAxes());
  }
  plan::BufferRef ShardOf(const plan::Bucket& bucket, plan::BufferRef whole) const {
    whole.elements /= plan_.mesh.GroupSize(AxesOf(bucket));
    whole.shard_axes = AxesOf(bucket);
    whole.shard_stride = whole.bytes();
    return whole;
  }

  // Whether its parameters are gathered into a buffer of several buckets.
  static bool TakesTurns(const plan::Bucket& bucket) {
    return bucket.parameter_shard.elements > 0 && !bucket.gathered_at_begin();
  }

  // The bucket whose shard lies there; else the number of buckets.
  size_t ShardAt(const plan::BufferRef& ref, plan::BufferRef plan::Bucket::*shard) const {
    const auto it =
        std::find_if(stage_.buckets.begin(), stage_.buckets.end(), [&](const plan::Bucket& bucket) {
          return (bucket.*shard).elements > 0 && SameFlatPlace(ref, bucket.*shard);
        });
    return static_cast<size_t>(it - stage_.buckets.begin());
  }

  absl::Status Enter(size_t b) {
    const plan::Bucket& bucket = BucketAt(b);
    const bool gradients = bucket.gradient_shard.elements > 0;
    const bool parameters = TakesTurns(bucket);
    if (bucket.gathered_at_begin()) {
      if (bucket.tied() || !SameFlatPlace(bucket.parameter_shard, ShardOf(bucket, bucket.parameter)))
        return Internal("stage {} bucket.{}: its shard is not in its place", index_, b);
      for (const plan::Bucket::Item& item : bucket.items) at_begin_[item.parameter] = b;
    }
    if (!gradients && !parameters) return absl::OkStatus();
    if (!gradients || bucket.tied() || bucket.shards != plan_.mesh.GroupSize(AxesOf(bucket))) {
      return Internal("stage {} bucket.{} cannot be kept in {} shards", index_, b, bucket.shards);
    }
    for (const plan::Bucket::Item& item : bucket.items) bucket_of_[item.parameter] = b;
    return absl::OkStatus();
  }

  absl::Status Walk(const plan::Segment& segment) {
    gradients_.clear();
    parameters_.clear();
    summed_.clear();
    joined_.clear();
    segment_ = &segment;
    for (size_t i = 0; i < segment.instructions.size(); ++i) {
      const absl::Status status = Step(segment.instructions[i]);
      if (!status.ok()) return WithContext(status, InstructionName(index_, segment, i));
    }
    for (const auto& [offset, buffer] : gradients_) {
      if (buffer.phase == Phase::kFree) continue;
      return Internal("stage {} {}: the gradients of bucket.{} are not added to their shard", index_,
                      segment.name, buffer.bucket);
    }
    for (const auto& [offset, buffer] : parameters_) {
      if (buffer.phase == Phase::kWhole) continue;
      return Internal("stage {} {}: bucket.{} is gathered for nothing", index_, segment.name, buffer.bucket);
    }
    for (const plan::Chunk& chunk : stage_.chunks) {
      if (Runs(chunk.train().forward)) joined_forward_[chunk.index] = joined_;
    }
    return absl::OkStatus();
  }

  // Whether it is the first segment of programs of a kind.
  bool Begins() const {
    return std::any_of(std::begin(plan::kProgramKinds), std::end(plan::kProgramKinds),
                       [&](plan::ProgramKind kind) { return Runs(stage_.ends[kind].first); });
  }

  bool Runs(std::int32_t segment) const {
    return segment >= 0 && segment_ == &stage_.segments[static_cast<size_t>(segment)];
  }

  // Of both halves, where two run the segment at once: buffers that buckets take in turn hold what is whole, or
  // nothing.
  absl::Status OfBothHalves(const plan::Instruction& instruction) const {
    if ((instruction.half == plan::Half::kBoth) == segment_->halves) return absl::OkStatus();
    return Internal("runs once for {}", segment_->halves ? "each half" : "both halves");
  }

  absl::Status Step(const plan::Instruction& instruction) {
    if (instruction.waits_for_bucket >= 0) RETURN_IF_ERROR(Join(instruction));
    if (instruction.IsBucketExchange()) return Exchange(instruction);
    if (instruction.kernel() == "copy" && instruction.op() == nullptr) return Copy(instruction);
    if (instruction.kernel() == "add_shard") return Add(instruction);
    for (const plan::BufferRef& input : instruction.inputs) RETURN_IF_ERROR(Reads(input));
    for (size_t k = 0; k < instruction.outputs.size(); ++k) RETURN_IF_ERROR(Sums(instruction, k));
    return absl::OkStatus();
  }

  absl::Status Join(const plan::Instruction& instruction) {
    const auto b = static_cast<size_t>(instruction.waits_for_bucket);
    if (instruction.stream != plan::kComputeStream || instruction.AsKernel() == nullptr)
      return Internal("waits for bucket.{}, and is no computation", b);
    bool under_way = begun_.contains(b);
    if (under_way) joined_.insert(b);
    for (Buffers* buffers : {&gradients_, &parameters_}) {
      for (auto& [offset, buffer] : *buffers) {
        if (buffer.phase != Phase::kExchanging || buffer.bucket != b) continue;
        buffer.phase = Phase::kWhole;
        under_way = true;
      }
    }
    if (under_way) return absl::OkStatus();
    return Internal("waits for bucket.{}, of which nothing is under way", b);
  }

  // The bucket of a value that is a parameter, or the gradient of one; else none.
  const size_t* Find(const plan::BufferRef& ref, graph::ValueKind kind) const {
    if (ref.value < 0 || ValueOf(plan_, ref).kind != kind) return nullptr;
    const auto it = bucket_of_.find(ValueOf(plan_, ref).parameter);
    return it == bucket_of_.end() ? nullptr : &it->second;
  }

  absl::Status Sums(const plan::Instruction& instruction, size_t k) {
    const plan::BufferRef& output = instruction.outputs[k];
    const size_t* b = Find(output, graph::ValueKind::kAccumulator);
    if (b == nullptr) return absl::OkStatus();
    RETURN_IF_ERROR(OfBothHalves(instruction));
    Buffer& buffer = gradients_[BucketAt(*b).gradient.offset];
    if (buffer.phase == Phase::kFree) buffer = {.phase = Phase::kSumming, .bucket = *b};
    if (buffer.bucket != *b) {
      return Internal("sums gradients of bucket.{} where those of bucket.{} are not yet added to their shard",
                      *b, buffer.bucket);
    }
    if (buffer.phase != Phase::kSumming)
      return Internal("adds to the gradients of bucket.{}, which are already reduced", *b);
    const bool first = summed_.insert(ValueOf(plan_, output).parameter).second;
    const bool adds = ((instruction.accumulate() >> k) & 1U) != 0;
    const bool fresh = ((instruction.fresh() >> k) & 1U) != 0;
    if (adds != first && !fresh) return absl::OkStatus();
    return Internal("{} {}", first ? "adds to what was in the buffer of" : "overwrites the sum",
                    NameOf(plan_, output.value));
  }

  // Since the program began; a chunk's forward pass is before its others.
  bool IsJoined(size_t b) const {
    if (joined_.contains(b)) return true;
    for (const plan::Chunk& chunk : stage_.chunks) {
      if (!Runs(chunk.train().backward) && !Runs(chunk.train().weights)) continue;
      const auto forward = joined_forward_.find(chunk.index);
      return forward != joined_forward_.end() && forward->second.contains(b);
    }
    return false;
  }

  // One gather of all of the bucket, behind the passes that read it.
  absl::Status GathersAtBegin(const plan::Instruction& instruction, size_t b) {
    const plan::Bucket& bucket = BucketAt(b);
    if (!Begins()) return Internal("gathers bucket.{} when its program has begun", b);
    if (instruction.collective() != plan::Collective::kAllGather ||
        !SameFlatPlace(instruction.inputs[0], bucket.parameter) ||
        !SameFlatPlace(instruction.outputs[0], bucket.parameter) ||
        !(instruction.group() == AxesOf(bucket))) {
      return Internal("is not the gather of all of bucket.{}, in place, over {}", b,
                      AxesOf(bucket).ToString());
    }
    if (!instruction.detached() || instruction.last_only())
      return Internal("does not gather bucket.{} behind the passes", b);
    if (!begun_.insert(b).second) return Internal("gathers bucket.{} again", b);
    return absl::OkStatus();
  }

  absl::Status Reads(const plan::BufferRef& input) {
    if (input.value >= 0 && ValueOf(plan_, input).kind == graph::ValueKind::kParameter) {
      const auto whole = at_begin_.find(ValueOf(plan_, input).parameter);
      if (whole != at_begin_.end() && !IsJoined(whole->second))
        return Internal("reads {}, which is not waited for", NameOf(plan_, input.value));
    }
    const size_t* b = Find(input, graph::ValueKind::kParameter);
    if (b == nullptr || !TakesTurns(BucketAt(*b))) return absl::OkStatus();
    const auto it = parameters_.find(BucketAt(*b).parameter.offset);
    if (it == parameters_.end() || it->second.bucket != *b) {
      return Internal("reads {}, but its buffer holds {}", NameOf(plan_, input.value),
                      it == parameters_.end() ? "nothing" : fmt::format("bucket.{}", it->second.bucket));
    }
    if (it->second.phase == Phase::kWhole) return absl::OkStatus();
    return Internal("reads {}, which is not {}", NameOf(plan_, input.value),
                    it->second.phase == Phase::kCopied ? "gathered" : "waited for");
  }

  absl::Status Exchange(const plan::Instruction& instruction) {
    if (instruction.inputs.size() != 1 || instruction.outputs.size() != 1)
      return Internal("takes one buffer");
    const plan::BufferRef& ref = instruction.inputs[0];
    for (const auto& [parameter, b] : at_begin_) {
      if (ref.offset == BucketAt(b).parameter.offset) return GathersAtBegin(instruction, b);
    }
    if (Begins()) return Internal("gathers no bucket's parameters");
    if (!IsInTurns(stage_, ref)) return absl::OkStatus();  // VerifyGradients
    RETURN_IF_ERROR(OfBothHalves(instruction));
    const bool gathers = instruction.collective() == plan::Collective::kAllGather;
    if (!gathers && instruction.collective() != plan::Collective::kReduceScatter)
      return Internal("{} of what is kept in shards", instruction.kernel());
    Buffers& buffers = gathers ? parameters_ : gradients_;
    const auto it = buffers.find(ref.offset);
    const Phase wanted = gathers ? Phase::kCopied : Phase::kSumming;
    if (it == buffers.end() || it->second.phase != wanted)
      return Internal("finds {} at {}", gathers ? "no shard to gather" : "no gradients to reduce",
                      ref.offset);
    const plan::Bucket& bucket = BucketAt(it->second.bucket);
    if (!SameFlatPlace(ref, gathers ? bucket.parameter : bucket.gradient) ||
        !SameFlatPlace(ref, instruction.outputs[0])) {
      return Internal("is not of all of bucket.{}, in place", it->second.bucket);
    }
    if (!(instruction.group() == AxesOf(bucket)) || instruction.reduction() != graph::Reduction::kSum) {
      return Internal("the shards of bucket.{} lie over {}, not over {}", it->second.bucket,
                      AxesOf(bucket).ToString(), plan_.mesh.NameOf(instruction.group()));
    }
    if (instruction.last_only() || (instruction.push() && !instruction.detached()))
      return Internal("is not exchanged in every microbatch, behind computation or in its place");
    it->second.phase = instruction.detached() ? Phase::kExchanging : Phase::kWhole;
    return absl::OkStatus();
  }

  static absl::Status FlatKernel(const plan::Instruction& instruction, std::uint32_t accumulate) {
    if (instruction.inputs.size() == 1 && instruction.outputs.size() == 1 &&
        instruction.stream == plan::kComputeStream && instruction.only_first().empty() &&
        instruction.accumulate() == accumulate && instruction.fresh() == accumulate) {
      return absl::OkStatus();
    }
    return Internal("{} is not from one buffer to another, in every microbatch", instruction.kernel());
  }

  // This rank's parameters to their place among those of all.
  absl::Status Copy(const plan::Instruction& instruction) {
    RETURN_IF_ERROR(FlatKernel(instruction, 0));
    RETURN_IF_ERROR(OfBothHalves(instruction));
    const size_t b = ShardAt(instruction.inputs[0], &plan::Bucket::parameter_shard);
    if (b == stage_.buckets.size()) return Internal("copies no shard of parameters");
    const plan::Bucket& bucket = BucketAt(b);
    if (!SameFlatPlace(instruction.outputs[0], ShardOf(bucket, bucket.parameter)))
      return Internal("puts the shard of bucket.{} where it does not belong", b);
    Buffer& buffer = parameters_[bucket.parameter.offset];
    if (buffer.phase == Phase::kExchanging || buffer.phase == Phase::kCopied)
      return Internal("overwrites bucket.{} before it is gathered", buffer.bucket);
    buffer = {.phase = Phase::kCopied, .bucket = b};
    return absl::OkStatus();
  }

  // What a microbatch gave, to what is kept. The first overwrites what the iteration before left.
  absl::Status Add(const plan::Instruction& instruction) {
    RETURN_IF_ERROR(FlatKernel(instruction, 1));
    RETURN_IF_ERROR(OfBothHalves(instruction));
    const size_t b = ShardAt(instruction.outputs[0], &plan::Bucket::gradient_shard);
    if (b == stage_.buckets.size()) return Internal("adds to no shard of gradients");
    const plan::Bucket& bucket = BucketAt(b);
    Buffer& buffer = gradients_[bucket.gradient.offset];
    if (!SameFlatPlace(instruction.inputs[0], ShardOf(bucket, bucket.gradient)) || buffer.bucket != b ||
        buffer.phase != Phase::kWhole) {
      return Internal("adds to the shard of bucket.{} what is not its gradients' sum{}", b,
                      buffer.phase == Phase::kExchanging ? " yet" : "");
    }
    buffer = {};
    return absl::OkStatus();
  }

  const plan::Plan& plan_;
  const std::int32_t index_;
  const plan::StagePlan& stage_;
  absl::flat_hash_map<std::int32_t, size_t> bucket_of_;  // kept in shards, by parameter
  Buffers gradients_, parameters_;
  // Gathered when a program begins: by parameter. Of the program that is walked what has been gathered, by
  // name too, and of its segment what was waited for.
  absl::flat_hash_map<std::int32_t, size_t> at_begin_;
  const plan::Segment* segment_ = nullptr;
  absl::flat_hash_set<size_t> begun_, joined_;
  absl::flat_hash_map<std::int32_t, absl::flat_hash_set<size_t>> joined_forward_;  // by chunk
  absl::flat_hash_set<std::int32_t> summed_;                                       // parameters
};

}  // namespace

absl::Status VerifyShards(const plan::Plan& plan) {
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    if (Trains(plan.stages[s])) RETURN_IF_ERROR(ShardVerifier(plan, static_cast<std::int32_t>(s)).Run());
  }
  return absl::OkStatus();
}

}  // namespace engine::verify
