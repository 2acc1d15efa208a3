
#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <optional>
#include <string>

#include "engine/graph/op.h"
#include "engine/ops/expert_passes.h"
#include "engine/ops/ops.h"
#include "engine/verify/text.h"
#include "engine/verify/verify.h"

namespace engine::verify {
namespace {

using graph::Signature;
using graph::TensorType;

class PlacementVerifier {
 public:
  explicit PlacementVerifier(const plan::Plan& plan) : plan_(plan) {
    for (graph::Axis axis : graph::kAxes) {
      if (plan.mesh.size(axis) > 1) active_.push_back(axis);
    }
  }

  absl::Status Run() {
    for (const plan::LocalValue& value : plan_.values) {
      const bool slots = value.layout.dims().HasSlots();  // see Slots
      if (!value.layout.Divides(value.shape, plan_.mesh) ||
          (!slots && value.layout.LocalShape(value.shape, plan_.mesh) != value.local)) {
        return Internal("{} {} with layout {} is {} on a rank", value.name, value.shape.ToString(),
                        value.layout.ToString(), value.local.ToString());
      }
      for (const plan::Split& split : value.layout.splits()) {
        const graph::AxisRule& rule = graph::RuleOf(split.axis);
        const bool trained = value.parameter >= 0;
        if ((trained ? rule.parameters : rule.activations).Has(split.meaning) || value.shape.rank() == 0)
          continue;
        return Internal("{} with layout {}: {} splits no such dim as {}", value.name, value.layout.ToString(),
                        NameOfAxis(split.axis), split.dim);
      }
    }
    RETURN_IF_ERROR(OneLayoutEach());
    for (size_t s = 0; s < plan_.stages.size(); ++s) {
      for (const plan::Segment& segment : plan_.stages[s].segments) {
        for (size_t i = 0; i < segment.instructions.size(); ++i) {
          const plan::Instruction& instruction = segment.instructions[i];
          absl::Status status;
          if (instruction.op() != nullptr) {
            status = Op(instruction);
          } else if (instruction.collective() != plan::Collective::kNone && !instruction.IsBucketExchange()) {
            status = Conversion(instruction);
          }
          if (!status.ok()) {
            return WithContext(status, InstructionName(static_cast<std::int32_t>(s), segment, i));
          }
        }
      }
    }
    return absl::OkStatus();
  }

 private:
  // Programs read the same bytes of a parameter or a state: these lie the same way in all of them.
  absl::Status OneLayoutEach() const {
    absl::flat_hash_map<std::string, const plan::LocalValue*> first;
    for (const plan::LocalValue& value : plan_.values) {
      if (value.kind != graph::ValueKind::kParameter && value.kind != graph::ValueKind::kState) continue;
      const plan::LocalValue& before = *first.try_emplace(value.name, &value).first->second;
      if (!(before.layout == value.layout))
        return Internal("{} has the layouts {} and {}", value.name, before.layout.ToString(),
                        value.layout.ToString());
    }
    return absl::OkStatus();
  }

  const plan::Layout& LayoutOf(const plan::BufferRef& ref) const { return ValueOf(plan_, ref).layout; }

  // How many rows of experts a rank has of it; −1: its dims are others.
  std::int64_t RowsOf(const plan::BufferRef& ref) const {
    if (ref.value < 0) return -1;
    const plan::LocalValue& value = ValueOf(plan_, ref);
    for (int dim = 0; dim < value.local.rank(); ++dim) {
      if (value.layout.dims()[dim] == graph::Dim::kSlot) return value.local[dim];
    }
    return -1;
  }

  // Of an op in FP8, whose outputs have the rows of its inputs.
  absl::Status SameRows(const plan::Instruction& instruction) const {
    for (const plan::BufferRef& made : instruction.outputs) {
      const std::int64_t rows = RowsOf(made);
      if (rows < 0 || std::any_of(instruction.inputs.begin(), instruction.inputs.end(),
                                  [&](const plan::BufferRef& from) { return RowsOf(from) == rows; }))
        continue;
      return Internal("{} has {} rows on a rank, and what {} reads has others", ValueOf(plan_, made).name,
                      rows, instruction.kernel());
    }
    return absl::OkStatus();
  }

  // A tensor of rows has on a rank the size that its op gives it, of what the rank has, and is not converted.
  absl::Status Slots(const plan::Instruction& instruction) const {
    const auto has_slots = [&](const plan::BufferRef& ref) {
      return ref.value >= 0 && LayoutOf(ref).dims().HasSlots();
    };
    if (std::none_of(instruction.outputs.begin(), instruction.outputs.end(), has_slots))
      return absl::OkStatus();
    if (instruction.op()->infer == nullptr) return SameRows(instruction);
    std::vector<TensorType> types;
    for (const plan::BufferRef& ref : instruction.inputs) {
      const plan::LocalValue& value = ValueOf(plan_, ref);
      types.push_back({value.local, value.dtype, value.layout.dims()});
    }
    ASSIGN_OR_RETURN(const std::vector<TensorType> made,
                     instruction.op()->infer(types, instruction.AsKernel()->attributes));
    for (size_t i = 0; i < instruction.outputs.size(); ++i) {
      const plan::BufferRef& ref = instruction.outputs[i];
      if (!has_slots(ref) || ValueOf(plan_, ref).local == made[i].shape) continue;
      return Internal("{} is {} on a rank, which {} makes {}", ValueOf(plan_, ref).name,
                      ValueOf(plan_, ref).local.ToString(), instruction.kernel(), made[i].shape.ToString());
    }
    return absl::OkStatus();
  }

