#include "engine/verify/collectives.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "engine/plan/collective.h"
#include "engine/verify/text.h"

namespace engine::verify {
namespace {

// Collectives of one stage's groups are entered alike by all its ranks, because these share one program and
// no collective is left out on some of them.
absl::Status Lawful(const plan::Plan& plan, std::int32_t stage, const plan::Instruction& instruction) {
  if (instruction.collective() == plan::Collective::kSlice) return absl::OkStatus();
  const plan::Group group = instruction.group();
  const bool world = group == plan::AxisSet::World();
  if (group.axes.HasPp() && !world) return Internal("its group {} crosses stages", plan.mesh.NameOf(group));
  const std::vector<std::int32_t>& holders = group.holders;
  if (group.IsTie()) {
    for (std::int32_t holder : holders) {
      if (holder < 0 || holder >= plan.mesh.pp) return Internal("there is no stage {}", holder);
    }
    const bool ascend = std::is_sorted(holders.begin(), holders.end(), std::less_equal<>());
    if (!ascend || std::find(holders.begin(), holders.end(), stage) == holders.end())
      return Internal("stage {} is not one of its holders, {}", stage, fmt::join(holders, ", "));
  }
  if (plan.mesh.GroupSize(group) < 2) return Internal("its group {} is one rank", plan.mesh.NameOf(group));
  if (instruction.inputs.size() != 1 || instruction.outputs.size() != 1)
    return Internal("it takes one buffer and fills one");
  const std::int64_t size = plan.mesh.GroupSize(instruction.group());
  const std::int64_t from = instruction.inputs[0].bytes();
  const std::int64_t to = instruction.outputs[0].bytes();
  std::int64_t expected = from;  // of the output
  if (!instruction.IsBucketExchange() && instruction.collective() == plan::Collective::kReduceScatter)
    expected = from / size;
  if (!instruction.IsBucketExchange() && instruction.collective() == plan::Collective::kAllGather)
    expected = from * size;
  if (to != expected)
    return Internal("it makes {} bytes of {} over {} ranks, not {}", to, from, size, expected);
  if (instruction.inputs[0].dtype != instruction.outputs[0].dtype) return Internal("it changes the dtype");
  const std::int64_t wire = plan::WireBytes(instruction.collective(), from, to, size);
  if (instruction.wire_bytes() != wire)
    return Internal("it counts {} bytes on the wire, not {}", instruction.wire_bytes(), wire);
  return absl::OkStatus();
}

// Two communicators of NCCL at work at once can wait for each other, so its collectives are all on one
// stream, from a program's first segment to the end of its passes.
absl::Status OneStreamOfNccl(const plan::Plan& plan, std::int32_t index, plan::FormId form) {
  const plan::StagePlan& stage = plan.stages[static_cast<size_t>(index)];
  std::vector<std::int32_t> segments = {stage.ends[form].first};
  for (const plan::Chunk& chunk : stage.chunks) {
    const plan::ChunkPasses& passes = chunk.passes[form];
    segments.insert(segments.end(), {passes.forward, passes.backward, passes.weights});
  }
  std::int32_t stream = -1;
  for (const std::int32_t s : segments) {
    if (s < 0) continue;
    const plan::Segment& segment = stage.segments[static_cast<size_t>(s)];
    for (size_t i = 0; i < segment.instructions.size(); ++i) {
      const plan::Instruction& instruction = segment.instructions[i];
      if (instruction.push() || instruction.collective() == plan::Collective::kNone ||
          instruction.collective() == plan::Collective::kSlice) {
        continue;
      }
      if (stream >= 0 && stream != instruction.stream) {
        return Internal("{} is on stream {}, collectives of NCCL before it on stream {}",
                        InstructionName(index, segment, i), instruction.stream, stream);
      }
      stream = instruction.stream;
    }
  }
  return absl::OkStatus();
}

// What is exchanged of buckets runs in one order, that of its stream.
absl::Status OneStreamOfBuckets(std::int32_t stage, const plan::Segment& segment, std::int32_t* stream) {
  for (size_t i = 0; i < segment.instructions.size(); ++i) {
    const plan::Instruction& instruction = segment.instructions[i];
    if (!instruction.IsBucketExchange() || !plan::IsBehind(instruction.stream)) continue;
    if (*stream >= 0 && *stream != instruction.stream) {
      return Internal("{} is on stream {}, what is exchanged of buckets before it on stream {}",
                      InstructionName(stage, segment, i), instruction.stream, *stream);
    }
    *stream = instruction.stream;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status VerifyCollectives(const plan::Plan& plan) {
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const std::int32_t stage = static_cast<std::int32_t>(s);
    std::int32_t of_buckets = -1;
    for (const plan::Segment& segment : plan.stages[s].segments) {
      for (size_t i = 0; i < segment.instructions.size(); ++i) {
        if (segment.instructions[i].collective() == plan::Collective::kNone) continue;
        const absl::Status status = Lawful(plan, stage, segment.instructions[i]);
        if (!status.ok()) return WithContext(status, InstructionName(stage, segment, i));
      }
      RETURN_IF_ERROR(OneStreamOfBuckets(stage, segment, &of_buckets));
    }
    for (plan::FormId form = 0; form < plan.FormsEnd(); ++form)
      RETURN_IF_ERROR(OneStreamOfNccl(plan, stage, form));
  }
  return absl::OkStatus();
}

}  // namespace engine::verify
