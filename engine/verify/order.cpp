#include "engine/verify/order.h"

#include <algorithm>
#include <array>

#include "engine/verify/text.h"

namespace engine::verify {
namespace {

class OrderVerifier {
 public:
  OrderVerifier(const plan::Plan& plan, std::int32_t stage, const plan::Segment& segment, bool lanes)
      : plan_(plan), index_(stage), segment_(segment), lanes_(lanes) {}

  absl::Status Run() const {
    const size_t count = segment_.instructions.size();
    LaneIndices next = {0, 0, 0};
    // Behind what lane 1 has computed last: what it exchanges from there on is under way.
    size_t computed = 0;
    const auto pass = [&](size_t lane) {
      while (next[lane] < count && segment_.instructions[next[lane]].joint != (lane == plan::kJointLane))
        ++next[lane];
    };
    for (size_t lane = 0; lane < next.size(); ++lane) pass(lane);
    for (std::uint8_t lane : segment_.order) {
      if (lane > plan::kJointLane || next[lane] == count)
        return Internal("stage {} {}: lane {} has no instruction left", index_, segment_.name, lane);
      const size_t i = next[lane];
      if (lane == 1 && next[0] <= i)
        return Internal("{} runs in lane 1 before lane 0", InstructionName(index_, segment_, i));
      if (lane == plan::kJointLane && (next[0] <= i || next[1] <= i))
        return Internal("{} runs before both lanes have come to it", InstructionName(index_, segment_, i));
      if (lane != plan::kJointLane) RETURN_IF_ERROR(Overtakes(i, lane, next, computed));
      if (lane == 1 && segment_.instructions[i].stream == plan::kComputeStream) computed = i + 1;
      if (lane != plan::kJointLane) {
        RETURN_IF_ERROR(AddsInOrder(i, next[plan::kJointLane]));
        RETURN_IF_ERROR(ReadsInOrder(i, next[plan::kJointLane]));
      }
      ++next[lane];
      pass(lane);
    }
    const bool joint = std::any_of(segment_.instructions.begin(), segment_.instructions.end(),
                                   [](const plan::Instruction& i) { return i.joint; });
    const bool whole = lanes_ ? next == LaneIndices{count, count, count} : segment_.order.empty() && !joint;
    if (whole) return absl::OkStatus();
    return Internal(
        "stage {} {}: of {} instructions lane 0 runs those before #{}, lane 1 before #{}, both "
        "before #{}",
        index_, segment_.name, count, next[0], next[1], next[2]);
  }

 private:
  using LaneIndices = std::array<size_t, plan::kJointLane + 1>;

  // A lane does not write where a joint instruction is still to read, nor lane 0 where lane 1 is, in its
  // part of the bytes.
  absl::Status Overtakes(size_t i, size_t lane, const LaneIndices& next, size_t computed) const {
    const std::vector<plan::Instruction>& instructions = segment_.instructions;
    for (const plan::BufferRef& output : instructions[i].outputs) {
      if (output.lane_stride == 0) continue;
      for (size_t by = std::min(next[plan::kJointLane], computed); by < i; ++by) {
        const bool joint = instructions[by].joint;
        const bool exchanges = plan::IsBehind(instructions[by].stream);
        if (joint ? by < next[plan::kJointLane] : lane != 0 || by < (exchanges ? computed : next[1]))
          continue;
        for (const auto* refs : {&instructions[by].inputs, &instructions[by].outputs}) {
          for (const plan::BufferRef& ref : *refs) {
            const bool own = !joint && ref.offset == output.offset && ref.lane_stride == output.lane_stride;
            if (ref.lane_stride == 0 || own || !ref.Overlaps(output)) continue;
            return Internal("{} in lane {} writes at {} before {} has run, which needs {} there",
                            InstructionName(index_, segment_, i), lane, output.offset,
                            InstructionName(index_, segment_, by), NameOf(plan_, ref.value));
          }
        }
      }
    }
    return absl::OkStatus();
  }

  // The first to add to a sum overwrites it, and is the first in the segment_.
  absl::Status AddsInOrder(size_t i, size_t next_joint) const {
    for (const plan::BufferRef& output : segment_.instructions[i].outputs) {
      if (output.value < 0 || ValueOf(plan_, output).kind != graph::ValueKind::kAccumulator) continue;
      for (size_t by = next_joint; by < i; ++by) {
        const plan::Instruction& before = segment_.instructions[by];
        if (!before.joint || before.flat || !Writes(before, output.value)) continue;
        return Internal("{} adds to {} before {} does", InstructionName(index_, segment_, i),
                        NameOf(plan_, output.value), InstructionName(index_, segment_, by));
      }
    }
    return absl::OkStatus();
  }

  // What is brought for both lanes is there before either reads it.
  absl::Status ReadsInOrder(size_t i, size_t next_joint) const {
    for (size_t by = next_joint; by < i; ++by) {
      const plan::Instruction& before = segment_.instructions[by];
      if (!before.joint) continue;
      for (const plan::BufferRef& output : before.outputs) {
        for (const plan::BufferRef& input : segment_.instructions[i].inputs) {
          if (!input.Overlaps(output)) continue;
          return Internal("{} reads {} before {} has brought it", InstructionName(index_, segment_, i),
                          input.value < 0 ? "a buffer" : NameOf(plan_, input.value),
                          InstructionName(index_, segment_, by));
        }
      }
    }
    return absl::OkStatus();
  }

  static bool Writes(const plan::Instruction& instruction, std::int32_t value) {
    return std::any_of(instruction.outputs.begin(), instruction.outputs.end(),
                       [&](const plan::BufferRef& output) { return output.value == value; });
  }

  const plan::Plan& plan_;
  const std::int32_t index_;
  const plan::Segment& segment_;
  const bool lanes_;
};

}  // namespace

absl::Status VerifyOrder(const plan::Plan& plan, std::int32_t stage, const plan::Segment& segment,
                         bool lanes) {
  return OrderVerifier(plan, stage, segment, lanes).Run();
}

}  // namespace engine::verify
