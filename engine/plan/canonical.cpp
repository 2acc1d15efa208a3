#include "engine/plan/canonical.h"

#include <fmt/compile.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

namespace engine::plan {
namespace {

using Buffer = fmt::memory_buffer;

template <typename... Args>
void Append(Buffer* text, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(fmt::appender(*text), format, std::forward<Args>(args)...);
}

void AppendRef(const Plan& plan, const BufferRef& ref, Buffer* text) {
  if (ref.value >= 0) {
    const LocalValue& value = plan.values[static_cast<size_t>(ref.value)];
    Append(text, "{} {}{} [{}] ", value.name, Name(value.dtype), value.local.ToString(),
           value.layout.ToString());
  } else {
    Append(text, "flat {}[{}] ", Name(ref.dtype), ref.elements);
  }
  Append(text, "@{}{}", ref.in_slot ? "slot+" : "", ref.offset);
  if (!ref.shard_axes.empty()) Append(text, "+{}·{}", ref.shard_axes.ToString(), ref.shard_stride);
}

void AppendInstruction(const Plan& plan, const Instruction& instruction, Buffer* text) {
  Append(text, "{} {}(", instruction.name, instruction.kernel());
  for (size_t i = 0; i < instruction.inputs.size(); ++i) {
    if (i > 0) Append(text, ", ");
    AppendRef(plan, instruction.inputs[i], text);
  }
  Append(text, ") -> ");
  for (size_t i = 0; i < instruction.outputs.size(); ++i) {
    if (i > 0) Append(text, ", ");
    AppendRef(plan, instruction.outputs[i], text);
    if ((instruction.accumulate() >> i) & 1U)
      Append(text, "{}", (instruction.fresh() >> i) & 1U ? " =, then +=" : " +=");
  }
  if (instruction.collective() != Collective::kNone) {
    constexpr const char* kReductions[] = {"", " lse", " max"};
    Append(text, " group {}{}", plan.mesh.NameOf(instruction.group()),
           kReductions[static_cast<int>(instruction.reduction())]);
    Append(text, "{}{}{}{}",
           instruction.stream == kExchangeStream ? " beside"
           : instruction.stream == kBucketStream ? " apart"
                                                 : "",
           instruction.push() ? " push" : "", instruction.last_only() ? " last" : "",
           instruction.detached() ? " detached" : "");
    if (instruction.AddsInOrder()) Append(text, " in order");
    if (instruction.LeavesAddition()) Append(text, " unsummed");
  }
  if (const HostCopy* copy = instruction.AsHostCopy()) Append(text, " host {}", copy->host_offset);
  if (instruction.direct()) Append(text, " direct");
  if (const Kernel* kernel = instruction.AsKernel(); kernel != nullptr && kernel->adds) {
    Append(text, " adds to input {} ", kernel->adds->input);
    AppendRef(plan, kernel->adds->place, text);
  }
  if (!instruction.waits.empty()) Append(text, " waits {}", fmt::join(instruction.waits, " "));
  if (instruction.waits_for_bucket >= 0) Append(text, " joins bucket.{}", instruction.waits_for_bucket);
  Append(text, " {}", instruction.attributes().ToString());
  if (!instruction.only_first().empty()) Append(text, " first of {}", instruction.only_first().ToString());
  if (instruction.scratch.elements > 0) {
    Append(text, " scratch {}@{}", instruction.scratch.elements, instruction.scratch.offset);
  }
}

// Steps are most of a large plan's text: their formats are parsed when this file is compiled.
void AppendProgram(const Program& program, std::string_view title, Buffer* text) {
  const fmt::appender out(*text);
  Append(text, "  program {}\n", title);
  for (size_t i = 0; i < program.size(); ++i) {
    const Step& step = program[i];
    constexpr const char* kKinds[] = {"run", "send", "receive"};
    fmt::format_to(out, FMT_COMPILE("    {} {} {} mb {} slot {} stream {} waits"), i,
                   kKinds[static_cast<int>(step.kind)],
                   step.kind == StepKind::kRun ? step.segment : step.transfer, step.microbatch, step.slot,
                   step.stream);
    for (std::int32_t wait : step.waits) fmt::format_to(out, FMT_COMPILE(" {}"), wait);
    if (step.kind != StepKind::kRun)
      fmt::format_to(out, FMT_COMPILE(" @{}{}"), step.buffer.in_slot ? "slot+" : "", step.buffer.offset);
    text->push_back('\n');
  }
}

void AppendBucket(const Plan& plan, const Bucket& bucket, Buffer* text) {
  Append(text, "  bucket {} elements reduce {} copies {} shards {}{}{}{} parameter @{} gradient @{}",
         bucket.elements, bucket.reduce.ToString(), bucket.copies.ToString(), bucket.shards,
         bucket.weight_decay ? (bucket.bulk ? " decay" : " decay exact") : "",
         bucket.tied() ? " tied" + plan.mesh.HoldersSuffix(bucket.holders) : "", bucket.owned ? "" : " copy",
         bucket.parameter.offset, bucket.gradient.offset);
  if (bucket.frozen()) Append(text, " frozen");
  if (bucket.training.learning_rate_scale != 1)
    Append(text, " learning rate x{}", bucket.training.learning_rate_scale);
  if (bucket.training.weight_decay.has_value())
    Append(text, " weight decay {}", *bucket.training.weight_decay);
  if (bucket.moves_by_sign()) Append(text, " sign step {}", bucket.training.sign_step);
  // Where the plan only evaluates there are no states; their places are written as 0.
  for (size_t s = 0;
       plan.optimizer != nullptr && !bucket.moves_by_sign() && s < plan.optimizer->states.size(); ++s) {
    Append(text, " {} @{}", plan.optimizer->states[s].name,
           s < bucket.states.size() ? bucket.states[s].offset : 0);
  }
  Append(text, "\n");
  for (const auto& [what, shard] :
       {std::pair("gradient", bucket.gradient_shard), std::pair("parameter", bucket.parameter_shard)}) {
    if (shard.elements > 0)
      Append(text, "    {} shard {}[{}] @{}\n", what, Name(shard.dtype), shard.elements, shard.offset);
  }
  for (const Bucket::Item& item : bucket.items) {
    const PlanParameter& parameter = plan.parameters[static_cast<size_t>(item.parameter)];
    const LocalValue& value = plan.values[static_cast<size_t>(parameter.value)];
    constexpr const char* kInitializers[] = {"zeros", "ones", "normal"};
    Append(text, "    {} {} of {} +{} {} [{}] init {} {}\n", parameter.name, Name(value.dtype),
           parameter.logical_shape.ToString(), item.offset_elements, value.local.ToString(),
           value.layout.ToString(), kInitializers[static_cast<int>(parameter.initializer.kind)],
           parameter.initializer.std);
  }
}

void Flush(Buffer* text, const TextSink& sink) {
  sink(std::string_view(text->data(), text->size()));
  text->clear();
}

}  // namespace

std::string Plan::ProgramName(std::int32_t program) const {
  const ProgramSpec& spec = ProgramAt(program);
  std::string name = FormName(spec.form);
  if (program != ProgramOf(spec.form)) name += fmt::format(" of {} samples", spec.global_batch);
  return name;
}

std::string Plan::FormName(FormId form) const {
  const Form& of = FormAt(form);
  const KindFacts facts = FactsAt(form);
  if (!facts.generates) return std::string(facts.name);
  return fmt::format("{} of {} × {} tokens", facts.name, of.samples, of.tokens);
}

std::string InstructionText(const Plan& plan, const Instruction& instruction) {
  Buffer text;
  AppendInstruction(plan, instruction, &text);
  return fmt::to_string(text);
}

void WriteCanonicalStage(const Plan& plan, std::int32_t stage_index, const TextSink& sink) {
  const StagePlan& stage = plan.stages[static_cast<size_t>(stage_index)];
  Buffer text;
  Append(&text, "stage {} arena {} bytes\n", stage_index, stage.arena_bytes);
  if (plan.halves > 1)
    Append(&text, "  transients of passes {} bytes @{}\n", stage.pass_bytes, stage.transient_base);
  for (const Bucket& bucket : stage.buckets) AppendBucket(plan, bucket, &text);
  for (const State& state : stage.states) {  // others follow from the instructions that quantise
    if (state.spec.update == graph::StateUpdate::kScales) continue;
    Append(&text, "  state {}{} starts as {} @{}\n", plan.StateName(state),
           state.spec.life == graph::Lifetime::kSession ? " of a session" : "",
           fmt::join(state.spec.fill, " "), state.buffer.offset);
  }
  for (const Chunk& chunk : stage.chunks) {
    Append(&text, "  chunk {} layers [{}, {}) slots {} × {} bytes @{}", chunk.index, plan.BlocksBefore(chunk),
           plan.BlocksBefore(chunk) + plan.BlocksIn(chunk), chunk.slots, chunk.slot_bytes, chunk.slot_base);
    if (chunk.host_bytes > 0) Append(&text, ", of the host {} bytes @{}", chunk.host_bytes, chunk.host_base);
    Append(&text, "\n");
    if (chunk.kept.elements == 0) continue;
    Append(&text, "    keeps ");
    for (const BufferRef& output : chunk.evaluate().outputs) {
      AppendRef(plan, output, &text);
      Append(&text, ", ");
    }
    Append(&text, "of all microbatches ");
    AppendRef(plan, chunk.kept, &text);
    Append(&text, "\n");
  }
  for (const Segment& segment : stage.segments) {
    Append(&text, "  segment {}{}\n", segment.name, segment.halves ? " of halves" : "");
    for (size_t i = 0; i < segment.instructions.size(); ++i) {
      constexpr const char* kHalves[] = {"first ", "second ", "both "};
      const Instruction& instruction = segment.instructions[i];
      Append(&text, "    {} {}", i, segment.halves ? kHalves[static_cast<int>(instruction.half)] : "");
      AppendInstruction(plan, segment.instructions[i], &text);
      Append(&text, "\n");
      if (text.size() > (1U << 16)) Flush(&text, sink);
    }
  }
  for (FormId form = 0; form < plan.FormsEnd(); ++form) {
    for (size_t p = 0; p < plan.programs.size(); ++p) {
      if (plan.programs[p].form != form) continue;
      AppendProgram(stage.programs[p], plan.ProgramName(static_cast<std::int32_t>(p)), &text);
    }
    if (plan.ProgramOf(form) < 0) AppendProgram({}, plan.FormName(form), &text);
  }
  Flush(&text, sink);
}

void WriteCanonical(const Plan& plan, const TextSink& sink) {
  Buffer text;
  const Mesh& mesh = plan.mesh;
  Append(&text, "mesh dp {} tp {} pp {} cp {} ep {}\n", mesh.size(Axis::kDp), mesh.size(Axis::kTp), mesh.pp,
         mesh.size(Axis::kCp), mesh.size(Axis::kEp));
  Append(&text, "schedule {} microbatches {} of {} samples × {} tokens, compute {}\n", plan.schedule,
         plan.microbatches, plan.microbatch_samples, plan.sequence, plan.compute);
  for (const Transfer& transfer : plan.transfers) {
    Append(&text, "transfer {} chunk {} to {} {} bytes{}\n",
           plan.values[static_cast<size_t>(transfer.value)].name, transfer.from_chunk, transfer.to_chunk,
           transfer.bytes, transfer.push ? " push" : "");
  }
  Flush(&text, sink);
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    WriteCanonicalStage(plan, static_cast<std::int32_t>(stage), sink);
  }
}

}  // namespace engine::plan
