#include "engine/verify/sums.h"

#include <algorithm>
#include <vector>

#include "engine/verify/text.h"

namespace engine::verify {

absl::Status LeftSums::Check(const plan::Segment& segment, size_t i) {
  const plan::Instruction& instruction = segment.instructions[i];
  RETURN_IF_ERROR(Leaves(instruction));
  RETURN_IF_ERROR(Direct(segment, i));
  return Adds(instruction, i);
}

// A sum that is left to its reader is one of two ranks, pushed, and lies where this rank's part of it does.
absl::Status LeftSums::Leaves(const plan::Instruction& instruction) {
  if (!instruction.LeavesAddition()) {
    const bool shard = std::any_of(instruction.outputs.begin(), instruction.outputs.end(),
                                   [](const plan::BufferRef& ref) { return !ref.shard_axes.empty(); });
    return shard ? Internal("writes to another place on each rank") : absl::OkStatus();
  }
  const bool scatters = instruction.collective() == plan::Collective::kReduceScatter;
  if (instruction.op() != nullptr ||
      !(scatters || instruction.collective() == plan::Collective::kAllReduce) ||
      instruction.reduction() != graph::Reduction::kSum || !instruction.push() ||
      plan_.mesh.GroupSize(instruction.group()) != 2) {
    return Internal("leaves to its reader what is no pushed sum of two ranks");
  }
  const plan::BufferRef& partial = instruction.inputs[0];
  const plan::BufferRef& sum = instruction.outputs[0];
  const bool own = scatters ? sum.shard_axes == instruction.group().axes && sum.shard_stride == sum.bytes() &&
                                  IsRunOf(sum, partial)
                            : sum.shard_axes.empty();
  if (!own || sum.offset != partial.offset || Reach(plan_, sum) != End(partial) ||
      sum.in_slot != partial.in_slot || instruction.scratch.bytes() < sum.bytes()) {
    return Internal("{} is not where this rank's part of it is", NameOf(plan_, sum.value));
  }
  left_.insert(KeyOf(sum.value, instruction.half));
  return absl::OkStatus();
}

// The rank's part is where the other one reads it until the reader of both, which is next, has run.
absl::Status LeftSums::Direct(const plan::Segment& segment, size_t i) const {
  const auto& list = segment.instructions;
  const plan::Instruction& instruction = list[i];
  if (!instruction.direct()) return absl::OkStatus();
  if (instruction.op() == nullptr) {
    const bool read = i + 1 < list.size() && list[i + 1].direct() && list[i + 1].AsKernel() != nullptr;
    if (!instruction.LeavesAddition() || instruction.stream != plan::kComputeStream ||
        instruction.outputs[0].in_slot)
      return Internal("lets the other rank read what is no sum in line that is left to its reader");
    return read ? absl::OkStatus() : Internal("is not read by the next instruction");
  }
  const plan::Instruction* const sum = i > 0 && list[i - 1].direct() ? &list[i - 1] : nullptr;
  const auto input = static_cast<size_t>(instruction.AddedInput());
  if (sum == nullptr || !sum->LeavesAddition() || input >= instruction.inputs.size() ||
      instruction.inputs[input].value != sum->outputs[0].value) {
    return Internal("reads directly what the instruction before it does not sum");
  }
  std::vector<plan::BufferRef> written = instruction.outputs;
  written.push_back(instruction.scratch);
  for (const plan::BufferRef& ref : written) {
    if (Overlap(plan_, ref, sum->inputs[0]))
      return Internal("writes at {}, where the other rank reads", ref.offset);
  }
  return absl::OkStatus();
}

// Ranks have the sum's elements one after the other in what is added.
bool LeftSums::IsRunOf(const plan::BufferRef& sum, const plan::BufferRef& partial) const {
  const plan::LocalValue& part = ValueOf(plan_, sum);
  const plan::LocalValue& whole = ValueOf(plan_, partial);
  for (std::int64_t rank = 0; rank < plan_.mesh.ranks_per_stage(); ++rank) {
    const plan::Coordinates at = plan_.mesh.CoordinatesOf(rank);
    const Extent mine = part.layout.ExtentOf(part.shape, plan_.mesh, at);
    const Extent all = whole.layout.ExtentOf(whole.shape, plan_.mesh, at);
    const std::int64_t before = plan_.mesh.IndexInGroup(at, sum.shard_axes) * sum.elements;
    std::int64_t inner = 1;  // elements of one index of the dim
    for (int dim = part.local.rank() - 1; dim >= 0; --dim) {
      const auto d = static_cast<size_t>(dim);
      if (part.local[dim] == whole.local[dim]) {
        if (!(mine.dims[d] == all.dims[d])) return false;
        inner *= part.local[dim];
        continue;
      }
      for (std::int64_t i = 0; i < part.local[dim]; ++i) {
        if (LogicalIndex(mine.dims[d], i) != LogicalIndex(all.dims[d], before / inner + i)) return false;
      }
      if (before % inner != 0 || whole.local.elements(0, dim) != 1) return false;
      inner *= whole.local[dim];
    }
  }
  return true;
}

absl::Status LeftSums::MayAdd(const plan::Instruction& instruction, const plan::BufferRef& input) const {
  const plan::BufferRef& part = instruction.AsKernel()->adds->place;
  if (part.elements != input.elements || part.dtype != input.dtype || part.in_slot ||
      !arena_.Holds(part.offset, End(part), PartOf(KeyOf(input.value, instruction.half))).ok) {
    return Internal("finds no part of {} at {}", NameOf(plan_, input.value), part.offset);
  }
  for (const plan::BufferRef& output : instruction.outputs) {
    if (Overlap(plan_, output, part)) return Internal("writes at {}, where the part is", part.offset);
  }
  if (Overlap(plan_, instruction.scratch, part))
    return Internal("scribbles at {}, where the part is", part.offset);
  return absl::OkStatus();
}

// Its one reader adds the other rank's part, which is still where it arrived.
absl::Status LeftSums::Adds(const plan::Instruction& instruction, size_t i) {
  for (size_t k = 0; k < instruction.inputs.size(); ++k) {
    const plan::BufferRef& input = instruction.inputs[k];
    const bool adds = instruction.AddedInput() == static_cast<int>(k);
    if (adds != left_.contains(KeyOf(input.value, instruction.half))) {
      return adds ? Internal("adds a part to {}, which is whole", NameOf(plan_, input.value))
                  : Internal("reads {} without the other rank's part", NameOf(plan_, input.value));
    }
    if (!adds) continue;
    RETURN_IF_ERROR(MayAdd(instruction, input));
    left_.erase(KeyOf(input.value, instruction.half));
    (input.in_slot ? slot_ : arena_)
        .Write(input.offset, Reach(plan_, input), kAdded, static_cast<std::int32_t>(i));
  }
  const plan::Kernel* kernel = instruction.AsKernel();
  if (kernel == nullptr || !kernel->adds ||
      (kernel->adds->input >= 0 && kernel->adds->input < static_cast<int>(instruction.inputs.size()))) {
    return absl::OkStatus();
  }
  return Internal("adds a part to no input");
}

}  // namespace engine::verify
