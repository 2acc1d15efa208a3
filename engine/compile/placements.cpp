#include "engine/compile/placements.h"

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <tuple>

#include "engine/graph/op.h"
#include "engine/ops/ops.h"

namespace engine::compile {
namespace {

using graph::Graph;
using graph::kAxes;
using graph::kNoValue;
using graph::Node;
using graph::Pin;
using graph::Signature;
using graph::TensorType;
using graph::ValueId;
using graph::ValueKind;

plan::Collective ConversionOf(graph::Placement from, graph::Placement to) {
  if (from == to) return plan::Collective::kNone;
  if (from.partial()) return to.split() ? plan::Collective::kReduceScatter : plan::Collective::kAllReduce;
  if (from.replicated()) return plan::Collective::kSlice;
  return to.split() ? plan::Collective::kAllToAll : plan::Collective::kAllGather;
}

bool Convertible(graph::Placement from, graph::Placement to) { return from == to || !to.partial(); }

class Placer {
 public:
  Placer(const Graph& graph, const PlacementOptions& options) : graph_(graph), options_(options) {
    result_.value_of.assign(graph.values().size(), -1);
    parameter_known_.assign(graph.values().size(), {false, false, false, false});
  }

  absl::StatusOr<LocalGraph> Run() {
    for (size_t id = 0; id < graph_.values().size(); ++id) {
      RETURN_IF_ERROR(AddLeaf(static_cast<ValueId>(id)));
    }
    for (const graph::State& state : graph_.states())
      result_.states.push_back(
          {.value = result_.value_of[static_cast<size_t>(state.value)], .spec = state.spec});
    for (const Node& node : graph_.nodes()) RETURN_IF_ERROR(Place(node));
    for (plan::LocalValue& value : result_.values)
      value.local = value.layout.LocalShape(value.shape, options_.mesh);
    return std::move(result_);
  }

 private:
  // Signatures chosen for one node, by axis; null on axes of size 1.
  using Choice = std::array<const Signature*, 4>;

  // The signatures of an op along each active axis, of these inputs: the blocks of a model have the same.
  struct Lawful {
    std::vector<TensorType> types;
    const graph::Attributes* attributes = nullptr;
    std::array<std::vector<Signature>, 4> lists;
  };

  const Lawful& LawfulFor(const Node& node) {
    std::vector<std::unique_ptr<Lawful>>& known = lawful_[node.op];
    for (const std::unique_ptr<Lawful>& lawful : known) {
      const auto same = [&](const TensorType& type, ValueId input) {
        return type == graph_.value(input).type && type.dims == graph_.value(input).type.dims;
      };
      if (std::equal(lawful->types.begin(), lawful->types.end(), node.inputs.begin(), node.inputs.end(),
                     same) &&
          lawful->attributes->items() == node.attributes.items()) {
        return *lawful;
      }
    }
    Lawful& lawful = *known.emplace_back(std::make_unique<Lawful>());
    for (ValueId input : node.inputs) lawful.types.push_back(graph_.value(input).type);
    lawful.attributes = &node.attributes;
    for (graph::Axis axis : kAxes) {
      if (!Active(axis)) continue;
      lawful.lists[static_cast<size_t>(axis)] =
          node.op->signatures(lawful.types, node.attributes, graph::RuleOf(axis));
    }
    return lawful;
  }

  bool Active(graph::Axis axis) const { return options_.mesh.size(axis) > 1; }

  std::int32_t NewValue(std::string name, const TensorType& type, plan::Layout layout, ValueKind kind,
                        ValueId source) {
    result_.values.push_back({.name = std::move(name),
                              .shape = type.shape,
                              .dtype = type.dtype,
                              .layout = std::move(layout),
                              .local = {},
                              .kind = kind,
                              .source = source});
    return static_cast<std::int32_t>(result_.values.size() - 1);
  }

