// The logical graph: what one microbatch computes, forward and backward, as if on one device. Values are
// tensors, nodes apply ops to them; what an op means is its OpDef (graph/op.h, engine/ops).
#pragma once

#include <absl/container/inlined_vector.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/base/shape.h"
#include "engine/base/status.h"
#include "engine/graph/dims.h"
#include "engine/graph/role.h"
#include "engine/graph/state.h"

namespace engine::graph {

struct OpDef;

using ValueId = std::int32_t;
using NodeId = std::int32_t;
inline constexpr ValueId kNoValue = -1;
using ValueIds = absl::InlinedVector<ValueId, 4>;
using ComponentId = std::int32_t;
inline constexpr ComponentId kNoComponent = -1;

struct TensorType {
  Shape shape;
  DType dtype = DType::kF32;
  Dims dims = {};  // what those of the shape mean
  Dim meaning(int dim) const { return dims[dim]; }
  // Appends a dim as another tensor has it.
  void Append(const TensorType& other, int dim) {
    dims.Set(shape.rank(), other.meaning(dim));
    shape.push_back(other.shape[dim]);
  }
  bool operator==(const TensorType& other) const { return shape == other.shape && dtype == other.dtype; }
};

// Named constants of a node. Few entries, kept in order of insertion.
class Attributes {
 public:
  using Item = std::variant<std::int64_t, double, std::string>;
  Attributes() = default;
  Attributes(std::initializer_list<std::pair<std::string_view, Item>> items) {
    for (const auto& [name, item] : items) Set(name, item);
  }
  void Set(std::string_view name, Item item);
  bool Has(std::string_view name) const { return Find(name) != nullptr; }
  std::int64_t Int(std::string_view name) const;  // CHECKs that it exists
  std::int64_t Int(std::string_view name, std::int64_t fallback) const;
  double Float(std::string_view name) const;
  double Float(std::string_view name, double fallback) const;
  const std::string& String(std::string_view name) const;
  const std::vector<std::pair<std::string, Item>>& items() const { return items_; }
  std::string ToString() const;  // "{eps=1e-05, in_dims=1}"