  // Experts in passes come to an end: the windows hold all rows that there may be, and the scratch holds a window.
  absl::Status Passes(const plan::Instruction& instruction) const {
    if (instruction.op() != &ops::kExpertPasses && instruction.op() != &ops::kExpertPassesGrad)
      return absl::OkStatus();
    std::vector<TensorType> types;
    for (const plan::BufferRef& ref : instruction.inputs) {
      const plan::LocalValue& value = ValueOf(plan_, ref);
      types.push_back({value.local, value.dtype, value.layout.dims()});
    }
    const std::int64_t passes = instruction.attributes().Int("passes");
    if (passes < 1) return Internal("{} works in {} passes", instruction.kernel(), passes);
    const graph::WindowSizes sizes = ops::WindowsOf(types, instruction.attributes());
    const std::int64_t row = (sizes.width + sizes.hidden + sizes.ffn) * SizeOf(types[ops::kPassX].dtype);
    const std::int64_t holds = instruction.scratch.bytes() / std::max<std::int64_t>(row, 1);
    if (passes * holds >= sizes.bound) return absl::OkStatus();
    return Internal("{} has {} passes with scratch for {} rows, and a rank may have {}", instruction.kernel(),
                    passes, holds, sizes.bound);
  }

  absl::Status Op(const plan::Instruction& instruction) const {
    RETURN_IF_ERROR(Slots(instruction));
    std::vector<TensorType> types;
    for (const std::vector<plan::BufferRef>* refs : {&instruction.inputs, &instruction.outputs}) {
      for (const plan::BufferRef& ref : *refs) {
        if (ref.value < 0) return Internal("{} takes a buffer that is no tensor", instruction.kernel());
      }
    }
    RETURN_IF_ERROR(Passes(instruction));
    for (const plan::BufferRef& ref : instruction.inputs) {
      const plan::LocalValue& value = ValueOf(plan_, ref);
      types.push_back({value.shape, value.dtype, value.layout.dims()});
    }
    for (graph::Axis axis : active_) {
      if (instruction.op()->compose != nullptr ? LawfulComposition(instruction, types, axis)
                                               : Lawful(instruction, types, axis)) {
        continue;
      }
      return Internal("({}) -> ({}) along {} is no lawful placement of {}", Along(instruction.inputs, axis),
                      Along(instruction.outputs, axis), NameOfAxis(axis), instruction.kernel());
    }
    return absl::OkStatus();
  }

  bool Lawful(const plan::Instruction& instruction, graph::TypeSpan types, graph::Axis axis) const {
    if (instruction.op()->signatures == nullptr) return false;
    const std::vector<Signature> lawful =
        instruction.op()->signatures(types, instruction.attributes(), graph::RuleOf(axis));
    return std::any_of(lawful.begin(), lawful.end(), [&](const Signature& signature) {
      return Matches(instruction.inputs, signature.inputs, axis) &&
             Matches(instruction.outputs, signature.outputs, axis);
    });
  }

  // A fused op is placed lawfully where each op that it is composed of is, for some placement of what lies
  // between.
  bool LawfulComposition(const plan::Instruction& instruction, graph::TypeSpan types,
                         graph::Axis axis) const {
    graph::Graph graph;
    graph::ValueIds inputs;
    for (const graph::TensorType& type : types) inputs.push_back(graph.AddInput("", type));
    const graph::ValueIds outputs = instruction.op()->compose(&graph, inputs, instruction.attributes());
    if (outputs.size() != instruction.outputs.size()) return false;
    Composition composition{.graph = graph, .axis = axis, .known = {}, .wanted = {}};
    composition.known.resize(graph.values().size());
    composition.wanted.resize(graph.values().size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      composition.known[static_cast<size_t>(inputs[i])] = LayoutOf(instruction.inputs[i]).At(axis);
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      composition.wanted[static_cast<size_t>(outputs[i])] = LayoutOf(instruction.outputs[i]).At(axis);
    }
    return composition.LawfulFrom(0);
  }

  struct Composition {
    const graph::Graph& graph;
    graph::Axis axis;
    std::vector<std::optional<graph::Placement>> known;
    std::vector<std::optional<graph::Placement>> wanted;