  absl::Status AddLeaf(ValueId id) {
    const graph::Value& value = graph_.value(id);
    if (value.kind == ValueKind::kActivation) return absl::OkStatus();
    plan::Layout layout(value.type.dims);
    if (value.kind == ValueKind::kInput) {
      // The first dim that means so; where there is none, the input is whole along the axis.
      const auto split = [&](graph::Axis axis, bool (*wanted)(graph::Dim)) -> absl::Status {
        const auto found = std::find_if(value.type.dims.begin(), value.type.dims.end(), wanted);
        if (!Active(axis) || found == value.type.dims.end()) return absl::OkStatus();
        const int dim = static_cast<int>(found - value.type.dims.begin());
        if (layout.Set(axis, graph::Placement::S(dim)) && layout.Divides(value.type.shape, options_.mesh)) {
          return absl::OkStatus();
        }
        return InvalidArgument("{} {} has no lawful placement along {} = {}", value.name,
                               value.type.shape.ToString(), graph::kAxisNames[static_cast<size_t>(axis)],
                               options_.mesh.size(axis));
      };
      const auto samples = [](graph::Dim dim) { return dim == graph::Dim::kSample; };
      RETURN_IF_ERROR(split(graph::Axis::kDp, samples));
      RETURN_IF_ERROR(split(graph::Axis::kEp, samples));
      RETURN_IF_ERROR(split(graph::Axis::kCp, graph::IsSequence));
    }
    result_.value_of[static_cast<size_t>(id)] = NewValue(value.name, value.type, layout, value.kind, id);
    return absl::OkStatus();
  }

  plan::LocalValue& Local(ValueId id) {
    return result_.values[static_cast<size_t>(result_.value_of[static_cast<size_t>(id)])];
  }
  const plan::LocalValue& Local(ValueId id) const {
    return result_.values[static_cast<size_t>(result_.value_of[static_cast<size_t>(id)])];
  }

  // A leaf whose placement along this axis the first node to touch it decides.
  bool Undecided(ValueId id, graph::Axis axis) const {
    const ValueKind kind = graph_.value(id).kind;
    return (kind == ValueKind::kParameter || kind == ValueKind::kAccumulator) &&
           !parameter_known_[static_cast<size_t>(id)][static_cast<size_t>(axis)];
  }

  std::optional<graph::Placement> PinOf(ValueId id, graph::Axis axis) const {
    if (axis != graph::Axis::kTp) return std::nullopt;
    switch (graph_.value(id).pin) {
      case Pin::kNone:
        return std::nullopt;
      case Pin::kReplicated:
        return graph::Placement::R();
      case Pin::kResidual:
        return options_.sequence_parallel ? TokenSplit(graph_.value(id).type) : graph::Placement::R();
    }
    return std::nullopt;
  }

  // How sequence parallelism splits tokens: by samples where they suffice, as the parts are contiguous then, else by
  // the sequence; not at all where there is none.
  graph::Placement TokenSplit(const TensorType& type) const {
    std::int64_t parts = options_.mesh.size(graph::Axis::kTp);
    for (const graph::Axis axis : {graph::Axis::kDp, graph::Axis::kEp}) parts *= options_.mesh.size(axis);
    for (int dim = 0; dim < type.shape.rank(); ++dim) {
      if (type.meaning(dim) == graph::Dim::kSample && type.shape[dim] % parts == 0)
        return graph::Placement::S(dim);
    }
    return SequenceSplit(type);
  }

  static graph::Placement SequenceSplit(const TensorType& type) {
    for (int dim = 0; dim < type.shape.rank(); ++dim) {
      if (graph::IsSequence(type.meaning(dim))) return graph::Placement::S(dim);
    }
    return graph::Placement::R();
  }

  // Bytes on the wire to bring a tensor of `bytes` (whole) from one placement to another; nullopt:
  // impossible.
  static std::optional<double> ConversionCost(graph::Placement from, graph::Placement to, double bytes,
                                              std::int64_t size) {
    if (!Convertible(from, to)) return std::nullopt;
    const double n = static_cast<double>(size);
    switch (ConversionOf(from, to)) {
      case plan::Collective::kNone:
      case plan::Collective::kSlice:
        return 0.0;
      case plan::Collective::kAllReduce:
        return 2.0 * bytes * (n - 1) / n;
      case plan::Collective::kReduceScatter:
      case plan::Collective::kAllGather:
        return bytes * (n - 1) / n;
      case plan::Collective::kAllToAll:
        return bytes / n * (n - 1) / n;
    }
    return std::nullopt;
  }

