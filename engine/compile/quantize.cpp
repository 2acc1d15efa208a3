#include "engine/compile/quantize.h"

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "engine/ops/fp8.h"
#include "engine/ops/fused.h"
#include "engine/ops/ops.h"

namespace engine::compile {
namespace {

using graph::Phase;
using graph::ValueKind;

constexpr std::int64_t kMultiple = 16;  // of both sizes of a matrix that is an FP8 operand

// The tensor of the model that a local value is (a copy of): names are "again.NAME" where it is recomputed,
// "NAME@LAYOUT" where it is converted.
std::string LogicalName(const std::string& name) {
  constexpr std::string_view kAgain = "again.";
  const std::string logical = name.substr(0, name.find('@'));
  return logical.starts_with(kAgain) ? logical.substr(kAgain.size()) : logical;
}

// First scales: weights of σ = 0.02, normalised activations, gradients under Plan::loss_scaler.
constexpr double kWeightStart = 1024;
constexpr double kInputStart = 1;
constexpr double kGradientStart = 64;

class Quantizer {
 public:
  Quantizer(const Fp8Options& options, std::span<const graph::Unit> units, LocalGraph* graph)
      : gradient_(options.gradients == "e5m2" ? DType::kE5M2 : DType::kE4M3),
        current_(options.current),
        units_(units),
        graph_(*graph) {}

  void Linears() {
    FindLinears();
    std::vector<LocalNode> old = std::move(graph_.nodes);
    graph_.nodes.clear();
    for (LocalNode& node : old) Add(std::move(node));
    AddWeights();
  }

  void Head() {
    for (LocalNode& node : graph_.nodes) {
      if (node.op != &ops::kLinearCrossEntropy) continue;
      in_dims_[node.inputs[1]] = static_cast<int>(node.attributes.Int("in_dims"));
      const Quantized w = Weight(node.inputs[1], node);
      node.op = &ops::kLinearCrossEntropyFp8;
      node.inputs = {node.inputs[0], w.q, w.qt, w.state, node.inputs[2]};
      node.attributes.Set("format", FormatOf(gradient_));
    }
    AddWeights();
  }

 private:
  struct Quantized {
    std::int32_t q = -1, qt = -1, state = -1;
  };

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

