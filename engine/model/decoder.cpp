#include "engine/model/decoder.h"

#include <cmath>
#include <string>

#include "engine/ops/ops.h"

namespace engine::model {
namespace {

using graph::Attributes;
using graph::Dim;
using graph::Dims;
using graph::Graph;
using graph::Initializer;
using graph::kNoValue;
using graph::Pin;
using graph::Role;
using graph::TensorType;
using graph::Unit;
using graph::ValueId;
using graph::ValueIds;

class DecoderBuilder {
 public:
  DecoderBuilder(const recipe::Recipe& recipe, const BuildOptions& options)
      : recipe_(recipe), model_(recipe.model), options_(options) {}

  Graph Build() {
    const TensorType ids{.shape = {options_.batch, options_.sequence},
                         .dtype = DType::kI32,
                         .dims = {Dim::kSample, Dim::kCausalSequence}};
    tokens_ = graph_.AddInput(kTokens, ids);
    labels_ = graph_.AddInput(kLabels, ids);
    positions_ = graph_.AddInput(kPositions, ids);
    ValueId x = Embedding();
    for (std::int64_t layer = 0; layer < model_.layers; ++layer) {
      const std::string name = fmt::format("layers.{}", layer);
      graph_.BeginUnit(name, Unit::Kind::kBlock);
      x = Residual(name + ".attention", x, AttentionBlock(name + ".attention", x));
      x = Residual(name + ".mlp", x, MlpBlock(name + ".mlp", x));
    }
    Head(x);
    return std::move(graph_);
  }

 private:
  double global_tokens() const { return options_.global_samples * static_cast<double>(options_.sequence); }
  std::int64_t vocab_rows() const {
    return (model_.vocab + options_.vocab_multiple - 1) / options_.vocab_multiple * options_.vocab_multiple;
  }
  ValueId Parameter(const std::string& name, Role role, const Shape& shape, const Dims& dims,
                    Initializer initializer, const Shape& logical) {
    return graph_.AddParameter(name, {.shape = shape, .dtype = options_.dtype, .dims = dims}, logical,
                               initializer, role);
  }
  ValueId Parameter(const std::string& name, Role role, const Shape& shape, const Dims& dims,
                    Initializer initializer) {
    return Parameter(name, role, shape, dims, initializer, shape);
  }
  static Initializer Zeros() { return {Initializer::Kind::kZeros, 0.0}; }
  static Initializer Ones() { return {Initializer::Kind::kOnes, 0.0}; }
  static Initializer Normal(double std) { return {Initializer::Kind::kNormal, std}; }
  // Output projections of residual branches: σ / √(2·layers) (GPT-2; Megatron-LM's scaled init).
  Initializer BranchNormal() const {
    return Normal(model_.init_std / std::sqrt(2.0 * static_cast<double>(model_.layers)));
  }

  void PinResidual(ValueId value) { graph_.value(value).pin = Pin::kResidual; }

  ValueId Dropout(const std::string& name, ValueId x, double p) {
    if (!options_.dropout || p <= 0.0) return x;
    return graph_.Emit1(ops::kDropout, name, {x}, {{"p", p}, {"stream", name}});
  }

  ValueId Norm(const std::string& name, ValueId x) {
    const Shape width = {model_.hidden};
    const ValueId gamma = Parameter(name + ".weight", Role::kGain, width, {Dim::kFeature}, Ones());
    const Attributes attributes = {{"epsilon", model_.norm.epsilon}};
    if (model_.norm.kind == "rmsnorm") return graph_.Emit1(ops::kRmsNorm, name, {x, gamma}, attributes);
    const ValueId beta = Parameter(name + ".bias", Role::kBias, width, {Dim::kFeature}, Zeros());
    return graph_.Emit1(ops::kLayerNorm, name, {x, gamma, beta}, attributes);
  }