  static double WholeBytes(const TensorType& type) {
    return static_cast<double>(type.shape.elements()) * static_cast<double>(SizeOf(type.dtype));
  }

  // Whether a tensor with this layout can be brought to `to` along `axis`.
  bool CanSet(const plan::Layout& layout, const Shape& shape, graph::Axis axis, graph::Placement to) const {
    plan::Layout after = layout;
    if (!after.Set(axis, to)) return false;
    if (!to.split()) return true;
    const auto& splits = after.splits();
    const auto at = std::find(splits.begin(), splits.end(), plan::Split{axis, to.dim});
    const bool inner =
        std::any_of(at + 1, splits.end(), [&](const plan::Split& s) { return s.dim == to.dim; });
    return !inner && after.Divides(shape, options_.mesh);
  }

  // A gradient accumulator has its parameter's split; where the parameter is whole it is whole or a partial
  // sum.
  bool AccumulatorAccepts(ValueId accumulator, graph::Axis axis, graph::Placement output) const {
    if (!Undecided(accumulator, axis)) return Local(accumulator).layout.At(axis) == output;
    const ValueId parameter = graph_.value(accumulator).gradient_of;
    if (parameter == kNoValue) return !output.split();
    const graph::Placement split = Local(parameter).layout.At(axis);
    return split.split() ? output == split : !output.split();
  }

  // Bytes on the wire, and conversions, which decide among equals.
  using Price = std::pair<double, int>;

  static bool MaySplit(graph::Axis axis, const TensorType& type, graph::Placement placement) {
    return !placement.split() || graph::RuleOf(axis).activations.Has(type.meaning(placement.dim));
  }

  std::optional<Price> Cost(const Node& node, graph::Axis axis, const Signature& signature,
                            const std::vector<plan::Layout>& layouts) const {
    const std::int64_t size = options_.mesh.size(axis);
    Price cost = {0.0, 0};
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId input = node.inputs[i];
      const graph::Value& value = graph_.value(input);
      const graph::Placement want = signature.inputs[i];
      if (value.kind == ValueKind::kParameter) {
        if (!Undecided(input, axis)) {
          if (Local(input).layout.At(axis) != want) return std::nullopt;
        } else if (want.split() && (!graph::RuleOf(axis).parameters.Has(value.type.meaning(want.dim)) ||
                                    value.type.shape[want.dim] % size != 0)) {
          return std::nullopt;
        }
        continue;
      }
      const graph::Placement have = layouts[i].At(axis);
      if (!MaySplit(axis, value.type, want)) return std::nullopt;
      if (have == want) continue;
      if (!CanSet(layouts[i], value.type.shape, axis, want)) return std::nullopt;
      const std::optional<double> bytes = ConversionCost(have, want, WholeBytes(value.type), size);
      if (!bytes) return std::nullopt;
      cost.first += *bytes;
      ++cost.second;
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const ValueId output = node.outputs[i];
      const graph::Value& value = graph_.value(output);
      const graph::Placement made = signature.outputs[i];
      if (value.kind == ValueKind::kAccumulator) {
        if (!AccumulatorAccepts(output, axis, made)) return std::nullopt;
        continue;
      }
      if (made.split() && value.type.shape[made.dim] % size != 0) return std::nullopt;
      if (const std::optional<graph::Placement> pin = PinOf(output, axis)) {
        const std::optional<double> bytes = ConversionCost(made, *pin, WholeBytes(value.type), size);
        if (!bytes) return std::nullopt;
        cost.first += *bytes;
        cost.second += made == *pin ? 0 : 1;
      } else if (axis == graph::Axis::kCp && made.split() && made != SequenceSplit(value.type)) {
        // Heads, which the next op that splits the sequence will exchange back.
        cost.first += *ConversionCost(made, SequenceSplit(value.type), WholeBytes(value.type), size);
        ++cost.second;
      } else if (made.partial()) {
        // Somebody will have to sum it: a reduce-scatter at least.
        cost.first += *ConversionCost(made, graph::Placement::S(0), WholeBytes(value.type), size);
        ++cost.second;
      }
    }
    return cost;
  }

