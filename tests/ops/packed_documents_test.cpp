// A sample of several documents gives what each document gives alone: logits, and the gradients of all parameters, in float64.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/graph/autodiff.h"
#include "engine/model/build.h"
#include "engine/ops/ops.h"
#include "engine/recipe/load.h"
#include "tests/ops/tensor.h"

namespace engine::ops_test {
namespace {

constexpr const char* kGptOfDocuments = R"(
[model]
layers = 2
hidden = 12
vocab = 31
vocab_multiple = 1
max_positions = 16
attention = { heads = 3, position = "learned", bias = true }
mlp = { hidden = 20, activation = "gelu_tanh", bias = true }
norm = { kind = "layernorm", epsilon = 1e-5 }
tied_embeddings = true
)";

constexpr const char* kLlamaOfDocuments = R"(
[model]
layers = 2
hidden = 16
vocab = 31
vocab_multiple = 1
max_positions = 16
attention = { heads = 4, kv_heads = 2, position = "rotary" }
mlp = { hidden = 20, activation = "swiglu" }
norm = { kind = "rmsnorm", epsilon = 1e-5 }
tied_embeddings = false
)";

constexpr const char* kRestOfDocuments = R"(
[data]
paths = ["none"]
tokenizer.kind = "none"
sequence_length = 16
[optimizer]
learning_rate = 1e-3
[training]
global_batch = 1
micro_batch = 1
iterations = 1
)";

const std::vector<std::int64_t> kDocuments = {5, 1, 6, 4};
constexpr std::int64_t kTokens = 16;

std::int32_t TokenAt(std::int64_t place) {
  return static_cast<std::int32_t>((place * place * 7 + 3 * place + 2) % 31);
}

// A differentiated model, and the values that its nodes made.
struct Differentiated {
  graph::Graph graph;
  std::map<graph::ValueId, Tensor> values;

  Tensor Logits() const { return values.at(graph.logits()); }
  Tensor GradientOf(const std::string& parameter) const {
    for (const auto& [id, tensor] : values) {
      if (graph.value(id).name == "d_" + parameter && graph.value(id).kind == graph::ValueKind::kAccumulator)
        return tensor;
    }
    FAIL(parameter);
    return {};
  }
};

// As a kernel that accumulates would, of an accumulator that several nodes add to.
void AddTo(const Tensor& more, Tensor* sum) {
  for (std::int64_t i = 0; i < sum->elements(); ++i) sum->Set(i, sum->Get(i) + more.Get(i));
}

void RunDifferentiated(Differentiated* model) {
  for (const graph::Node& node : model->graph.nodes()) {
    Tensors inputs;
    for (const graph::ValueId id : node.inputs) inputs.push_back(model->values.at(id));
    Tensors outputs = RunOp(*node.op, node.attributes, inputs);
    for (std::size_t o = 0; o < outputs.size(); ++o) {
      const auto [found, is_first] = model->values.try_emplace(node.outputs[o], outputs[o]);
      if (!is_first) AddTo(outputs[o], &found->second);
    }
  }
}

struct Fed {
  std::int64_t token,
      position;  // the token's place in the sample; the position that embeddings and rotations read
  std::int64_t first, last;  // of its document
};

// The model on a sample of these tokens; `documents` of data.documents.
Differentiated ModelOf(const char* text, const std::string& documents, const std::vector<Fed>& tokens) {
  const recipe::LoadResult loaded = recipe::LoadText(std::string(text) + kRestOfDocuments, "test.toml",
                                                     {.sets = {"data.documents=" + documents}, .root = ""});
  for (const Diagnostic& diagnostic : loaded.diagnostics) INFO(Format(diagnostic));
  REQUIRE_MESSAGE(loaded.ok(), (loaded.ok() ? "" : Format(loaded.diagnostics[0])));
  const auto count = static_cast<std::int64_t>(tokens.size());
  Differentiated model;
  model.graph = model::BuildModel(loaded.recipe,
                                  {.batch = 1, .sequence = count, .dtype = DType::kF64, .dropout = false});
  REQUIRE(graph::Differentiate(&model.graph, ops::kAdd).ok());
  for (std::size_t id = 0; id < model.graph.values().size(); ++id) {
    const graph::Value& value = model.graph.values()[id];
    Tensor tensor(value.type);
    if (value.kind == graph::ValueKind::kParameter) {
      double seed = 0;
      for (const char c : value.name) seed = seed * 0.9 + c;
      for (std::int64_t i = 0; i < tensor.elements(); ++i)
        tensor.Set(i, 0.4 * std::sin(seed + 1.3 * static_cast<double>(i)) +
                          (value.type.shape.rank() == 1 ? 0.5 : 0.0));
    } else if (value.kind == graph::ValueKind::kInput) {
      const std::int64_t each = value.type.shape.rank() == 3 ? 2 : 1;
      for (std::int64_t i = 0; i < count; ++i) {
        const Fed& fed = tokens[static_cast<std::size_t>(i)];
        if (value.name == model::kDocumentSpans) tensor.Set(2 * i + 1, static_cast<double>(fed.last));
        tensor.Set(each * i, static_cast<double>(value.name == model::kTokens      ? TokenAt(fed.token)
                                                 : value.name == model::kLabels    ? TokenAt(fed.token + 1)
                                                 : value.name == model::kPositions ? fed.position
                                                 : value.name == model::kSequencePositions ? i
                                                                                           : fed.first));
      }
    } else {
      continue;
    }
    model.values.emplace(static_cast<graph::ValueId>(id), std::move(tensor));
  }
  RunDifferentiated(&model);
  return model;
}

