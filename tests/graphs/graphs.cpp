#include "tests/graphs/graphs.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "engine/ops/ops.h"
#include "tests/graphs/builder.h"

namespace engine::plan {
namespace {

using graph::Dim;
using graph::kNoValue;
using graph::Unit;
using graph::ValueId;

constexpr std::int64_t kWords = 64;
constexpr std::int64_t kClasses = 5;  // of 8 rows of the class head: the rest is padding
constexpr std::int64_t kMostPlaces = 64;

double TokensOf(const GraphSizes& sizes, std::int64_t sequence) {
  return static_cast<double>(sizes.global_samples * sequence);
}

graph::Graph BuildLadder(const GraphSizes& sizes, int blocks) {
  GraphBuilder b;
  const Shape tokens_shape = {sizes.samples, sizes.sequence};
  const ValueId tokens = b.Input("tokens", tokens_shape, {Dim::kSample, Dim::kSequence});
  const ValueId labels = b.Input("labels", tokens_shape, {Dim::kSample, Dim::kSequence});
  b.graph().BeginUnit("entry", Unit::Kind::kEntry);
  const ValueId table = b.Table("table", kWords);
  ValueId x = b.Lookup("lookup", tokens, table);
  ValueId first = kNoValue;
  for (int block = 0; block < blocks; ++block) {
    const std::string name = "blocks." + std::to_string(block);
    b.graph().BeginUnit(name, Unit::Kind::kBlock);
    if (block == blocks / 2) x = b.Add(name + ".again", x, b.Lookup(name + ".lookup", tokens, table));
    x = b.Mlp(name, x);
    if (block == 0) first = x;
  }
  x = b.Add("shortcut", x, first);
  b.graph().BeginUnit("head", Unit::Kind::kExit);
  b.Loss("loss", b.Norm("final_norm", x), table, labels, kWords, TokensOf(sizes, sizes.sequence), 1);
  return std::move(b.graph());
}

// The class of a sequence, told from its first token.
void ClassHead(const GraphSizes& sizes, ValueId states, ValueId labels, double weight, GraphBuilder* b) {
  const ValueId token =
      b->graph().Emit1(ops::kSelectToken, "class.token", {states}, {{"index", std::int64_t{0}}});
  const ValueId head = b->Parameter("class.weight", graph::Role::kMatrix, {8, GraphBuilder::kWidth},
                                    {Dim::kVocab, Dim::kFeature}, {kClasses, GraphBuilder::kWidth});
  b->Loss("class", token, head, labels, kClasses, static_cast<double>(sizes.global_samples), weight);
}

// Blocks of attention without a mask over `x`, as units, and the final norm, in a unit with what is done in `exit`.
ValueId EncoderStack(int blocks, ValueId x, ValueId positions, GraphBuilder* b) {
  for (int block = 0; block < blocks; ++block) {
    const std::string name = "encoder." + std::to_string(block);
    b->graph().BeginUnit(name, Unit::Kind::kBlock);
    x = b->Attention(name + ".attention", x, kNoValue, positions, "none");
    x = b->Mlp(name + ".mlp", x);
  }
  b->graph().BeginUnit("encoder.exit", Unit::Kind::kExit);
  return b->Norm("encoder.norm", x);
}

graph::Graph BuildEncoder(const GraphSizes& sizes, int blocks) {
  GraphBuilder b;
  const Shape tokens_shape = {sizes.samples, sizes.sequence};
  const ValueId tokens = b.Input("tokens", tokens_shape, {Dim::kSample, Dim::kSequence});
  const ValueId positions = b.Input("positions", tokens_shape, {Dim::kSample, Dim::kSequence});
  const ValueId classes = b.Input("classes", {sizes.samples}, {Dim::kSample});
  b.graph().BeginUnit("entry", Unit::Kind::kEntry);
  const ValueId words = b.Lookup("words", tokens, b.Table("table", kWords));
  const ValueId x = b.Add("embedding", words, b.Places("places", positions, kMostPlaces));
  ClassHead(sizes, EncoderStack(blocks, x, positions, &b), classes, 1, &b);
  return std::move(b.graph());
}

graph::Graph BuildEncoderDecoder(const GraphSizes& sizes, int encoder_blocks, int decoder_blocks) {
  GraphBuilder b;
  const std::int64_t target_length = sizes.sequence / 2;
  const graph::Dims source_dims = {Dim::kSample, Dim::kSequence};
  const graph::Dims target_dims = {Dim::kSample, Dim::kCausalSequence};
  const ValueId source = b.Input("source", {sizes.samples, sizes.sequence}, source_dims);
  const ValueId source_places = b.Input("source_places", {sizes.samples, sizes.sequence}, source_dims);
  const ValueId target = b.Input("target", {sizes.samples, target_length}, target_dims);
  const ValueId target_places = b.Input("target_places", {sizes.samples, target_length}, target_dims);
  const ValueId labels = b.Input("labels", {sizes.samples, target_length}, target_dims);
  const ValueId classes = b.Input("classes", {sizes.samples}, {Dim::kSample});
  b.graph().BeginUnit("encoder.entry", Unit::Kind::kEntry);
  const ValueId table = b.Table("table", kWords);
  ValueId x = b.Add("encoder.embedding", b.Lookup("encoder.words", source, table),
                    b.Places("encoder.places", source_places, kMostPlaces));
  const ValueId states = EncoderStack(encoder_blocks, x, source_places, &b);
  ClassHead(sizes, states, classes, kClassWeight, &b);
  b.graph().BeginUnit("decoder.entry", Unit::Kind::kEntry);
  x = b.Add("decoder.embedding", b.Lookup("decoder.words", target, table),
            b.Places("decoder.places", target_places, kMostPlaces));
  for (int block = 0; block < decoder_blocks; ++block) {
    const std::string name = "decoder." + std::to_string(block);
    b.graph().BeginUnit(name, Unit::Kind::kBlock);
    x = b.Attention(name + ".attention", x, kNoValue, target_places, "causal");
    x = b.Attention(name + ".cross", x, states, target_places, "none");
    x = b.Mlp(name + ".mlp", x);
  }
  b.graph().BeginUnit("head", Unit::Kind::kExit);
  b.Loss("loss", b.Norm("decoder.norm", x), table, labels, kWords, TokensOf(sizes, target_length), 1);
  return std::move(b.graph());
}

graph::Graph BuildNormedDecoder(const GraphSizes& sizes, int blocks, int normed_dims) {
  GraphBuilder b;
  const Shape tokens_shape = {sizes.samples, sizes.sequence};
  const graph::Dims dims = {Dim::kSample, Dim::kCausalSequence};
  const ValueId tokens = b.Input("tokens", tokens_shape, dims);
  const ValueId positions = b.Input("positions", tokens_shape, dims);
  const ValueId labels = b.Input("labels", tokens_shape, dims);
  b.graph().BeginUnit("entry", Unit::Kind::kEntry);
  const ValueId table = b.Table("table", kWords);
  ValueId x = b.Lookup("lookup", tokens, table);
  x = b.Scaled("embedding", x, std::sqrt(static_cast<double>(GraphBuilder::kWidth)));
  for (int block = 0; block < blocks; ++block) {
    const std::string name = "blocks." + std::to_string(block);
    b.graph().BeginUnit(name, Unit::Kind::kBlock);
    x = b.Attention(name + ".attention", x, kNoValue, positions, "causal", normed_dims);
    x = b.GatedMlp(name + ".mlp", x);
  }
  b.graph().BeginUnit("head", Unit::Kind::kExit);
  b.Loss("loss", b.OffsetNorm("final_norm", x, 1), table, labels, kWords, TokensOf(sizes, sizes.sequence), 1,
         {.bias = "head.bias", .by = 0.75, .cap = 2});
  return std::move(b.graph());
}

std::vector<GraphBuilder::AttentionForm> FormsOfAttention() {
  constexpr std::int64_t kOne = 1;
  const graph::Attributes window = {{"window", std::int64_t{6}}};
  graph::Attributes biased = window;
  biased.Set("softcap", 0.5);
  biased.Set("alibi", kOne);
  return {{.attributes = biased, .rotary = {{"rotary", std::int64_t{0}}}},
          {.attributes = {{"softcap", 0.5}},
           .rotary = {{"rotary", kOne},
                      {"base", 100.0},
                      {"scaling", std::string("yarn")},
                      {"factor", 4.0},
                      {"original", 64.0},
                      {"width", std::int64_t{4}},
                      {"interleaved", kOne}}},
          {.attributes = window,
           .rotary = {{"rotary", kOne}, {"base", 100.0}, {"scaling", std::string("linear")}, {"factor", 2.0}},
           .sinks = true},
          {.kv_heads = GraphBuilder::kKvHeads,
           .attributes = {{"softcap", 0.5}, {"dropout", 0.2}, {"stream", std::string("core")}},
           .rotary = {{"base", 100.0},
                      {"scaling", std::string("longrope")},
                      {"factor", 4.0},
                      {"original", 64.0},
                      {"factors", std::string("1,1.5,2,4")}},
           .packed = false,
           .sinks = true}};
}

std::vector<GraphBuilder::AttentionForm> FormsOfBiases() {
  const graph::Attributes straight = {{"rotary", std::int64_t{0}}};
  const graph::Attributes turned = {{"base", 100.0}};
  return {{.rotary = straight, .distance = 20},
          {.attributes = {{"window", std::int64_t{6}}, {"softcap", 0.5}, {"alibi", std::int64_t{1}}},
           .rotary = straight,
           .sinks = true,
           .distance = 3},
          {.kv_heads = GraphBuilder::kKvHeads,
           .attributes = {{"mask", std::string("none")}, {"dropout", 0.2}, {"stream", std::string("core")}},
           .rotary = turned,
           .packed = false,
           .distance = 3}};
}

graph::Graph BuildForms(const std::vector<GraphBuilder::AttentionForm>& forms, const GraphSizes& sizes) {
  GraphBuilder b;
  const Shape tokens_shape = {sizes.samples, sizes.sequence};
  const graph::Dims dims = {Dim::kSample, Dim::kCausalSequence};
  const ValueId tokens = b.Input("tokens", tokens_shape, dims);
  const ValueId positions = b.Input("positions", tokens_shape, dims);
  const ValueId labels = b.Input("labels", tokens_shape, dims);
  b.graph().BeginUnit("entry", Unit::Kind::kEntry);
  const ValueId table = b.Table("table", kWords);
  ValueId x = b.Lookup("lookup", tokens, table);
  int block = 0;
  for (const GraphBuilder::AttentionForm& form : forms) {
    const std::string name = "blocks." + std::to_string(block++);
    b.graph().BeginUnit(name, Unit::Kind::kBlock);
    x = b.FormedAttention(name + ".attention", x, positions, form);
    x = b.Mlp(name + ".mlp", x);
  }
  b.graph().BeginUnit("head", Unit::Kind::kExit);
  b.Loss("loss", b.Norm("final_norm", x), table, labels, kWords, TokensOf(sizes, sizes.sequence), 1);
  return std::move(b.graph());
}

}  // namespace

GraphModel NormedDecoder(int blocks, int normed_dims) {
  return {.build = [=](const GraphSizes& sizes) { return BuildNormedDecoder(sizes, blocks, normed_dims); },
          .limits = {{"tokens", kWords}, {"positions", 0}, {"labels", kWords}}};
}

GraphModel AttentionForms() {
  return {.build = [](const GraphSizes& sizes) { return BuildForms(FormsOfAttention(), sizes); },
          .limits = {{"tokens", kWords}, {"positions", 0}, {"labels", kWords}}};
}

GraphModel DistanceBiases() {
  return {.build = [](const GraphSizes& sizes) { return BuildForms(FormsOfBiases(), sizes); },
          .limits = {{"tokens", kWords}, {"positions", 0}, {"labels", kWords}}};
}

GraphModel Ladder(int blocks) {
  return {.build = [=](const GraphSizes& sizes) { return BuildLadder(sizes, blocks); },
          .limits = {{"tokens", kWords}, {"labels", kWords}}};
}

GraphModel Encoder(int blocks) {
  return {.build = [=](const GraphSizes& sizes) { return BuildEncoder(sizes, blocks); },
          .limits = {{"tokens", kWords}, {"positions", 0}, {"classes", kClasses}}};
}

GraphModel EncoderDecoder(int encoder_blocks, int decoder_blocks) {
  return {
      .build =
          [=](const GraphSizes& sizes) { return BuildEncoderDecoder(sizes, encoder_blocks, decoder_blocks); },
      .limits = {{"source", kWords},
                 {"source_places", 0},
                 {"target", kWords},
                 {"target_places", 0},
                 {"labels", kWords},
                 {"classes", kClasses}}};
}

GraphModel WithTraining(const GraphModel& model,
                        const std::function<graph::TrainingSettings(const std::string& name)>& settings_of) {
  GraphModel changed = model;
  changed.build = [build = model.build, settings_of](const GraphSizes& sizes) {
    graph::Graph graph = build(sizes);
    std::vector<ValueId> parameters;
    for (const graph::Parameter& parameter : graph.parameters()) parameters.push_back(parameter.value);
    for (ValueId parameter : parameters)
      graph.SetTraining(parameter, settings_of(graph.value(parameter).name));
    return graph;
  };
  return changed;
}

GraphModel WithLossTerms(const GraphModel& model, double smoothing, double z_loss) {
  GraphModel changed = model;
  changed.build = [build = model.build, smoothing, z_loss](const GraphSizes& sizes) {
    graph::Graph graph = build(sizes);
    for (graph::Node& node : graph.nodes()) {
      if (node.op != &ops::kCrossEntropy && node.op != &ops::kLossSum) continue;
      if (smoothing > 0) node.attributes.Set("smoothing", smoothing);
      if (z_loss > 0) node.attributes.Set("z_loss", z_loss);
    }
    return graph;
  };
  return changed;
}

absl::StatusOr<Plan> PlanOfGraph(const recipe::Recipe& recipe, const GraphModel& model,
                                 const DeviceProfile& profile, const std::vector<std::int64_t>& blocks) {
  const compile::CompileOptions options{.profile = profile};
  ASSIGN_OR_RETURN(compile::Policy policy, compile::ResolvePolicy(recipe, options));
  if (!blocks.empty()) policy.chunk_blocks = blocks;
  const GraphSizes sizes{.samples = policy.microbatch_samples,
                         .sequence = policy.sequence,
                         .global_samples = policy.global_batch};
  ASSIGN_OR_RETURN(compile::Compiled compiled,
                   compile::Compile(policy, model.build(sizes), model.build(sizes), options));
  return std::move(compiled.plan);
}

}  // namespace engine::plan
