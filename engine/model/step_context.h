// What a module's emit works with: a step's inputs and attributes, checked, and the graph that grows.
#pragma once

#include <absl/container/inlined_vector.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/graph/graph.h"
#include "engine/graph/op.h"
#include "engine/model/build.h"
#include "engine/model/module.h"
#include "engine/recipe/document.h"

namespace engine::model {

// The sizes of some dims of a tensor.
struct Sizes {
  Shape shape;    // padding included
  Shape logical;  // without: a vocabulary may be padded
  graph::Dims dims;
  void Append(std::int64_t size, std::int64_t logical_size, graph::Dim means) {
    shape.push_back(size);
    logical.push_back(logical_size);
    dims.push_back(means);
  }
};

struct NamedSizes {
  std::string name;
  Sizes sizes;
};

// A frequency table of rotary positions.
struct Rotary {
  graph::Attributes attributes;  // of the ops that rotate
  graph::ValueId positions = graph::kNoValue;
  const recipe::Node* table = nullptr;  // as the text says it
};

struct AttributeValue {
  const AttributeDef* def = nullptr;
  const recipe::Node* node = nullptr;  // null: the default
  std::int64_t integer = 0;
  double number = 0;
  bool flag = false;
  std::string word = {};
  Sizes sizes = {};
  std::vector<NamedSizes> parts = {};
  std::vector<double> numbers = {};
  graph::ValueId value = graph::kNoValue;
  graph::Initializer initializer = {};
  Rotary rotary = {};
};

// What the builder keeps beside the graph.
struct ParameterTable;

class StepContext {
 public:
  StepContext(graph::Graph* graph, ParameterTable* parameters, const BuildOptions& options,
              std::vector<Diagnostic>* diagnostics, const recipe::Node& step, std::string path,
              bool in_stack = false)
      : graph_(graph),
        parameters_(parameters),
        options_(options),
        diagnostics_(diagnostics),
        step_(step),
        path_(std::move(path)),
        in_stack_(in_stack) {}

  // "layers.3.attention.qkv": of the step's nodes and parameters.
  const std::string& path() const { return path_; }
  bool in_stack() const { return in_stack_; }  // the step is one of a layer
  const BuildOptions& options() const { return options_; }
  graph::Graph& graph() { return *graph_; }

  const graph::ValueIds& inputs() const { return inputs_; }
  graph::ValueId input(std::size_t i = 0) const { return inputs_[i]; }
  const absl::InlinedVector<AttributeValue, 4>& attributes() const { return attributes_; }
  const graph::TensorType& type(graph::ValueId value) const { return graph_->value(value).type; }

  bool Has(std::string_view name) const { return Find(name) != nullptr; }
  std::int64_t Int(std::string_view name) const { return Get(name).integer; }
  double Number(std::string_view name) const { return Get(name).number; }
  bool Flag(std::string_view name) const { return Get(name).flag; }
  const std::string& Word(std::string_view name) const { return Get(name).word; }
  const AttributeValue& Get(std::string_view name) const;  // CHECKs that it has one

  // A new parameter "PATH.suffix" ("PATH" where the suffix is empty).
  absl::StatusOr<graph::ValueId> Parameter(std::string_view suffix, graph::Role role, const Sizes& sizes,
                                           graph::Initializer initializer);
  // The same, in at least float32 whatever the model computes in.
  absl::StatusOr<graph::ValueId> ExactParameter(std::string_view suffix, graph::Role role, const Sizes& sizes,
                                                graph::Initializer initializer);
  // Emits a node where the op accepts the inputs; else an error at the step, with what the op says.
  absl::StatusOr<graph::ValueIds> Emit(const graph::OpDef& op, const std::string& name,
                                       graph::ValueIds inputs, graph::Attributes attributes = {});
  absl::StatusOr<graph::ValueId> Emit1(const graph::OpDef& op, const std::string& name,
                                       graph::ValueIds inputs, graph::Attributes attributes = {});

  // Where documents are masked, positions begin again with each: those of the whole sequence, of which `positions` are the
  // input kPositions. All others, and where documents are not masked: `positions`.
  graph::ValueId OfSequence(graph::ValueId positions) const;
  // The input of that name, which the graph has.
  graph::ValueId GraphInput(std::string_view name) const;

  // A mistake of the step, or of one of its attributes. Returns what emit returns then.
  absl::Status Error(std::string message, std::string hint = "") {
    return ErrorIn("", std::move(message), std::move(hint));
  }
  absl::Status ErrorIn(std::string_view attribute, std::string message, std::string hint = "");

  // Leading dims that tokens are counted by: samples and the sequence.
  int LeadingDims(graph::ValueId value) const;
  // The dims of a value from `first` on.
  Sizes TrailingSizes(graph::ValueId value, int first) const;
  // The last dim without the padding that its vocabulary has.
  std::int64_t LogicalClasses(graph::ValueId value) const;
  // The value and what it was made of, element by element, belong to the residual stream: they are placed as it is.
  void PinStream(graph::ValueId value);
  // σ of init = "normal".
  static graph::Initializer Normal(double std) { return {graph::Initializer::Kind::kNormal, std}; }
  static graph::Initializer Zeros() { return {graph::Initializer::Kind::kZeros, 0}; }
  static graph::Initializer Ones() { return {graph::Initializer::Kind::kOnes, 0}; }

  // By the builder.
  void AddInput(graph::ValueId value) { inputs_.push_back(value); }
  void AddAttribute(AttributeValue value) { attributes_.push_back(std::move(value)); }

 private:
  absl::StatusOr<graph::ValueId> AddParameter(std::string_view suffix, graph::Role role, const Sizes& sizes,
                                              graph::Initializer initializer, DType dtype);
  absl::Status CheckCountable(const Shape& shape);
  const AttributeValue* Find(std::string_view name) const;

  graph::Graph* graph_;
  ParameterTable* parameters_;
  const BuildOptions& options_;
  std::vector<Diagnostic>* diagnostics_;
  const recipe::Node& step_;
  std::string path_;
  bool in_stack_;
  graph::ValueIds inputs_;
  absl::InlinedVector<AttributeValue, 4> attributes_;
};

// "'name'" of a string; of what should be one and is not, what it is.
std::string Named(const recipe::Node& node);

// Where a mistake of a whole step, or of a table, is shown: its `do`, where it has one.
const recipe::Node& PlaceOf(const recipe::Node& step);

// A mistake in a text, with its code.
void ReportText(Diagnostic diagnostic, std::vector<Diagnostic>* diagnostics);

}  // namespace engine::model