  absl::Status Choose(const Node& node, std::vector<plan::Layout>* layouts, Choice* choice) {
    const Lawful& lawful = LawfulFor(node);
    for (graph::Axis axis : kAxes) {
      if (!Active(axis)) continue;
      const Signature* best = nullptr;
      Price best_cost;
      for (const Signature& signature : lawful.lists[static_cast<size_t>(axis)]) {
        const std::optional<Price> cost = Cost(node, axis, signature, *layouts);
        if (!cost) continue;
        // Along cp, what comes later in the op's order must save a tenth: attention on whole sequences of
        // some heads runs faster than on slices of the sequence.
        const bool cheaper =
            axis == graph::Axis::kCp ? cost->first < 0.9 * best_cost.first : *cost < best_cost;
        const bool better = best == nullptr || (best->fallback && !signature.fallback) ||
                            (best->fallback == signature.fallback && cheaper);
        if (!better) continue;
        best = &signature;
        best_cost = *cost;
      }
      if (best == nullptr) {
        std::string inputs;
        for (size_t i = 0; i < node.inputs.size(); ++i) {
          inputs += fmt::format("{}{} [{}]", i > 0 ? ", " : "", graph_.value(node.inputs[i]).name,
                                (*layouts)[i].ToString());
        }
        return InvalidArgument("{} ({}) of {} has no lawful placement along {} = {}", node.name,
                               node.op->name, inputs, graph::kAxisNames[static_cast<size_t>(axis)],
                               options_.mesh.size(axis));
      }
      (*choice)[static_cast<size_t>(axis)] = best;
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (!(*layouts)[i].Set(axis, best->inputs[i])) return Internal("{}: unlawful nesting", node.name);
      }
    }
    return absl::OkStatus();
  }

  // The value `from` converted to `want` for nodes of this layer and phase; emits what is missing.
  std::int32_t Convert(std::int32_t from, const plan::Layout& want, const Node& reader, bool share) {
    std::int32_t at = from;
    if (result_.values[static_cast<size_t>(at)].layout == want) return at;
    // Taking splits back and summing first, innermost (tp) before outer; then cutting.
    for (const bool cut : {false, true}) {
      for (graph::Axis axis : kAxes) {
        const graph::Placement have = result_.values[static_cast<size_t>(at)].layout.At(axis);
        const graph::Placement to = want.At(axis);
        if (have == to || have.replicated() != cut) continue;
        at = ConvertAxis(at, axis, to, reader, share);
      }
    }
    return at;
  }

  std::int32_t ConvertAxis(std::int32_t from, graph::Axis axis, graph::Placement to, const Node& reader,
                           bool share) {
    const plan::LocalValue source = result_.values[static_cast<size_t>(from)];
    plan::Layout layout = source.layout;
    const plan::Collective collective = ConversionOf(layout.At(axis), to);
    const graph::Reduction reduction = layout.At(axis).reduction;
    const bool possible = layout.Set(axis, to);
    ENGINE_CHECK(possible, "{}: {} to {} along {}", reader.name, source.layout.ToString(), to.ToString(),
                 graph::kAxisNames[static_cast<size_t>(axis)]);
    const auto key = std::make_tuple(from, layout.ToString(), reader.phase, reader.unit);
    if (share) {
      if (const auto it = shared_.find(key); it != shared_.end()) return it->second;
      // What the forward pass exchanged takes no more memory than what it was made of, so it is saved.
      const auto before = shared_.find({from, layout.ToString(), graph::Phase::kForward, reader.unit});
      if (collective == plan::Collective::kAllToAll && before != shared_.end()) return before->second;
    }
    const std::int32_t made = NewValue(fmt::format("{}@{}", source.name, layout.ToString()),
                                       {.shape = source.shape, .dtype = source.dtype, .dims = layout.dims()},
                                       layout, ValueKind::kActivation, source.source);
    result_.nodes.push_back({.op = nullptr,
                             .collective = collective,
                             .axis = axis,
                             .reduction = reduction,
                             .name = fmt::format("{}.{}", source.name, Name(collective)),
                             .inputs = {from},
                             .outputs = {made},
                             .attributes = {},
                             .accumulate = 0,
                             .phase = reader.phase,
                             .unit = reader.unit});
    if (share) shared_[key] = made;
    return made;
  }

