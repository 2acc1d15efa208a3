#include "engine/compile/quantize.h"

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/ops/fp8.h"
#include "engine/ops/ops.h"

namespace engine::compile {
namespace {

using graph::Phase;
using graph::ValueKind;

constexpr std::int64_t kMultiple = 16;  // of both sizes of a matrix that is an FP8 operand

// First scales: weights of σ = 0.02, normalised activations, gradients under Plan::loss_scaler.
constexpr double kWeightStart = 1024;
constexpr double kInputStart = 1;
constexpr double kGradientStart = 64;

class Quantizer {
 public:
  Quantizer(const Fp8Options& options, const graph::Graph& logical, LocalGraph* graph)
      : gradient_(options.gradients == "e5m2" ? DType::kE5M2 : DType::kE4M3),
        current_(options.current),
        logical_(logical),
        graph_(*graph) {}

  void Linears() {
    FindLinears();
    Rebuild();
  }

  void Heads() {
    for (const LocalNode& node : graph_.nodes) {
      const std::int32_t w = Find(node, Operand::kWeight);
      if (w >= 0 && node.op->family == graph::Family::kHead) in_dims_[w] = InDims(node);
    }
    Rebuild();
  }

 private:
  using Operand = ops::Fp8Product::Operand;
  using Form = ops::Fp8Product::Form;
  struct Quantized {
    std::int32_t q = -1, qt = -1, state = -1;
  };

  // Null: none.
  static const ops::Fp8Product* ProductOf(const LocalNode& node) {
    const std::span<const ops::Fp8Product> products = ops::Fp8Products();
    const auto found = std::find_if(products.begin(), products.end(),
                                    [&](const ops::Fp8Product& product) { return product.plain == node.op; });
    return found == products.end() ? nullptr : &*found;
  }

  // The groups of the rows that a product of experts takes; −1: it is none.
  static std::int32_t GroupsOf(const LocalNode& node) {
    const ops::Fp8Product* product = ProductOf(node);
    return product != nullptr && product->of_experts ? node.inputs[2] : -1;
  }

  // Dims of a product's output that are its columns.
  int OutDims(const LocalNode& node, std::int32_t w) {
    return value(w).local.rank() - in_dims_[w] - (GroupsOf(node) >= 0 ? 1 : 0);
  }

  static int InDims(const LocalNode& node) { return static_cast<int>(node.attributes.Int("in_dims")); }

  plan::LocalValue& value(std::int32_t v) { return graph_.values[static_cast<size_t>(v)]; }

  std::int32_t AddValue(plan::LocalValue made) {
    graph_.values.push_back(std::move(made));
    return static_cast<std::int32_t>(graph_.values.size() - 1);
  }

  // The quantised tensor that lies as `x` does.
  std::int32_t AddQuantized(const plan::LocalValue& x, const char* suffix, DType format, ValueKind kind) {
    return AddValue({.name = x.name + suffix,
                     .shape = x.shape,
                     .dtype = format,
                     .layout = x.layout,
                     .local = x.local,
                     .kind = kind});
  }

  // The tensor of the model that a local value is, converted or recomputed: it has one scale.
  const std::string& LogicalName(const plan::LocalValue& x) const {
    ENGINE_CHECK(x.source != graph::kNoValue, "{} is quantised but is no tensor of the model", x.name);
    const graph::Value& value = logical_.value(x.source);
    return value.repeats == graph::kNoValue ? value.name : logical_.value(value.repeats).name;
  }

  std::int32_t AddScale(const plan::LocalValue& x, ValueKind kind) {
    return AddValue({.name = LogicalName(x) + ".scale",
                     .shape = {ops::kScaleNumbers},
                     .dtype = DType::kF32,
                     .layout = {},
                     .local = {ops::kScaleNumbers},
                     .kind = kind});
  }

  // Rows and columns of a weight [out…, in…], or of an activation whose last `dims` dims are its columns.
  static std::pair<std::int64_t, std::int64_t> Matrix(const Shape& shape, int dims) {
    const int lead = shape.rank() - dims;
    return {shape.elements(0, lead), shape.elements(lead, shape.rank())};
  }
  static bool Fits(std::pair<std::int64_t, std::int64_t> matrix) {
    return matrix.first % kMultiple == 0 && matrix.second % kMultiple == 0;
  }