 private:
  const Item* Find(std::string_view name) const;
  std::vector<std::pair<std::string, Item>> items_;
};

enum class ValueKind : std::uint8_t {
  kInput,        // fed for each microbatch: tokens, labels, positions
  kParameter,    // trained
  kActivation,   // produced by exactly one node
  kAccumulator,  // summed over all its producers and over the microbatches: parameter gradients, metrics
  kState,        // kept from iteration to iteration beside parameters (graph/state.h)
  // Of local graphs alone:
  kDerived,  // made from parameters at the start of an iteration, read by all its microbatches
};

// What the model builder asks of a value's placement on the axis that splits weights; gradients inherit it.
enum class Pin : std::uint8_t {
  kNone,
  kResidual,    // the residual stream: R, or its tokens split with sequence parallelism
  kReplicated,  // small statistics that every rank needs
};

struct Value {
  std::string name;
  TensorType type;
  ValueKind kind = ValueKind::kActivation;
  Pin pin = Pin::kNone;
  NodeId producer = -1;            // of an activation
  ValueId gradient_of = kNoValue;  // accumulator: the parameter; kNoValue for a metric
  ValueId repeats = kNoValue;  // made again in the backward phase (Recompute): what the forward phase made
};

struct Initializer {
  enum class Kind : std::uint8_t { kZeros, kOnes, kNormal } kind = Kind::kZeros;
  double std = 0.0;  // of kNormal
};

// How a parameter is trained, where a run wants it otherwise than the optimizer treats all of its role.
struct TrainingSettings {
  // It keeps the value that it starts with: it has no gradient, no optimizer state and no master copy, and the backward
  // pass computes nothing that only its gradient would need.
  bool frozen = false;
  double learning_rate_scale = 1;           // its learning rate is the run's times this
  std::optional<double> weight_decay = {};  // instead of what Parameter::weight_decay says
  // Above 0: an update takes this off where its gradient is above 0, adds it where that is below, and nothing else moves
  // it. It has no optimizer state, and no part in the norm of the gradients.
  double sign_step = 0;
  bool operator==(const TrainingSettings&) const = default;
};

struct Parameter {
  ValueId value = kNoValue;
  Shape logical_shape;  // without padding; differs from the value's shape in dim 0 at most (vocabulary)
  Initializer initializer;
  Role role = Role::kMatrix;
  bool weight_decay = false;  // whether the optimizer's applies to it: as the role says
  TrainingSettings training = {};
};

// kPrepare, of local graphs alone: once an iteration, before the first microbatch.
enum class Phase : std::uint8_t { kForward, kBackward, kPrepare };

// A number that a model gives of a batch: a loss, or something to be watched. Or a number of each of several classes, as how
// often each of a layer's experts was chosen.
struct Metric {
  std::string name;
  ValueId sum = kNoValue;  // the accumulator, f64, of a sum over the batch: [], or [classes]
  double count = 1;        // how many terms a global batch gives: tokens, samples. The metric is sum / count
  // Its factor in the objective, of which gradients are taken: Σ weight · sum / count. The nodes that make the sum hold the
  // factor. 0: it is only watched.
  double weight = 1;
  std::int64_t classes = 0;  // of which the sum has a number each; 0: it is one number
  // Its terms are of labels, and `count` is right where all of them count (plan/control.h, kLabelFactor).
  bool of_labels = false;
  // Its terms are of labels, and more than the cross entropy of these: they have label smoothing, or a z-loss.
  bool has_terms = false;
};

// Of each place of a sample, both f32 [B, S], as ops/cross_entropy.cpp defines them (token_score).
struct TokenScores {
  ValueId log_probability = kNoValue;
  ValueId rank = kNoValue;  // 0: the label is the likeliest class
};

// Of the last token of each sample, as ops/top_logits.cpp defines them.
struct TopLogits {
  ValueId tokens = kNoValue;    // i32 [B, N]
  ValueId values = kNoValue;    // f32 [B, N]
  ValueId log_sums = kNoValue;  // f32 [B, 2]
  // f32 [B, R]: of every row of logits, lse as ops/cross_entropy.cpp defines it; kNoValue: not made.
  ValueId row_log_sums = kNoValue;
};

// A piece of a model in which its nodes stand together. The units, in order of execution, are the chain along which a
// pipeline may cut it.
struct Unit {
  enum class Kind : std::uint8_t {
    kEntry,  // makes the stream that blocks pass on: embeddings. Goes with the block behind it
    kBlock,
    kExit,  // takes it: a final norm, a head. Goes with the block before it
  };
  std::string name;  // "layers.3"
  Kind kind = Kind::kBlock;
};

// A named piece of a model: a step, a block of steps, a layer, a stack of layers. Each lies within another one or within none,
// and a node belongs to the innermost. Times and sizes are told by components; no pass of the compiler decides by them.
struct Component {
  std::string name;                   // "attention"; of a layer its number
  ComponentId within = kNoComponent;  // of a layer, the stack that has it
  bool is_layer = false;
  // Of a layer: what sets it apart from others of its stack ("window = 4096"); empty: nothing does.
  std::string variant = {};
};

struct Node {
  const OpDef* op = nullptr;
  std::string name;  // "layers.3.attention.qkv"
  ValueIds inputs;
  ValueIds outputs;
  Attributes attributes;
  Phase phase = Phase::kForward;
  std::int32_t unit = 0;  // Graph::units
  ComponentId component = kNoComponent;
  bool recomputed = false;  // a copy of a forward node, run again in the backward phase
};

// Nodes are kept in execution order: every activation is produced before it is read; all forward nodes come
// before the backward ones.
class Graph {
 public:
  ValueId AddInput(std::string name, TensorType type);
  ValueId AddParameter(std::string name, TensorType type, Shape logical_shape, Initializer initializer,
                       Role role);
  // Of a parameter; before the graph is differentiated, which follows them.
  void SetTraining(ValueId parameter, const TrainingSettings& training);
  ValueId AddAccumulator(std::string name, TensorType type, ValueId gradient_of);
  // Of f32 or f64, and whole on every rank, unless it is split (StateSpec::split). A node moves it by having it among its outputs (Emit's `into`).
  ValueId AddState(std::string name, TensorType type, StateSpec spec);
  const std::vector<State>& states() const { return states_; }

