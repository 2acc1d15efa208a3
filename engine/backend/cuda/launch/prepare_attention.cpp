// Attention: by cuDNN where it can (scratch_attention.h), else by the reference kernels. Packed and separate
// tensors differ in strides only.
#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/backend/cuda/attention/attention.h"
#include "engine/backend/cuda/attention/sm90a.h"
#include "engine/backend/cuda/device/device.h"
#include "engine/backend/cuda/kernels/attention_key_sum.h"
#include "engine/backend/cuda/kernels/attention_reference.h"
#include "engine/backend/cuda/launch/attention_choice.h"
#include "engine/backend/cuda/launch/attention_contest.h"
#include "engine/backend/cuda/launch/prepare.h"
#include "engine/backend/cuda/launch/prepare_checks.h"
#include "engine/backend/cuda/profile/attention_tiles.h"
#include "engine/backend/cuda/profile/scratch_attention.h"
#include "engine/base/attention_draws.h"
#include "engine/graph/attention_inputs.h"
#include "engine/graph/mask.h"

namespace engine::backend::cuda {
namespace {

AttentionShape ShapeOf(const Device& device, const LaunchArgs& args, const graph::AttentionForm& form) {
  std::vector<graph::TensorType> types;
  for (const TensorView& input : args.inputs) types.push_back(TypeOf(input));
  const graph::Attributes& attributes = args.instruction->attributes();
  AttentionShape shape = form.packed ? ShapeOfPacked(types, attributes, form.backward)
                                     : ShapeOfSeparate(types, attributes, form.backward);
  shape.chip = ChipOf(device);
  return shape;
}

// ----------------------------------------------------------------------------------------------- the tensors

// [B, S, H, E] or [B, S, H, U], the heads of a kv head next to each other.
AttentionView QueriesOf(const TensorView& view, const AttentionShape& s) {
  const std::int64_t head = view.shape[3];
  return {view.data, s.queries * s.heads * head, s.heads * head, s.group() * head, head};
}

// [B, T, K, E] or [B, T, K, U]
AttentionView KeysOf(const TensorView& view, const AttentionShape& s) {
  const std::int64_t head = view.shape[3];
  return {view.data, s.keys * s.kv_heads * head, s.kv_heads * head, head, head};
}

// One of the J heads of each kv head of a packed tensor [B, S, K, J, E], and those after it.
AttentionView PackedFrom(const TensorView& view, const AttentionShape& s, std::int64_t first) {
  const std::int64_t kv_head = (s.group() + 2) * s.head;
  const std::int64_t token = s.kv_heads * kv_head;
  return {view.as<std::byte>() + first * s.head * SizeOf(s.dtype), s.queries * token, token, kv_head, s.head};
}

LseView LseOf(const TensorView& view, const AttentionShape& s) {
  const HeadStrides strides = LseStrides(s.queries, s.heads);
  return {view.as<float>(), strides.sample, strides.token, strides.head};
}

AttentionProblem ProblemOf(const LaunchArgs& args, const AttentionShape& s,
                           const graph::AttentionInputs& at) {
  return {.dtype = s.dtype,
          .batch = s.batch,
          .queries = s.queries,
          .keys = s.keys,
          .heads = s.heads,
          .kv_heads = s.kv_heads,
          .head = s.head,
          .value_head = s.value_head,
          .causal = s.causal,
          .window = s.window,
          .scale = static_cast<float>(args.instruction->attributes().Float("scale")),
          .positions = at.has_positions() ? args.inputs[at.positions].as<std::int32_t>() : nullptr,
          .spans = at.has_spans() ? args.inputs[at.spans].as<std::int32_t>() : nullptr,
          .softcap = static_cast<float>(s.softcap),
          .alibi = s.alibi};
}

AttentionProblem SeparateProblem(const LaunchArgs& args, const AttentionShape& s,
                                 const graph::AttentionInputs& at) {
  AttentionProblem problem = ProblemOf(args, s, at);
  problem.q = QueriesOf(args.inputs[0], s);
  problem.k = KeysOf(args.inputs[1], s);
  problem.v = KeysOf(args.inputs[2], s);
  return problem;
}

AttentionProblem PackedProblem(const LaunchArgs& args, const AttentionShape& s,
                               const graph::AttentionInputs& at) {
  AttentionProblem problem = ProblemOf(args, s, at);
  problem.q = PackedFrom(args.inputs[0], s, 0);
  problem.k = PackedFrom(args.inputs[0], s, s.group());
  problem.v = PackedFrom(args.inputs[0], s, s.group() + 1);
  return problem;
}

// The places of the queries in the sequence.
DimExtent PositionsOf(const TensorView& q, const AttentionShape& s) {
  if (q.extent.dims.empty()) return {{0, s.queries}};
  return q.extent.dims[1];
}

// --------------------------------------------------------------------------------------------- with cuDNN

// A part of the batch and of the heads.
struct Part {
  std::int64_t first_sample, samples, first_kv_head, kv_heads;
};

std::vector<Part> PartsOf(const AttentionShape& s, const AttentionGroup& group) {
  std::vector<Part> parts;
  for (std::int64_t b = 0; b < s.batch; b += group.samples) {
    for (std::int64_t k = 0; k < s.kv_heads; k += group.kv_heads) {
      parts.push_back({b, std::min(group.samples, s.batch - b), k, std::min(group.kv_heads, s.kv_heads - k)});
    }
  }
  return parts;
}

AttentionView Moved(AttentionView view, const AttentionShape& s, const Part& part, std::int64_t token) {
  const std::int64_t offset =
      part.first_sample * view.sample + token * view.token + part.first_kv_head * view.kv_head;
  view.data = static_cast<std::byte*>(view.data) + offset * SizeOf(s.dtype);
  return view;
}

// The problem of one execution: its queries begin at the chunk's first, its keys at the sequence's.
AttentionProblem ProblemOf(AttentionProblem p, const AttentionShape& s, const Part& part,
                           const QueryChunk& chunk) {
  p.batch = part.samples;
  p.heads = part.kv_heads * s.group();
  p.kv_heads = part.kv_heads;
  p.queries = chunk.count;
  p.keys = chunk.keys;
  for (AttentionView* view : {&p.q, &p.o, &p.d_o, &p.dq}) *view = Moved(*view, s, part, chunk.first);
  for (AttentionView* view : {&p.k, &p.v, &p.dk, &p.dv}) *view = Moved(*view, s, part, 0);
  p.lse.data += part.first_sample * p.lse.sample + chunk.first * p.lse.token +
                part.first_kv_head * s.group() * p.lse.head;
  return p;
}

// Several query heads of several kv heads are evenly spaced (scratch_attention.cpp sees to that).
HeadStrides QueryStrides(const AttentionView& view, const AttentionShape& s) {
  return {view.sample, s.group() == 1 ? view.kv_head : view.head, view.token};
}
HeadStrides KeyStrides(const AttentionView& view) { return {view.sample, view.kv_head, view.token}; }

AttentionSpec SpecOf(const AttentionProblem& p, const AttentionShape& s, bool backward, bool deterministic) {
  AttentionSpec spec{.backward = backward,
                     .deterministic = deterministic,
                     .batch = p.batch,
                     .queries = p.queries,
                     .keys = p.keys,
                     .heads = p.heads,
                     .kv_heads = p.kv_heads,
                     .head = p.head,
                     .value_head = p.value_head,
                     .window = p.window < p.keys ? p.window : 0,
                     .dtype = p.dtype,
                     .scale = p.scale,
                     .q = QueryStrides(p.q, s),
                     .k = KeyStrides(p.k),
                     .v = KeyStrides(p.v),
                     .o = QueryStrides(p.o, s),
                     .lse = {p.lse.sample, p.lse.head, p.lse.token}};
  if (!backward) return spec;
  spec.d_o = QueryStrides(p.d_o, s);
  spec.dq = QueryStrides(p.dq, s);
  spec.dk = KeyStrides(p.dk);
  spec.dv = KeyStrides(p.dv);
  return spec;
}

// What an execution works on in the scratch of its instruction.
AttentionOperands OperandsOf(const AttentionProblem& p, std::byte* scratch,
                             const AttentionGradLayout& layout) {
  return {.q = p.q.data,
          .k = p.k.data,
          .v = p.v.data,
          .o = p.o.data,
          .lse = p.lse.data,
          .d_o = p.d_o.data,
          .dq = p.dq.data,
          .dk = p.dk.data,
          .dv = p.dv.data,
          .row_sums = scratch + layout.row_sums,
          .accumulator = scratch + layout.accumulator,
          .workspace = scratch};
}

// Gradients of keys, or of values, that are summed: one execution's, and the kernel that adds them.
struct KeyGradients {
  AttentionView part;
  AttentionKeySum sum;
};
KeyGradients SumOf(const AttentionProblem& p, const AttentionShape& s, const AttentionView& out,
                   std::int64_t head, std::byte* part, std::byte* sum) {
  const AttentionView view = {part, p.keys * p.kv_heads * head, p.kv_heads * head, head, head};
  return {view,
          {.dtype = p.dtype,
           .samples = p.batch,
           .keys = s.keys,
           .kv_heads = p.kv_heads,
           .head = head,
           .part = part,
           .part_keys = p.keys,
           .sum = reinterpret_cast<float*>(sum),
           .out = out}};
}

// One execution of cuDNN, and what adds its key gradients to those before.
struct AttentionStep {
  AttentionExecution execution;
  std::vector<AttentionKeySum> sums;
};

absl::StatusOr<Enqueue> PrepareWithCudnn(Device& device, const LaunchArgs& args, const AttentionShape& s,
                                         const AttentionProblem& problem, bool backward) {
  ASSIGN_OR_RETURN(const cudnnHandle_t handle, device.cudnn());
  const bool deterministic = device.deterministic();
  const AttentionGradLayout layout = backward ? CudnnGradLayout(s, deterministic) : AttentionGradLayout{};
  const std::int64_t workspace_bytes =
      backward ? layout.workspace_bytes : static_cast<std::int64_t>(args.scratch.size());
  RETURN_IF_ERROR(ExpectScratch(args.instruction->kernel(), args, layout.bytes));
  std::byte* const scratch = args.scratch.data();
  const AttentionGroup group = backward ? BackwardGroup(s, deterministic) : ForwardGroup(s);
  ASSIGN_OR_RETURN(const std::vector<QueryChunk> chunks,
                   QueryChunks(s, PositionsOf(args.inputs[0], s), group.queries));
  auto steps = std::make_shared<std::vector<AttentionStep>>();
  for (const Part& part : PartsOf(s, group)) {
    for (const QueryChunk& chunk : chunks) {
      AttentionProblem p = ProblemOf(problem, s, part, chunk);
      AttentionStep step;
      if (backward && SumsKeyGradients(s, group)) {
        KeyGradients dk = SumOf(p, s, p.dk, s.head, scratch + layout.dk_part, scratch + layout.dk_sum);
        KeyGradients dv = SumOf(p, s, p.dv, s.value_head, scratch + layout.dv_part, scratch + layout.dv_sum);
        dk.sum.first = dv.sum.first = &chunk == &chunks.front();
        dk.sum.last = dv.sum.last = &chunk == &chunks.back();
        p.dk = dk.part;
        p.dv = dv.part;
        step.sums = {dk.sum, dv.sum};
      }
      ASSIGN_OR_RETURN(const auto plan,
                       device.attention_plans().Get(handle, SpecOf(p, s, backward, deterministic)));
      if (plan->workspace_bytes() > workspace_bytes) {
        return Internal("cuDNN {} asks for {} bytes of workspace, the plan gives {}: attention {}",
                        cudnnGetVersion(), plan->workspace_bytes(), workspace_bytes, plan->spec().ToString());
      }
      ASSIGN_OR_RETURN(step.execution, plan->Bind(OperandsOf(p, scratch, layout)));
      steps->push_back(std::move(step));
    }
  }
  return Enqueue([steps, handle, bound = device.compute()](cudaStream_t stream, const KernelContext&) {
    if (stream != bound) return Internal("attention enqueued on another stream than cuDNN's");
    for (const AttentionStep& step : *steps) {
      RETURN_IF_ERROR(step.execution.Run(handle));
      for (const AttentionKeySum& sum : step.sums) AddKeyGradients(sum, stream);
    }
    return ToStatus(cudaGetLastError(), "attention");
  });
}

// ------------------------------------------------------------------------------------------- forms of scores

// Logical index of the first element of a dim that is held as one piece.
absl::StatusOr<std::int64_t> FirstOf(const TensorView& view, int dim) {
  if (view.extent.dims.empty() || view.extent.dims[dim].empty()) return 0;
  if (view.extent.dims[dim].size() == 1) return view.extent.dims[dim][0].start;
  return Unimplemented("attention of this form whose dim {} is held in {} pieces", dim,
                       view.extent.dims[dim].size());
}

// Where the heads here stand among all.
absl::Status PlaceHeads(const TensorView& q, const AttentionShape& s, AttentionProblem* problem) {
  const std::int64_t group = s.packed ? s.group() : 1;  // of a packed tensor, dim 2 is kv heads
  ASSIGN_OR_RETURN(const std::int64_t first, FirstOf(q, 2));
  problem->first_head = first * group;
  problem->logical_heads = q.logical[2] * group;
  return absl::OkStatus();
}

// Where the first of the heads here stands in a tensor of heads, which has all that are here, or more: sinks or biases.
absl::StatusOr<std::int64_t> FirstRowOf(const TensorView& of_heads, std::string_view what,
                                        const AttentionProblem& problem) {
  ASSIGN_OR_RETURN(const std::int64_t first, FirstOf(of_heads, 0));
  const std::int64_t skipped = problem.first_head - first;
  if (skipped >= 0 && skipped + problem.heads <= of_heads.shape[0]) return skipped;
  return Internal("attention of the heads from {} on with {} of {} heads from {} on", problem.first_head,
                  what, of_heads.shape[0], first);
}

// What is known before the launch; the key and the first sample come with it.
absl::StatusOr<AttentionDropout> DropoutOf(const TensorView& q, const AttentionShape& s) {
  AttentionDropout dropout;
  if (s.dropout == 0) return dropout;
  ASSIGN_OR_RETURN(dropout.first_sample, FirstOf(q, 0));
  const Dropping dropping = Dropping::Of(s.dropout);
  dropout.below = dropping.below;
  dropout.scale = static_cast<float>(dropping.scale);
  return dropout;
}

// What a launch does before its kernels where attention has dropout, biases or sinks: it makes the key of the draws, and clears
// gradients that are only added to.
struct Forms {
  std::string stream;  // of the draws; empty: there is no dropout
  std::vector<std::span<std::byte>> cleared;
};
// The gradient, in fp32, of a tensor of heads whose first row here is `row`; what of it is another rank's is zero here.
float* GradientOf(const LaunchArgs& args, std::size_t output, std::int64_t row, Forms* forms) {
  const TensorView& d = args.outputs[output];
  if ((args.accumulate >> output & 1U) == 0) {
    forms->cleared.emplace_back(d.as<std::byte>(),
                                static_cast<std::size_t>(d.shape.elements() * SizeOf(d.dtype)));
  }
  return d.as<float>() + row * (d.shape.elements() / d.shape[0]);
}
absl::StatusOr<Forms> SetForms(const LaunchArgs& args, const AttentionShape& s, bool backward,
                               AttentionProblem* problem) {
  Forms forms;
  ASSIGN_OR_RETURN(problem->dropout, DropoutOf(args.inputs[0], s));
  if (s.dropout > 0) forms.stream = args.instruction->attributes().String("stream");
  if (s.dropout > 0 || s.alibi || s.sinks || s.distance > 0 || s.pairs > 0)
    RETURN_IF_ERROR(PlaceHeads(args.inputs[0], s, problem));
  if (s.packed) return forms;
  const graph::AttentionInputs at = graph::InputsOfAttention(args.inputs, {.backward = backward});
  std::size_t output = 3;  // behind dq, dk and dv
  if (at.has_sinks()) {
    const TensorView& sinks = args.inputs[at.sinks];
    ASSIGN_OR_RETURN(const std::int64_t row, FirstRowOf(sinks, "sinks", *problem));
    problem->sinks = sinks.as<std::byte>() + row * SizeOf(sinks.dtype);
    if (backward) problem->d_sinks = GradientOf(args, output++, row, &forms);
  }
  if (at.has_biases()) {
    const TensorView& biases = args.inputs[at.biases];
    ASSIGN_OR_RETURN(const std::int64_t row, FirstRowOf(biases, "biases", *problem));
    problem->biases =
        biases.as<std::byte>() + row * (biases.shape.elements() / biases.shape[0]) * SizeOf(biases.dtype);
    problem->distance = s.distance;
    problem->pairs = s.pairs;
    if (backward) problem->d_biases = GradientOf(args, output, row, &forms);
  }
  return forms;
}

// Before the kernels of a launch: clears, and says what is drawn in this iteration.
absl::Status BeginForms(const Forms& forms, const KernelContext& context, cudaStream_t stream,
                        AttentionProblem* problem) {
  for (const std::span<std::byte> cleared : forms.cleared)
    RETURN_IF_CUDA_ERROR(cudaMemsetAsync(cleared.data(), 0, cleared.size(), stream));
  if (problem->dropout.below == 0) return absl::OkStatus();
  const PhiloxKey key = MakePhiloxKey(context.seed, forms.stream);
  problem->dropout.key_low = key.low;
  problem->dropout.key_high = key.high;
  problem->dropout.first_sample += context.first_sample;
  problem->dropout.control = context.control;
  return absl::OkStatus();
}

// ----------------------------------------------------------------------------------- with the reference
// kernels

absl::StatusOr<Enqueue> PrepareReference(const LaunchArgs& args, const AttentionShape& s,
                                         AttentionProblem problem, bool backward) {
  const std::int64_t widest = std::max(s.head, s.value_head);
  if (widest > kAttentionReferenceMaxHead) {
    return Unimplemented("attention heads of {} elements; {} is the most", widest,
                         kAttentionReferenceMaxHead);
  }
  if (backward) {
    const std::int64_t rows = s.batch * s.queries * s.heads;
    RETURN_IF_ERROR(ExpectScratch(args.instruction->kernel(), args, rows * SizeOf(DType::kF32)));
    problem.row_sums = reinterpret_cast<float*>(args.scratch.data());
  }
  ASSIGN_OR_RETURN(const Forms forms, SetForms(args, s, backward, &problem));
  return Enqueue([problem, backward, forms](cudaStream_t stream, const KernelContext& context) {
    AttentionProblem now = problem;
    RETURN_IF_ERROR(BeginForms(forms, context, stream, &now));
    backward ? AttentionReferenceGrad(now, stream) : AttentionReference(now, stream);
    return ToStatus(cudaGetLastError(), "attention");
  });
}

// ------------------------------------------------------------------------------------- with kernels of our own

absl::Status SetRuns(const LaunchArgs& args, const AttentionShape& s, Sm90aAttention* attention) {
  ASSIGN_OR_RETURN(const std::vector<QueryChunk> chunks,
                   QueryChunks(s, PositionsOf(args.inputs[0], s), s.queries));
  if (chunks.size() > kMaxQueryRuns)
    return Unimplemented("attention of queries in {} pieces of the sequence; {} are the most", chunks.size(),
                         kMaxQueryRuns);
  attention->runs = static_cast<int>(chunks.size());
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const QueryChunk& chunk = chunks[i];
    attention->run.at(i) = {static_cast<int>(chunk.first), static_cast<int>(chunk.count),
                            static_cast<int>(chunk.keys - chunk.count)};
    if (i > 0 && attention->run.at(i).position < attention->run.at(i - 1).position)
      return Internal("attention of queries whose pieces of the sequence descend");
    if (s.dropout > 0 && attention->run.at(i).position % 16 != 0) {
      return Unimplemented("dropout of attention of queries from position {} on, which is no multiple of 16",
                           attention->run.at(i).position);
    }
  }
  return absl::OkStatus();
}

// Whether each pair of places is seen in all samples, so that the first one's gradients of their biases can be written. Then those are
// not cleared before.
bool SetsBiases(const Sm90aAttention& attention, Forms* forms) {
  const AttentionProblem& p = attention.problem;
  if (p.d_biases == nullptr || p.pairs == 0 || p.causal || p.window > 0 || p.spans != nullptr ||
      attention.runs != 1 || p.queries != p.pairs || p.keys != p.pairs) {
    return false;
  }
  const auto* const first = reinterpret_cast<const std::byte*>(p.d_biases);
  const auto bytes = static_cast<std::size_t>(p.heads * p.pairs * p.pairs) * sizeof(float);
  return std::erase_if(forms->cleared, [&](std::span<const std::byte> cleared) {
           return cleared.data() == first && cleared.size() == bytes;
         }) > 0;
}

absl::StatusOr<Enqueue> PrepareOwn(const Device& device, const LaunchArgs& args, const AttentionShape& s,
                                   const AttentionProblem& problem, bool backward) {
  Sm90aAttention attention{.problem = problem, .multiprocessors = device.properties().multiProcessorCount};
  RETURN_IF_ERROR(SetRuns(args, s, &attention));
  const OwnGradLayout layout = backward ? OwnGradLayoutOf(s) : OwnGradLayout{.bytes = kOwnCounterBytes};
  RETURN_IF_ERROR(ExpectScratch(args.instruction->kernel(), args, layout.bytes));
  std::byte* const scratch = args.scratch.data();
  attention.taken = reinterpret_cast<int*>(scratch + layout.taken);
  if (backward) {
    attention.lse2 = reinterpret_cast<float*>(scratch);
    attention.row_sums = reinterpret_cast<float*>(scratch + layout.row_sums);
    attention.dq_sums = reinterpret_cast<float*>(scratch + layout.dq_sums);
    attention.turns = reinterpret_cast<int*>(scratch + layout.turns);
    attention.key_spans = reinterpret_cast<int*>(scratch + layout.key_spans);
    attention.walks = reinterpret_cast<int*>(scratch + layout.walks);
    attention.first_blocks = reinterpret_cast<int*>(scratch + layout.first_blocks);
    attention.distance_sums = reinterpret_cast<float*>(scratch + layout.distance_sums);
  }
  ASSIGN_OR_RETURN(Forms forms, SetForms(args, s, backward, &attention.problem));
  attention.sets_biases = SetsBiases(attention, &forms);
  return Enqueue([attention, backward, forms = std::move(forms)](cudaStream_t stream,
                                                                 const KernelContext& context) {
    Sm90aAttention now = attention;
    RETURN_IF_ERROR(BeginForms(forms, context, stream, &now.problem));
    return ToStatus(backward ? AttentionGradSm90a(now, stream) : AttentionSm90a(now, stream), "attention");
  });
}

absl::Status ExpectPositions(const LaunchArgs& args, const graph::AttentionInputs& at) {
  if (at.has_positions() || !graph::ReadsPositions(args.instruction->attributes())) return absl::OkStatus();
  return Internal("{}: attention under a causal mask, with dropout or with trained biases, without positions",
                  args.instruction->name);
}

absl::StatusOr<Enqueue> PrepareProblem(Device& device, const LaunchArgs& args, const AttentionShape& s,
                                       const AttentionProblem& problem, bool backward) {
  ASSIGN_OR_RETURN(const AttentionWay way, ChooseAttention(device, args, s, backward));
  AttentionShape grouped = s;
  grouped.grad_group_bytes = way.grad_group_bytes;
  switch (way.kernels) {
    case AttentionKernels::kOwn:
      return PrepareOwn(device, args, s, problem, backward);
    case AttentionKernels::kCudnn:
      return PrepareWithCudnn(device, args, grouped, problem, backward);
    case AttentionKernels::kReference:
      break;
  }
  return PrepareReference(args, s, problem, backward);
}

absl::Status ExpectTypesOfHeads(const LaunchArgs& args, const graph::AttentionInputs& at) {
  const std::vector<TensorView>& in = args.inputs;
  for (const std::size_t input : {at.sinks, at.biases}) {
    if (input == graph::AttentionInputs::kNone) continue;
    RETURN_IF_ERROR(ExpectOneElementType(args.instruction->kernel(), {&in[0], &in[input]}));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Enqueue> PrepareAttention(Device& device, const LaunchArgs& args) {
  const std::vector<TensorView>& in = args.inputs;
  const std::vector<TensorView>& out = args.outputs;
  const graph::AttentionForm form = {};
  const graph::AttentionInputs at = graph::InputsOfAttention(in, form);
  RETURN_IF_ERROR(ExpectOneElementType(args.instruction->kernel(), {&in[0], &in[1], &in[2], &out[0]}));
  RETURN_IF_ERROR(ExpectFloat(args.instruction->kernel(), {&out[1]}));
  RETURN_IF_ERROR(ExpectTypesOfHeads(args, at));
  RETURN_IF_ERROR(ExpectPositions(args, at));
  const AttentionShape s = ShapeOf(device, args, form);
  AttentionProblem problem = SeparateProblem(args, s, at);
  problem.o = QueriesOf(out[0], s);
  problem.lse = LseOf(out[1], s);
  return PrepareProblem(device, args, s, problem, form.backward);
}

absl::StatusOr<Enqueue> PrepareAttentionGrad(Device& device, const LaunchArgs& args) {
  const std::vector<TensorView>& in = args.inputs;
  const std::vector<TensorView>& out = args.outputs;
  const graph::AttentionForm form = {.backward = true};
  const graph::AttentionInputs at = graph::InputsOfAttention(in, form);
  RETURN_IF_ERROR(ExpectOneElementType(args.instruction->kernel(), {&in[0], &in[1], &in[2], &in[at.o],
                                                                    &in[at.d_o], &out[0], &out[1], &out[2]}));
  RETURN_IF_ERROR(ExpectFloat(args.instruction->kernel(), {&in[at.lse]}));
  RETURN_IF_ERROR(ExpectTypesOfHeads(args, at));
  for (std::size_t i = 3; i < out.size(); ++i)
    RETURN_IF_ERROR(ExpectFloat(args.instruction->kernel(), {&out[i]}));
  RETURN_IF_ERROR(ExpectPositions(args, at));
  const AttentionShape s = ShapeOf(device, args, form);
  AttentionProblem problem = SeparateProblem(args, s, at);
  problem.o = QueriesOf(in[at.o], s);
  problem.lse = LseOf(in[at.lse], s);
  problem.d_o = QueriesOf(in[at.d_o], s);
  problem.dq = QueriesOf(out[0], s);
  problem.dk = KeysOf(out[1], s);
  problem.dv = KeysOf(out[2], s);
  return PrepareProblem(device, args, s, problem, form.backward);
}

absl::StatusOr<Enqueue> PrepareAttentionPacked(Device& device, const LaunchArgs& args) {
  const std::vector<TensorView>& in = args.inputs;
  const std::vector<TensorView>& out = args.outputs;
  const graph::AttentionForm form = {.packed = true};
  const graph::AttentionInputs at = graph::InputsOfAttention(in, form);
  RETURN_IF_ERROR(ExpectOneElementType(args.instruction->kernel(), {&in[0], &out[0]}));
  RETURN_IF_ERROR(ExpectFloat(args.instruction->kernel(), {&out[1]}));
  RETURN_IF_ERROR(ExpectPositions(args, at));
  const AttentionShape s = ShapeOf(device, args, form);
  AttentionProblem problem = PackedProblem(args, s, at);
  problem.o = QueriesOf(out[0], s);
  problem.lse = LseOf(out[1], s);
  return PrepareProblem(device, args, s, problem, form.backward);
}

absl::StatusOr<Enqueue> PrepareAttentionPackedGrad(Device& device, const LaunchArgs& args) {
  const std::vector<TensorView>& in = args.inputs;
  const std::vector<TensorView>& out = args.outputs;
  const graph::AttentionForm form = {.backward = true, .packed = true};
  const graph::AttentionInputs at = graph::InputsOfAttention(in, form);
  RETURN_IF_ERROR(
      ExpectOneElementType(args.instruction->kernel(), {&in[0], &in[at.o], &in[at.d_o], &out[0]}));
  RETURN_IF_ERROR(ExpectFloat(args.instruction->kernel(), {&in[at.lse]}));
  RETURN_IF_ERROR(ExpectPositions(args, at));
  const AttentionShape s = ShapeOf(device, args, form);
  AttentionProblem problem = PackedProblem(args, s, at);
  problem.o = QueriesOf(in[at.o], s);
  problem.lse = LseOf(in[at.lse], s);
  problem.d_o = QueriesOf(in[at.d_o], s);
  problem.dq = PackedFrom(out[0], s, 0);
  problem.dk = PackedFrom(out[0], s, s.group());
  problem.dv = PackedFrom(out[0], s, s.group() + 1);
  return PrepareProblem(device, args, s, problem, form.backward);
}

}  // namespace engine::backend::cuda
