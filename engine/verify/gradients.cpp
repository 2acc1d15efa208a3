#include <algorithm>
#include <initializer_list>

#include "engine/graph/op.h"
#include "engine/verify/text.h"
#include "engine/verify/tied.h"
#include "engine/verify/update.h"
#include "engine/verify/verify.h"

namespace engine::verify {
namespace {

// The loss is added in by the first rank of every axis that repeats it, and by all of those that hold a part
// of it.
absl::Status LossCountedOnce(const plan::Plan& plan, std::int32_t stage, const plan::Segment& segment) {
  for (size_t i = 0; i < segment.instructions.size(); ++i) {
    const plan::Instruction& instruction = segment.instructions[i];
    plan::AxisSet repeated;
    for (const plan::BufferRef& output : instruction.outputs) {
      if (output.value < 0) continue;
      const plan::LocalValue& value = ValueOf(plan, output);
      if (value.kind != graph::ValueKind::kAccumulator || value.parameter >= 0) continue;
      for (graph::Axis axis : graph::kAxes) {
        if (value.layout.At(axis).replicated()) repeated = repeated | plan::AxisSet::Of(axis);
      }
    }
    repeated = plan.mesh.Active(repeated);
    if (instruction.only_first() == repeated) continue;
    return Internal("{} runs on the first rank of {}, but what it adds to is repeated over {}",
                    InstructionName(stage, segment, i), instruction.only_first().ToString(),
                    repeated.ToString());
  }
  return absl::OkStatus();
}

int HalvesOf(const plan::Instruction& instruction) { return instruction.half == plan::Half::kBoth ? 2 : 1; }

// How often the instructions of a segment read each parameter in the forward pass (the head's product may be
// part of its own gradient), or add to its gradient.
void CountReads(const plan::Plan& plan, const plan::Segment& segment, bool backward, std::vector<int>* reads,
                int times = 1) {
  for (const plan::Instruction& instruction : segment.instructions) {
    if (backward && instruction.family() != graph::Family::kHead) continue;
    for (const plan::BufferRef& input : instruction.inputs) {
      if (input.value < 0 || ValueOf(plan, input).kind != graph::ValueKind::kParameter) continue;
      (*reads)[static_cast<size_t>(ValueOf(plan, input).parameter)] += times * HalvesOf(instruction);
    }
  }
}
void CountGradients(const plan::Plan& plan, const plan::Segment& segment, std::vector<int>* made) {
  for (const plan::Instruction& instruction : segment.instructions) {
    for (const plan::BufferRef& output : instruction.outputs) {
      if (output.value < 0 || ValueOf(plan, output).parameter < 0) continue;
      (*made)[static_cast<size_t>(ValueOf(plan, output).parameter)] += HalvesOf(instruction);
    }
  }
}

// Each read of a parameter that is trained in the forward passes of the stage adds to its gradient once in the backward
// passes. Both counts are of a step, which may run two halves.
absl::Status GradientsMade(const plan::Plan& plan, std::int32_t index) {
  const plan::StagePlan& stage = plan.stages[static_cast<size_t>(index)];
  std::vector<int> reads(plan.parameters.size(), 0);
  std::vector<int> made(plan.parameters.size(), 0);
  // A weight that is quantised is read then, for the one product that it has.
  CountReads(plan, stage.segments[static_cast<size_t>(stage.begin())], false, &reads,
             static_cast<int>(plan.halves));
  for (const plan::Chunk& chunk : stage.chunks) {
    CountReads(plan, stage.segments[static_cast<size_t>(chunk.train().forward)], false, &reads);
    for (const plan::Segment* segment : GradientSegments(stage, chunk)) {
      CountReads(plan, *segment, true, &reads);
      CountGradients(plan, *segment, &made);
    }
  }
  for (size_t p = 0; p < plan.parameters.size(); ++p) {
    if (plan.parameters[p].training.frozen) {
      if (made[p] == 0) continue;
      return Internal("stage {}: {} is frozen, but the backward passes add to its gradient {} times", index,
                      plan.parameters[p].name, made[p]);
    }
    if (reads[p] == made[p]) continue;
    return Internal(
        "stage {}: the forward passes read {} {} times, but the backward passes add to its gradient {} times",
        index, plan.parameters[p].name, reads[p], made[p]);
  }
  return absl::OkStatus();
}

bool IsInShards(const plan::StagePlan& stage, std::int32_t parameter) {
  return std::any_of(stage.buckets.begin(), stage.buckets.end(), [&](const plan::Bucket& bucket) {
    return bucket.gradient_shard.elements > 0 &&
           std::any_of(bucket.items.begin(), bucket.items.end(),
                       [&](const plan::Bucket::Item& item) { return item.parameter == parameter; });
  });
}

// The first sum into each gradient overwrites what the iteration before left, and no other one does: there is
// no other zeroing. What runs first is known: microbatch 0 (VerifySteps), and instructions in order.
absl::Status FirstSumsOverwrite(const plan::Plan& plan, std::int32_t index) {
  const plan::StagePlan& stage = plan.stages[static_cast<size_t>(index)];
  std::vector<bool> written(plan.parameters.size(), false);
  const auto walk = [&](const plan::Segment& segment) -> absl::Status {
    for (size_t i = 0; i < segment.instructions.size(); ++i) {
      const plan::Instruction& instruction = segment.instructions[i];
      for (size_t k = 0; k < instruction.outputs.size(); ++k) {
        if (instruction.outputs[k].value < 0) continue;
        const std::int32_t parameter = ValueOf(plan, instruction.outputs[k]).parameter;
        if (parameter >= 0 && IsInShards(stage, parameter)) continue;  // VerifyShards
        const bool fresh = ((instruction.fresh() >> k) & 1U) != 0;
        if (parameter < 0 && !fresh) continue;
        if (parameter >= 0 && fresh != written[static_cast<size_t>(parameter)]) {
          written[static_cast<size_t>(parameter)] = true;
          continue;
        }
        return Internal("{} {} the gradient of the iteration before", InstructionName(index, segment, i),
                        fresh ? "overwrites a sum, which is not" : "adds to");
      }
    }
    return absl::OkStatus();
  };
  // A microbatch passes backward through the last chunk first.
  for (size_t c = stage.chunks.size(); c-- > 0;) {
    for (const plan::Segment* segment : GradientSegments(stage, stage.chunks[c]))
      RETURN_IF_ERROR(walk(*segment));
  }
  return absl::OkStatus();
}

// A metric is added up once, where the unit is that makes it: in the forward pass, or with the head's gradient.
absl::Status MetricsMadeOnce(const plan::Plan& plan, std::int32_t index, const plan::Chunk& chunk,
                             std::initializer_list<std::int32_t> segments) {
  const plan::StagePlan& stage = plan.stages[static_cast<size_t>(index)];
  std::vector<int> made(plan.metrics.size(), 0);  // in a step, which may run two halves
  int halves = 1;
  std::string names;
  for (std::int32_t s : segments) {
    if (s < 0) continue;
    const plan::Segment& segment = stage.segments[static_cast<size_t>(s)];
    names += (names.empty() ? "" : " and ") + segment.name;
    halves = segment.halves ? 2 : 1;
    for (const plan::Instruction& instruction : segment.instructions) {
      for (const plan::BufferRef& output : instruction.outputs) {
        if (output.value < 0) continue;
        const plan::LocalValue& value = ValueOf(plan, output);
        if (value.metric >= 0) ++made[static_cast<size_t>(value.metric)];
      }
    }
  }
  for (size_t m = 0; m < made.size(); ++m) {
    const plan::PlanMetric& metric = plan.metrics[m];
    const bool here = metric.unit >= chunk.first_unit && metric.unit < chunk.end_unit;
    const int wanted = here && !names.empty() ? halves : 0;
    if (made[m] != wanted) {
      return Internal("stage {} {} adds to the {} {} times, not {}", index, names, metric.name, made[m],
                      wanted);
    }
  }
  return absl::OkStatus();
}

// The numbers of each metric lie behind those of the metric before, and every stage has room for all, and for the sum of
// squares.
absl::Status NumbersFit(const plan::Plan& plan) {
  std::int64_t first = 0;
  for (const plan::PlanMetric& metric : plan.metrics) {
    if (metric.first != first)
      return Internal("the numbers of {} begin at {}, not at {}", metric.name, metric.first, first);
    first += metric.numbers();
  }
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const std::int64_t scalars = plan.stages[s].scalars.elements;
    if (scalars != plan::ScalarsFor(first))
      return Internal("stage {} has {} scalars, not {}", s, scalars, plan::ScalarsFor(first));
  }
  return absl::OkStatus();
}

// At the end of an evaluation metrics are summed; generation makes none.
absl::Status LossSummed(const plan::Plan& plan, std::int32_t index, plan::FormId form) {
  const plan::StagePlan& stage = plan.stages[static_cast<size_t>(index)];
  const plan::Segment& end = stage.segments[static_cast<size_t>(stage.ends[form].last)];
  const std::int64_t sums =
      std::count_if(end.instructions.begin(), end.instructions.end(), [&](const auto& i) {
        return i.collective() == plan::Collective::kAllReduce && i.group() == plan::AxisSet::World() &&
               i.inputs.size() == 1 && SamePlace(i.inputs[0], stage.scalars);
      });
  const std::int64_t wanted = plan.mesh.world() > 1 && !plan.FactsAt(form).generates ? 1 : 0;
  if (sums == wanted && end.instructions.size() == static_cast<size_t>(wanted)) return absl::OkStatus();
  return Internal("stage {} {} sums the loss over the world {} times, not {}", index, end.name, sums, wanted);
}

}  // namespace