  // x · wᵀ (+ b); `out` and `in` are the weight's output and contracted dims.
  ValueId Linear(const std::string& name, ValueId x, const Shape& out, const Dims& out_means, const Shape& in,
                 bool bias, Initializer initializer, int out_split = 0) {
    Shape shape = out;
    Dims dims = out_means;
    const graph::TensorType& read = graph_.value(x).type;
    for (int i = 0; i < in.rank(); ++i) {
      shape.push_back(in[i]);
      dims.push_back(read.meaning(read.shape.rank() - in.rank() + i));
    }
    const ValueId w = Parameter(name + ".weight", Role::kMatrix, shape, dims, initializer);
    const std::int64_t in_dims = in.rank();
    const ValueId y = graph_.Emit1(ops::kLinear, name, {x, w},
                                   {{"in_dims", in_dims}, {"out_split", std::int64_t{out_split}}});
    if (!bias) return y;
    const ValueId b = Parameter(name + ".bias", Role::kBias, out, out_means, Zeros());
    return graph_.Emit1(ops::kBiasAdd, name + ".add_bias", {y, b});
  }

  // A linear whose output joins the residual stream: its placement is the stream's.
  ValueId BranchLinear(const std::string& name, ValueId x, const Shape& in, bool bias) {
    const size_t first = graph_.nodes().size();
    const ValueId y = Linear(name, x, {model_.hidden}, {Dim::kFeature}, in, bias, BranchNormal());
    for (size_t i = first; i < graph_.nodes().size(); ++i) PinResidual(graph_.nodes()[i].outputs[0]);
    return y;
  }

  ValueId Embedding() {
    graph_.BeginUnit("embedding", Unit::Kind::kEntry);
    const std::int64_t width = model_.hidden;
    token_table_ = Parameter("embedding.tokens", Role::kTable, {vocab_rows(), width},
                             {Dim::kVocab, Dim::kFeature}, Normal(model_.init_std), {model_.vocab, width});
    ValueId x = graph_.Emit1(ops::kEmbedding, "embedding.tokens.lookup", {tokens_, token_table_});
    PinResidual(x);
    if (model_.attention.position == "learned") {
      const ValueId table = Parameter("embedding.positions", Role::kTable, {model_.max_positions, width},
                                      {Dim::kOther, Dim::kFeature}, Normal(model_.init_std));
      const ValueId p = graph_.Emit1(ops::kEmbedding, "embedding.positions.lookup", {positions_, table},
                                     {{"replicate", std::int64_t{1}}});
      PinResidual(p);
      x = graph_.Emit1(ops::kAdd, "embedding", {x, p});
      PinResidual(x);
    }
    x = Dropout("embedding.dropout", x, model_.dropout.embedding);
    PinResidual(x);
    return x;
  }

  ValueId Residual(const std::string& name, ValueId x, ValueId branch) {
    branch = Dropout(name + ".dropout", branch, model_.dropout.hidden);
    PinResidual(branch);
    const ValueId sum = graph_.Emit1(ops::kAdd, name + ".residual", {x, branch});
    PinResidual(sum);
    return sum;
  }

  Attributes RotaryAttributes() const {
    const recipe::Attention& attention = model_.attention;
    if (attention.position != "rotary") return {{"rotary", std::int64_t{0}}};
    return {{"rotary", std::int64_t{1}},
            {"base", attention.rope_base},
            {"factor", attention.rope_scaling.factor},
            {"low", attention.rope_scaling.low_frequency_factor},
            {"high", attention.rope_scaling.high_frequency_factor},
            {"original", static_cast<double>(attention.rope_scaling.original_max_positions)}};
  }