  // The weights of blocks whose products all have sizes that FP8 takes, then the gradients that will be quantised.
  void FindLinears() {
    for (const LocalNode& node : graph_.nodes) {
      const bool block = logical_.units()[static_cast<size_t>(node.unit)].kind == graph::Unit::Kind::kBlock;
      const std::int32_t x = Find(node, Operand::kInput);
      const std::int32_t w = Find(node, Operand::kWeight);
      if (!block || x < 0 || w < 0 || node.attributes.Int("router", 0) != 0 ||
          node.attributes.Int("adapter", 0) != 0)
        continue;
      const int in = InDims(node);
      const Shape& of_w = value(w).local;
      const int lead = GroupsOf(node) >= 0 ? 1 : 0;  // each expert's own matrix has to fit
      if (Fits({of_w.elements(lead, of_w.rank() - in), of_w.elements(of_w.rank() - in, of_w.rank())}) &&
          Fits(Matrix(value(x).local, in)))
        in_dims_[w] = in;
    }
    for (const LocalNode& node : graph_.nodes) {
      const std::int32_t dy = Find(node, Operand::kGradient);
      const std::int32_t w = Find(node, Operand::kWeight);
      if (dy < 0 || w < 0 || !in_dims_.contains(w)) continue;
      const int out = OutDims(node, w);
      if (Fits(Matrix(value(dy).local, out))) gradient_dims_[dy] = out;
    }
  }

  // The input of a product that is this operand; −1: none.
  static std::int32_t Find(const LocalNode& node, Operand operand) {
    const ops::Fp8Product* product = ProductOf(node);
    if (product == nullptr) return -1;
    const auto& operands = product->operands;
    const auto found = std::find(operands.begin(), operands.end(), operand);
    return found == operands.end() ? -1 : node.inputs[static_cast<size_t>(found - operands.begin())];
  }

  // Whether each operand of a product can be quantised.
  bool Quantizable(const ops::Fp8Product& product, const LocalNode& node) {
    for (size_t i = 0; i < product.operands.size(); ++i) {
      const std::int32_t v = node.inputs[i];
      const Operand operand = product.operands[i];
      if (operand == Operand::kWeight && !in_dims_.contains(v)) return false;
      if (operand == Operand::kGradient && !gradient_dims_.contains(v)) return false;
      if (operand == Operand::kInput && !Fits(Matrix(value(v).local, InDims(node)))) return false;
    }
    return true;
  }

  void Rebuild() {
    std::vector<LocalNode> old = std::move(graph_.nodes);
    graph_.nodes.clear();
    for (LocalNode& node : old) Add(std::move(node));
    AddWeights();
  }

  static std::int64_t FormatOf(DType format) { return format == DType::kE5M2 ? 1 : 0; }

  void AddWeights() {
    graph_.nodes.insert(graph_.nodes.begin(), std::make_move_iterator(weights_.begin()),
                        std::make_move_iterator(weights_.end()));
  }

  // q, qt and state of a value; quantised by a node that goes to `nodes` where it has not been before.
  // `start`: its delayed scale in a run's first iteration, before any largest value is known.
  Quantized Quantize(std::int32_t v, int dims, DType format, double start, ValueKind kind,
                     const LocalNode& of, std::vector<LocalNode>* nodes) {
    const auto [it, fresh] = quantized_.try_emplace(v);
    if (!fresh) return it->second;
    const plan::LocalValue x = value(v);
    Quantized made;
    made.q = AddQuantized(x, ".fp8", format, kind);
    made.qt = AddQuantized(x, ".fp8t", format, kind);
    made.state = AddScale(x, current_ ? kind : ValueKind::kState);
    if (!current_) graph_.states.push_back({.value = made.state, .spec = ops::ScaleSpec(start, format)});
    LocalNode node;
    node.name = x.name + ".quantize";
    node.attributes = {{"dims", std::int64_t{dims}}, {"format", FormatOf(format)}};
    node.inputs = {v};
    const std::int32_t groups = kind == ValueKind::kDerived ? -1 : GroupsOf(of);
    if (groups >= 0) node.inputs.push_back(groups);
    if (current_) {
      node.op = groups >= 0 ? &ops::kQuantizeRowsCurrent : &ops::kQuantizeCurrent;
      node.outputs = {made.q, made.qt, made.state};
    } else {
      node.op = groups >= 0 ? &ops::kQuantizeRows : &ops::kQuantize;
      node.inputs.push_back(made.state);
      node.outputs = {made.q, made.qt};
      node.attributes.Set("start", start);
    }
    node.phase = kind == ValueKind::kDerived ? Phase::kPrepare : of.phase;
    node.unit = of.unit;
    node.component = of.component;
    nodes->push_back(std::move(node));
    quantized_[v] = made;
    return made;
  }