// The largest difference of an element, and the largest element.
struct Difference {
  double largest = 0, scale = 0;
  void Add(double a, double b) {
    largest = std::max(largest, std::fabs(a - b));
    scale = std::max(scale, std::fabs(a));
  }
};

// What a sample of all documents gives, against each alone. `restart`: its positions begin again with each document.
void CompareWithAlone(const char* text, const std::string& documents, bool restart, Difference* logits,
                      Difference* gradients) {
  std::vector<Fed> packed;
  std::vector<Differentiated> alone;
  for (const std::int64_t length : kDocuments) {
    const auto first = static_cast<std::int64_t>(packed.size());
    std::vector<Fed> one;
    for (std::int64_t i = 0; i < length; ++i) {
      packed.push_back({first + i, restart ? i : first + i, first, first + length});
      one.push_back({first + i, i, 0, length});
    }
    alone.push_back(ModelOf(text, "across", one));
  }
  const Differentiated whole = ModelOf(text, documents, packed);
  std::int64_t at = 0;
  for (const Differentiated& one : alone) {
    const Tensor of_one = one.Logits();
    for (std::int64_t i = 0; i < of_one.elements(); ++i) logits->Add(of_one.Get(i), whole.Logits().Get(at++));
  }
  REQUIRE(at == whole.Logits().elements());
  for (const graph::Parameter& parameter : whole.graph.parameters()) {
    const std::string& name = whole.graph.value(parameter.value).name;
    const Tensor gradient = whole.GradientOf(name);
    std::vector<Tensor> parts;
    for (const Differentiated& one : alone) parts.push_back(one.GradientOf(name));
    for (std::int64_t i = 0; i < gradient.elements(); ++i) {
      double sum = 0;  // a loss is the mean over the tokens of its sample
      for (std::size_t d = 0; d < parts.size(); ++d)
        sum += parts[d].Get(i) * static_cast<double>(kDocuments[d]) / static_cast<double>(kTokens);
      gradients->Add(sum, gradient.Get(i));
    }
  }
}

}  // namespace

// Sums of float64 of fewer than 500 terms, some hundred of them one behind the other: far below 1e-12 of the largest number.
TEST_CASE("a sample of several documents gives what each gives alone") {
  for (const char* text : {kGptOfDocuments, kLlamaOfDocuments}) {
    CAPTURE(text);
    Difference logits;
    Difference gradients;
    CompareWithAlone(text, "masked", /*restart=*/true, &logits, &gradients);
    CHECK(logits.scale > 0.1);
    CHECK(gradients.scale > 1e-3);
    CHECK(logits.largest < 1e-12 * logits.scale);
    CHECK(gradients.largest < 1e-12 * gradients.scale);
    // It is the mask that does it,
    Difference across;
    Difference d_across;
    CompareWithAlone(text, "across", /*restart=*/true, &across, &d_across);
    CHECK(across.largest > 1e-3 * across.scale);
    CHECK(d_across.largest > 1e-3 * d_across.scale);
  }
  // and, where positions are learned, that they begin again.
  Difference placed;
  Difference d_placed;
  CompareWithAlone(kGptOfDocuments, "masked", /*restart=*/false, &placed, &d_placed);
  CHECK(placed.largest > 1e-3 * placed.scale);
}

}  // namespace engine::ops_test