  ValueId AttentionBlock(const std::string& name, ValueId x) {
    const std::int64_t heads = model_.attention.heads;
    const std::int64_t kv_heads = recipe_.kv_heads();
    const std::int64_t head_dim = recipe_.head_dim();
    const ValueId normed = Norm(name + ".norm", x);
    const ValueId qkv = Linear(name + ".qkv", normed, {kv_heads, heads / kv_heads + 2, head_dim},
                               {Dim::kHead, Dim::kOther, Dim::kOther}, {model_.hidden}, model_.attention.bias,
                               Normal(model_.init_std));
    const ValueIds q_k_v =
        graph_.Emit(ops::kQkvSplit, name + ".split", {qkv, positions_}, RotaryAttributes());
    Attributes attributes = {{"scale", 1.0 / std::sqrt(static_cast<double>(head_dim))},
                             {"window", model_.attention.window},
                             {"dropout", options_.dropout ? model_.dropout.attention : 0.0},
                             {"stream", name + ".core"}};
    const ValueId core = graph_.Emit1(ops::kAttention, name + ".core",
                                      {q_k_v[0], q_k_v[1], q_k_v[2], positions_}, std::move(attributes));
    return BranchLinear(name + ".proj", core, {heads, head_dim}, model_.attention.bias);
  }

  ValueId Activation(const std::string& name, ValueId wide) {
    const std::string& kind = model_.mlp.activation;
    if (kind == "swiglu") return graph_.Emit1(ops::kSwiglu, name, {wide});
    if (kind == "squared_relu") return graph_.Emit1(ops::kRelu2, name, {wide});
    return graph_.Emit1(ops::kGelu, name, {wide}, {{"tanh", std::int64_t{kind == "gelu_tanh" ? 1 : 0}}});
  }

  ValueId MlpBlock(const std::string& name, ValueId x) {
    const std::int64_t ffn = recipe_.ffn_hidden();
    const bool gated = model_.mlp.activation == "swiglu";
    const ValueId normed = Norm(name + ".norm", x);
    const Shape out = gated ? Shape{2, ffn} : Shape{ffn};
    const Dims out_means = gated ? Dims{Dim::kOther, Dim::kFeature} : Dims{Dim::kFeature};
    const ValueId wide = Linear(name + ".fc1", normed, out, out_means, {model_.hidden}, model_.mlp.bias,
                                Normal(model_.init_std), /*out_split=*/gated ? 1 : 0);
    return BranchLinear(name + ".fc2", Activation(name + ".activation", wide), {ffn}, model_.mlp.bias);
  }

  void Head(ValueId x) {
    graph_.BeginUnit("final_norm", Unit::Kind::kExit);
    const ValueId normed = Norm("final_norm", x);
    const ValueId table =
        model_.tied_embeddings
            ? token_table_
            : Parameter("head.weight", Role::kMatrix, {vocab_rows(), model_.hidden},
                        {Dim::kVocab, Dim::kFeature}, Normal(model_.init_std), {model_.vocab, model_.hidden});
    const ValueId logits = graph_.Emit1(ops::kLinear, "head", {normed, table},
                                        {{"in_dims", std::int64_t{1}}, {"out_split", std::int64_t{0}}});
    graph_.set_logits(logits);
    const ValueIds statistics =
        graph_.Emit(ops::kCrossEntropy, "loss.cross_entropy", {logits, labels_}, {{"classes", model_.vocab}});
    for (ValueId statistic : statistics) graph_.value(statistic).pin = Pin::kReplicated;
    const ValueId loss = graph_.AddMetric("loss", global_tokens(), /*weight=*/1);
    graph_.Emit(ops::kLossSum, "loss.sum", {statistics[0], statistics[1], labels_},
                {{"scale", 1.0 / global_tokens()}}, std::array<ValueId, 1>{loss});
  }

  const recipe::Recipe& recipe_;
  const recipe::Model& model_;
  const BuildOptions& options_;
  Graph graph_;
  ValueId tokens_ = kNoValue;
  ValueId labels_ = kNoValue;
  ValueId positions_ = kNoValue;
  ValueId token_table_ = kNoValue;
};

}  // namespace

graph::Graph BuildDecoder(const recipe::Recipe& recipe, const BuildOptions& options) {
  return DecoderBuilder(recipe, options).Build();
}

}  // namespace engine::model