  std::int32_t AddState(const plan::LocalValue& x, ValueKind kind) {
    return AddValue({.name = LogicalName(x.name) + ".scale",
                     .shape = {8},
                     .dtype = DType::kF32,
                     .layout = {},
                     .local = {8},
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

  // Weights of layers whose products all have sizes that FP8 takes, and gradients that will be quantised.
  void FindLinears() {
    for (const LocalNode& node : graph_.nodes) {
      if (node.op != &ops::kLinear ||
          units_[static_cast<size_t>(node.unit)].kind != graph::Unit::Kind::kBlock)
        continue;
      const int in = static_cast<int>(node.attributes.Int("in_dims"));
      const Shape& w = value(node.inputs[1]).local;
      if (Fits(Matrix(w, in)) && Fits(Matrix(value(node.inputs[0]).local, in))) in_dims_[node.inputs[1]] = in;
    }
    for (const LocalNode& node : graph_.nodes) {
      if (node.op != &ops::kLinearDgrad || !in_dims_.contains(node.inputs[1])) continue;
      const int out = value(node.inputs[1]).local.rank() - in_dims_[node.inputs[1]];
      if (Fits(Matrix(value(node.inputs[0]).local, out))) gradient_dims_[node.inputs[0]] = out;
    }
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
    made.state = AddState(x, current_ ? kind : ValueKind::kState);
    LocalNode node;
    node.name = x.name + ".quantize";
    node.attributes = {{"dims", std::int64_t{dims}}, {"format", FormatOf(format)}};
    if (current_) {
      node.op = &ops::kQuantizeCurrent;
      node.inputs = {v};
      node.outputs = {made.q, made.qt, made.state};
    } else {
      node.op = &ops::kQuantize;
      node.inputs = {v, made.state};
      node.outputs = {made.q, made.qt};
      node.attributes.Set("start", start);
    }
    node.phase = kind == ValueKind::kDerived ? Phase::kPrepare : of.phase;
    node.unit = of.unit;
    nodes->push_back(std::move(node));
    quantized_[v] = made;
    return made;
  }

  Quantized Weight(std::int32_t w, const LocalNode& of) {
    return Quantize(w, in_dims_.at(w), DType::kE4M3, kWeightStart, ValueKind::kDerived, of, &weights_);
  }
  Quantized Input(std::int32_t x, int dims, const LocalNode& of) {
    return Quantize(x, dims, DType::kE4M3, kInputStart, ValueKind::kActivation, of, &graph_.nodes);
  }
  Quantized Gradient(std::int32_t dy, const LocalNode& of) {
    return Quantize(dy, gradient_dims_.at(dy), gradient_, kGradientStart, ValueKind::kActivation, of,
                    &graph_.nodes);
  }

  void Add(LocalNode node) {
    if (node.op == &ops::kLinear && in_dims_.contains(node.inputs[1])) {
      const Quantized x = Input(node.inputs[0], in_dims_.at(node.inputs[1]), node);
      const Quantized w = Weight(node.inputs[1], node);
      node.op = &ops::kLinearFp8;
      std::vector<std::int32_t> inputs = {x.q, w.q, x.state, w.state};
      inputs.insert(inputs.end(), node.inputs.begin() + 2, node.inputs.end());
      node.inputs = std::move(inputs);
    } else if (node.op == &ops::kLinearDgrad && in_dims_.contains(node.inputs[1]) &&
               gradient_dims_.contains(node.inputs[0])) {
      const Quantized dy = Gradient(node.inputs[0], node);
      const Quantized w = Weight(node.inputs[1], node);
      node.op = &ops::kLinearDgradFp8;
      node.inputs = {dy.q, w.qt, dy.state, w.state};
    } else if (node.op == &ops::kLinearWgrad && gradient_dims_.contains(node.inputs[0]) &&
               Fits(Matrix(value(node.inputs[1]).local, static_cast<int>(node.attributes.Int("in_dims"))))) {
      const int in = static_cast<int>(node.attributes.Int("in_dims"));
      const Quantized dy = Gradient(node.inputs[0], node);
      const Quantized x = Input(node.inputs[1], in, node);
      node.op = &ops::kLinearWgradFp8;
      node.inputs = {dy.qt, x.qt, dy.state, x.state};
    } else if (node.op == &ops::kBiasGrad && gradient_dims_.contains(node.inputs[0]) &&
               !quantized_.contains(node.inputs[0]) &&
               node.attributes.Int("dims") == gradient_dims_.at(node.inputs[0])) {
      Gradient(node.inputs[0], node);
      LocalNode& quantize = graph_.nodes.back();
      quantize.accumulate = (node.accumulate & 1U) << quantize.outputs.size();
      quantize.outputs.push_back(node.outputs[0]);
      quantize.attributes.Set("bias", std::int64_t{1});
      return;
    }
    graph_.nodes.push_back(std::move(node));
  }

  const DType gradient_;
  const bool current_;
  const std::span<const graph::Unit> units_;
  LocalGraph& graph_;
  absl::flat_hash_map<std::int32_t, int> in_dims_;        // of weights that are quantised
  absl::flat_hash_map<std::int32_t, int> gradient_dims_;  // of output gradients that are: their column dims
  absl::flat_hash_map<std::int32_t, Quantized> quantized_;
  std::vector<LocalNode> weights_;
};

}  // namespace

void QuantizeLinears(const Fp8Options& options, std::span<const graph::Unit> units, LocalGraph* graph) {
  Quantizer(options, units, graph).Linears();
}

void QuantizeHead(const Fp8Options& options, LocalGraph* graph) { Quantizer(options, {}, graph).Head(); }

}  // namespace engine::compile