  // Weights are quantised before all other nodes, the others before the product that reads them first.
  Quantized QuantizeOperand(Operand operand, std::int32_t v, const LocalNode& of) {
    switch (operand) {
      case Operand::kInput:
        return Quantize(v, InDims(of), DType::kE4M3, kInputStart, ValueKind::kActivation, of, &graph_.nodes);
      case Operand::kWeight:
        return Quantize(v, in_dims_.at(v), DType::kE4M3, kWeightStart, ValueKind::kDerived, of, &weights_);
      case Operand::kGradient:
        return Quantize(v, gradient_dims_.at(v), gradient_, kGradientStart, ValueKind::kActivation, of,
                        &graph_.nodes);
      case Operand::kOther:
        break;
    }
    return {};
  }

  static std::int32_t FormOf(Form form, const Quantized& quantized, std::int32_t plain) {
    switch (form) {
      case Form::kQuantized:
        return quantized.q;
      case Form::kTransposed:
        return quantized.qt;
      case Form::kState:
        return quantized.state;
      case Form::kPlain:
        break;
    }
    return plain;
  }

  // The product becomes the one that takes its operands in 8 bits.
  void Take(const ops::Fp8Product& product, LocalNode* node) {
    std::vector<Quantized> quantized;
    for (size_t i = 0; i < product.operands.size(); ++i)
      quantized.push_back(QuantizeOperand(product.operands[i], node->inputs[i], *node));
    std::vector<std::int32_t> inputs;
    for (const ops::Fp8Product::Taken& taken : product.inputs)
      inputs.push_back(FormOf(taken.form, quantized[taken.input], node->inputs[taken.input]));
    inputs.insert(inputs.end(), node->inputs.begin() + static_cast<std::ptrdiff_t>(product.operands.size()),
                  node->inputs.end());
    node->op = product.fp8;
    node->inputs = std::move(inputs);
    if (product.has_format) node->attributes.Set("format", FormatOf(gradient_));
  }

  // Whether the sums are those of a gradient that is yet to be quantised, which then takes them on the way.
  bool RidesAlong(const LocalNode& node) const {
    if (node.op != &ops::kBiasGrad || quantized_.contains(node.inputs[0])) return false;
    const auto dims = gradient_dims_.find(node.inputs[0]);
    return dims != gradient_dims_.end() && node.attributes.Int("dims") == dims->second;
  }

  void SumOnTheWay(const LocalNode& node) {
    QuantizeOperand(Operand::kGradient, node.inputs[0], node);
    LocalNode& quantize = graph_.nodes.back();
    quantize.accumulate = (node.accumulate & 1U) << quantize.outputs.size();
    quantize.outputs.push_back(node.outputs[0]);
    quantize.attributes.Set("bias", std::int64_t{1});
  }

  void Add(LocalNode node) {
    if (RidesAlong(node)) return SumOnTheWay(node);
    const ops::Fp8Product* product = ProductOf(node);
    if (product != nullptr && Quantizable(*product, node)) Take(*product, &node);
    graph_.nodes.push_back(std::move(node));
  }

  const DType gradient_;
  const bool current_;
  const graph::Graph& logical_;
  LocalGraph& graph_;
  absl::flat_hash_map<std::int32_t, int> in_dims_;        // of weights that are quantised
  absl::flat_hash_map<std::int32_t, int> gradient_dims_;  // of output gradients that are: their column dims
  absl::flat_hash_map<std::int32_t, Quantized> quantized_;
  std::vector<LocalNode> weights_;
};

}  // namespace

void QuantizeLinears(const Fp8Options& options, const graph::Graph& logical, LocalGraph* graph) {
  Quantizer(options, logical, graph).Linears();
}

void QuantizeHead(const Fp8Options& options, const graph::Graph& logical, LocalGraph* graph) {
  Quantizer(options, logical, graph).Heads();
}

}  // namespace engine::compile