  // Appends a node; its outputs' types come from the op. CHECKs that the op accepts the inputs: a model
  // builder that passes wrong shapes is our bug, not the user's. An entry of `into` that is not kNoValue
  // names an accumulator or a state that receives that output.
  ValueIds Emit(const OpDef& op, std::string name, ValueIds inputs, Attributes attributes = {},
                std::span<const ValueId> into = {});
  // The usual case of one output.
  ValueId Emit1(const OpDef& op, std::string name, ValueIds inputs, Attributes attributes = {});

  // The forward nodes that Emit appends from here on are those of a new unit.
  void BeginUnit(std::string name, Unit::Kind kind) {
    units_.push_back({std::move(name), kind});
    phase_ = Phase::kForward;
    unit_ = static_cast<std::int32_t>(units_.size() - 1);
  }
  // Phase, unit and component of the nodes that Emit appends from here on.
  void SetPosition(Phase phase, std::int32_t unit, ComponentId component) {
    phase_ = phase;
    unit_ = unit;
    component_ = component;
  }
  // The nodes that Emit appends until the matching CloseComponent belong to this component, which lies within the one
  // that is open now, or to another one that is opened within it.
  void OpenComponent(Component component) {
    component.within = component_;
    components_.push_back(std::move(component));
    component_ = static_cast<ComponentId>(components_.size() - 1);
  }
  void CloseComponent() { component_ = components_[static_cast<size_t>(component_)].within; }

  const Value& value(ValueId id) const { return values_[static_cast<size_t>(id)]; }
  Value& value(ValueId id) { return values_[static_cast<size_t>(id)]; }
  const std::vector<Value>& values() const { return values_; }
  const std::vector<Node>& nodes() const { return nodes_; }
  std::vector<Node>& nodes() { return nodes_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  const Parameter* FindParameter(ValueId value) const;

  // Makes the metric's accumulator.
  ValueId AddMetric(std::string name, double count, double weight, bool of_labels = false,
                    bool has_terms = false);
  // The same of a metric that counts how often each of `classes` classes comes, and is only watched: f64[classes]. `count`:
  // of all classes together.
  ValueId AddCounts(std::string name, std::int64_t classes, double count);
  const std::vector<Metric>& metrics() const { return metrics_; }
  ValueId logits() const { return logits_; }
  void set_logits(ValueId logits) { logits_ = logits; }
  // How well each token of the first loss was predicted (TokenScores); none where nobody asked for it.
  const std::optional<TokenScores>& scores() const { return scores_; }
  void set_scores(const TokenScores& scores) { scores_ = scores; }
  // Of the logits, in a graph that generates.
  const std::optional<TopLogits>& top_logits() const { return top_logits_; }
  void set_top_logits(const TopLogits& top) { top_logits_ = top; }
  const std::vector<Unit>& units() const { return units_; }
  const std::vector<Component>& components() const { return components_; }

  // Every read is of an input, a parameter, or an activation produced before; every op accepts its types;
  // every activation has one producer; phases in order. The error names the node.
  absl::Status Verify() const;
  std::string ToString() const;  // one node a line

 private:
  ValueId AddValue(Value value);
  std::vector<Value> values_;
  std::vector<Node> nodes_;
  std::vector<Parameter> parameters_;
  std::vector<Metric> metrics_;
  std::vector<State> states_;
  ValueId logits_ = kNoValue;
  std::optional<TokenScores> scores_;
  std::optional<TopLogits> top_logits_;
  std::vector<Unit> units_;
  Phase phase_ = Phase::kForward;
  std::int32_t unit_ = 0;
  std::vector<Component> components_;
  ComponentId component_ = kNoComponent;
};

}  // namespace engine::graph