absl::Status VerifyGradients(const plan::Plan& plan) {
  RETURN_IF_ERROR(NumbersFit(plan));
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const std::int32_t index = static_cast<std::int32_t>(s);
    const plan::StagePlan& stage = plan.stages[s];
    if (Trains(stage)) {
      RETURN_IF_ERROR(GradientsMade(plan, index));
      RETURN_IF_ERROR(FirstSumsOverwrite(plan, index));
      RETURN_IF_ERROR(VerifyUpdate(plan, index));
      if (index == 0) RETURN_IF_ERROR(TiedCopiesStayEqual(plan));
    }
    for (const plan::Segment& segment : stage.segments) {
      if (segment.chunk >= 0) RETURN_IF_ERROR(LossCountedOnce(plan, index, segment));
    }
    for (const plan::Chunk& chunk : stage.chunks) {
      for (plan::FormId form = 0; form < plan.FormsEnd(); ++form) {
        const plan::ChunkPasses& passes = chunk.passes[form];
        RETURN_IF_ERROR(
            MetricsMadeOnce(plan, index, chunk, {passes.forward, passes.backward, passes.weights}));
      }
    }
    for (plan::FormId form = plan::kEvaluateForm; form < plan.FormsEnd(); ++form) {
      if (plan.ProgramOf(form) >= 0) RETURN_IF_ERROR(LossSummed(plan, index, form));
    }
  }
  return absl::OkStatus();
}

}  // namespace engine::verify
