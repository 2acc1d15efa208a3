// The parts that the graphs of this folder are made of. Letters: B samples, S sequence, D width, H heads, K kv heads, E
// elements of a head.
#pragma once

#include <string>

#include "engine/graph/graph.h"

namespace engine::plan {

class GraphBuilder {
 public:
  static constexpr std::int64_t kWidth = 32;
  static constexpr std::int64_t kHeads = 4;
  static constexpr std::int64_t kKvHeads = 2;
  static constexpr std::int64_t kHead = kWidth / kHeads;

  graph::Graph& graph() { return graph_; }
  // int32.
  graph::ValueId Input(const std::string& name, const Shape& shape, const graph::Dims& dims);
  // Normal numbers; `logical`: without padding of dim 0.
  graph::ValueId Parameter(const std::string& name, graph::Role role, const Shape& shape,
                           const graph::Dims& dims, const Shape& logical);
  graph::ValueId Parameter(const std::string& name, graph::Role role, const Shape& shape,
                           const graph::Dims& dims) {
    return Parameter(name, role, shape, dims, shape);
  }
  // A table [rows, D] for words.
  graph::ValueId Table(const std::string& name, std::int64_t rows);

  // Rows of a table, on the residual stream.
  graph::ValueId Lookup(const std::string& name, graph::ValueId ids, graph::ValueId table);
  // The same of a table of its own for places, of so many.
  graph::ValueId Places(const std::string& name, graph::ValueId positions, std::int64_t most);
  graph::ValueId Add(const std::string& name, graph::ValueId a, graph::ValueId b);
  graph::ValueId Norm(const std::string& name, graph::ValueId x);
  // Over the last `dims` dims of x, with gain 1 + w.
  graph::ValueId OffsetNorm(const std::string& name, graph::ValueId x, int dims);
  // by · x, on the residual stream.
  graph::ValueId Scaled(const std::string& name, graph::ValueId x, double by);
  // x + fc2(gelu(fc1(norm(x)))).
  graph::ValueId Mlp(const std::string& name, graph::ValueId x);
  // x + fc2(geglu(fc1(n)) · σ(fc3(n))), n = norm(x).
  graph::ValueId GatedMlp(const std::string& name, graph::ValueId x);
  // x + attention of norm(x) [B, S, D] over `keys` [B, T, D] (or over norm(x) itself, where that is kNoValue); mask as of
  // graph/mask.h; positions are those of x. normed_dims: queries and keys are normalised over so many of their last dims: 0
  // not at all, 1 each head, 2 all heads together.
  graph::ValueId Attention(const std::string& name, graph::ValueId x, graph::ValueId keys,
                           graph::ValueId positions, const std::string& mask, int normed_dims = 0);
  // Causal attention of a form of its own.
  struct AttentionForm {
    std::int64_t kv_heads = kHeads;
    graph::Attributes attributes = {};  // of attention, beside the scale
    graph::Attributes rotary =
        {};  // of qkv_split, or, where queries, keys and values are not packed, of rotate
    bool packed = true;
    bool sinks = false;
    std::int64_t distance = 0;  // of trained biases by distance, a parameter of their own; 0: none
  };
  // x + attention of norm(x).
  graph::ValueId FormedAttention(const std::string& name, graph::ValueId x, graph::ValueId positions,
                                 const AttentionForm& form);
  // What the logits are made of beside the product: a bias, where it has a name, a scale, where it is not 1, and a soft cap,
  // where it is not 0.
  struct LogitForm {
    std::string bias = {};
    double by = 1;
    double cap = 0;
  };
  // The metric `name`: cross entropy of x · tableᵀ, of so many classes, over `count` labels.
  void Loss(const std::string& name, graph::ValueId x, graph::ValueId table, graph::ValueId labels,
            std::int64_t classes, double count, double weight, const LogitForm& form);
  void Loss(const std::string& name, graph::ValueId x, graph::ValueId table, graph::ValueId labels,
            std::int64_t classes, double count, double weight) {
    Loss(name, x, table, labels, classes, count, weight, LogitForm());
  }

 private:
  graph::ValueId Pinned(graph::ValueId value);
  // x + o · wᵀ, with o [B, S, H, E].
  graph::ValueId Project(const std::string& name, graph::ValueId x, graph::ValueId o);
  // x [..., D] · wᵀ with w [heads, E, D].
  graph::ValueId Heads(const std::string& name, graph::ValueId x, std::int64_t heads);

  graph::Graph graph_;
};

}  // namespace engine::plan