  void Decide(ValueId leaf, graph::Axis axis, graph::Placement placement) {
    auto& known = parameter_known_[static_cast<size_t>(leaf)][static_cast<size_t>(axis)];
    if (known) return;
    known = true;
    Local(leaf).layout.Set(axis, placement);
  }

  absl::Status Place(const Node& node) {
    std::vector<plan::Layout> layouts;
    for (ValueId input : node.inputs) layouts.push_back(Local(input).layout);
    Choice choice = {nullptr, nullptr, nullptr, nullptr};
    RETURN_IF_ERROR(Choose(node, &layouts, &choice));
    LocalNode local{.op = node.op,
                    .collective = plan::Collective::kNone,
                    .axis = graph::Axis::kTp,
                    .reduction = graph::Reduction::kSum,
                    .name = node.name,
                    .inputs = {},
                    .outputs = {},
                    .attributes = node.attributes,
                    .accumulate = 0,
                    .phase = node.phase,
                    .unit = node.unit};
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId input = node.inputs[i];
      std::int32_t value = result_.value_of[static_cast<size_t>(input)];
      if (graph_.value(input).kind == ValueKind::kParameter) {
        for (graph::Axis axis : kAxes) Decide(input, axis, layouts[i].At(axis));
      } else {
        value = Convert(value, layouts[i], node, /*share=*/true);
      }
      local.inputs.push_back(value);
    }
    return PlaceOutputs(node, choice, std::move(local));
  }

  absl::Status PlaceOutputs(const Node& node, const Choice& choice, LocalNode local) {
    std::vector<std::pair<ValueId, plan::Layout>> pinned;
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const ValueId output = node.outputs[i];
      const graph::Value& value = graph_.value(output);
      plan::Layout layout(value.type.dims);
      for (graph::Axis axis : kAxes) {
        const Signature* signature = choice[static_cast<size_t>(axis)];
        const graph::Placement made = signature == nullptr ? graph::Placement::R() : signature->outputs[i];
        if (value.kind == ValueKind::kAccumulator) {
          Decide(output, axis, made);
        } else {
          layout.Set(axis, made);
        }
      }
      if (value.kind == ValueKind::kAccumulator) {
        local.accumulate |= 1U << i;
        local.outputs.push_back(result_.value_of[static_cast<size_t>(output)]);
        continue;
      }
      if (value.kind == ValueKind::kState) {
        if (!(layout == Local(output).layout)) {
          return Internal("{} ({}) makes {} of the state {}, which is whole on every rank", node.name,
                          node.op->name, layout.ToString(), value.name);
        }
        local.outputs.push_back(result_.value_of[static_cast<size_t>(output)]);
        continue;
      }
      plan::Layout want = layout;
      if (Active(graph::Axis::kTp)) {
        if (const std::optional<graph::Placement> pin = PinOf(output, graph::Axis::kTp))
          want.Set(graph::Axis::kTp, *pin);
      }
      const std::int32_t made = NewValue(value.name, value.type, layout, ValueKind::kActivation, output);
      result_.value_of[static_cast<size_t>(output)] = made;
      local.outputs.push_back(made);
      if (!(want == layout)) pinned.emplace_back(output, want);
    }
    result_.nodes.push_back(std::move(local));
    for (const auto& [output, want] : pinned) {
      std::int32_t& canonical = result_.value_of[static_cast<size_t>(output)];
      canonical = Convert(canonical, want, node, /*share=*/false);
    }
    return absl::OkStatus();
  }

  const Graph& graph_;
  const PlacementOptions& options_;
  LocalGraph result_;
  std::vector<std::array<bool, 4>> parameter_known_;
  absl::flat_hash_map<const graph::OpDef*, std::vector<std::unique_ptr<Lawful>>> lawful_;
  absl::flat_hash_map<std::tuple<std::int32_t, std::string, graph::Phase, std::int32_t>, std::int32_t>
      shared_;
};

}  // namespace

absl::StatusOr<LocalGraph> PlaceGraph(const Graph& graph, const PlacementOptions& options) {
  return Placer(graph, options).Run();
}

}  // namespace engine::compile