    // Whether nodes from `n` on can be placed, given what is known of the values before them.
    bool LawfulFrom(size_t n) {
      if (n == graph.nodes().size()) return true;
      const graph::Node& node = graph.nodes()[n];
      std::vector<graph::TensorType> types;
      for (graph::ValueId v : node.inputs) types.push_back(graph.value(v).type);
      for (const Signature& signature : node.op->signatures(types, node.attributes, graph::RuleOf(axis))) {
        if (!Takes(node, signature)) continue;
        for (size_t i = 0; i < node.outputs.size(); ++i) {
          known[static_cast<size_t>(node.outputs[i])] = signature.outputs[i];
        }
        if (LawfulFrom(n + 1)) return true;
      }
      return false;
    }

    bool Takes(const graph::Node& node, const Signature& signature) const {
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (known[static_cast<size_t>(node.inputs[i])] != signature.inputs[i]) return false;
      }
      for (size_t i = 0; i < node.outputs.size(); ++i) {
        const std::optional<graph::Placement>& want = wanted[static_cast<size_t>(node.outputs[i])];
        if (want.has_value() && *want != signature.outputs[i]) return false;
      }
      return true;
    }
  };

  bool Matches(const std::vector<plan::BufferRef>& refs, const std::vector<graph::Placement>& placements,
               graph::Axis axis) const {
    if (refs.size() != placements.size()) return false;
    for (size_t i = 0; i < refs.size(); ++i) {
      if (LayoutOf(refs[i]).At(axis) != placements[i]) return false;
    }
    return true;
  }

  std::string Along(const std::vector<plan::BufferRef>& refs, graph::Axis axis) const {
    std::string text;
    for (const plan::BufferRef& ref : refs) {
      text += (text.empty() ? "" : ", ") + LayoutOf(ref).At(axis).ToString();
    }
    return text;
  }

  // The table of plan.h: Collective.
  static plan::Collective Expected(graph::Placement from, graph::Placement to) {
    if (from.partial() && to.replicated()) return plan::Collective::kAllReduce;
    if (from.partial() && to.split()) return plan::Collective::kReduceScatter;
    if (from.split() && to.replicated()) return plan::Collective::kAllGather;
    if (from.split() && to.split()) return plan::Collective::kAllToAll;
    if (from.replicated() && to.split()) return plan::Collective::kSlice;
    return plan::Collective::kNone;  // nothing makes a partial sum
  }

  absl::Status Conversion(const plan::Instruction& instruction) const {
    if (instruction.inputs.size() != 1 || instruction.outputs.size() != 1 ||
        instruction.inputs[0].value < 0 || instruction.outputs[0].value < 0) {
      return Internal("a conversion takes one tensor and makes one");
    }
    const plan::LocalValue& from = ValueOf(plan_, instruction.inputs[0]);
    const plan::LocalValue& to = ValueOf(plan_, instruction.outputs[0]);
    if (from.shape != to.shape || from.dtype != to.dtype) {
      return Internal("a conversion changes {}{} to {}{}", Name(from.dtype), from.shape.ToString(),
                      Name(to.dtype), to.shape.ToString());
    }
    for (graph::Axis axis : active_) {
      if (axis != instruction.AsConversion()->axis && from.layout.At(axis) != to.layout.At(axis)) {
        return Internal("a conversion along {} changes {} to {} along {}",
                        NameOfAxis(instruction.AsConversion()->axis), from.layout.At(axis).ToString(),
                        to.layout.At(axis).ToString(), NameOfAxis(axis));
      }
    }
    const graph::Placement before = from.layout.At(instruction.AsConversion()->axis);
    const graph::Placement after = to.layout.At(instruction.AsConversion()->axis);
    const plan::Collective expected = Expected(before, after);
    if (instruction.collective() != expected || instruction.kernel() != Name(instruction.collective())) {
      return Internal("{} to {} along {} is {}, not {}", before.ToString(), after.ToString(),
                      NameOfAxis(instruction.AsConversion()->axis), Name(expected), instruction.kernel());
    }
    for (const plan::Layout* layout : {&from.layout, &to.layout}) {
      if (IsInnermost(*layout, instruction.AsConversion()->axis)) continue;
      return Internal("{} to {} along {} reaches inside another axis' split of that dim",
                      from.layout.ToString(), to.layout.ToString(),
                      NameOfAxis(instruction.AsConversion()->axis));
    }
    if (before.partial() && before.reduction != instruction.reduction()) {
      return Internal("{} of a {} uses another reduction", instruction.kernel(), before.ToString());
    }
    return absl::OkStatus();
  }

  // Whether no other axis cuts within the split along `axis`: a collective exchanges whole parts of that.
  static bool IsInnermost(const plan::Layout& layout, graph::Axis axis) {
    bool is_inside = false;
    for (const plan::Split& split : layout.splits()) {
      if (is_inside && graph::Placement::S(split.dim) == layout.At(axis)) return false;
      is_inside = is_inside || split.axis == axis;
    }
    return true;
  }

  static const char* NameOfAxis(graph::Axis axis) { return graph::kAxisNames[static_cast<size_t>(axis)]; }

  const plan::Plan& plan_;
  std::vector<graph::Axis> active_;
};

}  // namespace

absl::Status VerifyPlacements(const plan::Plan& plan) { return PlacementVerifier(plan).Run(); }

}  // namespace engine::verify
