#include <doctest/doctest.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/build.h"
#include "engine/model/load.h"
#include "engine/ops/ops.h"
#include "engine/recipe/expand.h"
#include "engine/recipe/fields.h"

namespace engine::model {
namespace {

using graph::Graph;
using graph::Node;
using graph::Parameter;
using graph::Pin;
using graph::Value;
using graph::ValueKind;

std::string TextOf(const std::vector<Diagnostic>& diagnostics) {
  std::string text;
  for (const Diagnostic& diagnostic : diagnostics) text += Format(diagnostic);
  return text;
}

// What every recipe needs next to its model.
constexpr const char* kRest = R"(
[data]
paths = ["any"]
sequence_length = 8
[optimizer]
learning_rate = 1e-3
[training]
global_batch = 1
micro_batch = 1
iterations = 1
)";

// A whole recipe around configs/models/<name>.toml.
recipe::Recipe RecipeOfFragment(const std::string& name) {
  std::string folder = (std::filesystem::temp_directory_path() / "engine_model_XXXXXX").string();
  REQUIRE(mkdtemp(folder.data()) != nullptr);
  const std::string path = folder + "/recipe.toml";
  const std::string fragment = ENGINE_SOURCE_DIR "/configs/models/" + name + ".toml";
  std::ofstream(path) << "extends = [\"" << std::filesystem::relative(fragment, folder).string() << "\"]\n"
                      << kRest;
  const recipe::LoadResult result = Load(path);
  std::filesystem::remove_all(folder);
  INFO(TextOf(result.diagnostics));
  REQUIRE(result.ok());
  return result.recipe;
}

recipe::Recipe RecipeOfModel(const std::string& model) {
  const recipe::LoadResult result = recipe::LoadText(model + kRest, "test");
  INFO(TextOf(result.diagnostics));
  REQUIRE(result.ok());
  return result.recipe;
}

Graph Build(const recipe::Recipe& recipe, std::int64_t batch = 1, std::int64_t sequence = 8) {
  return BuildModel(recipe, {.batch = batch,
                             .sequence = sequence,
                             .vocab_multiple = recipe.model.vocab_multiple,
                             .init_std = recipe.model.init_std});
}

const char* const kSmallGpt = R"([model]
layers = 2
hidden = 24
vocab = 300
max_positions = 10
attention = { heads = 3, position = "learned", bias = true }
mlp = { activation = "gelu_tanh", bias = true }
dropout = { embedding = 0.1, hidden = 0.2, attention = 0.3 }
tied_embeddings = true
)";

const char* const kSmallLlama = R"([model]
layers = 2
hidden = 24
vocab = 300
max_positions = 10
attention = { heads = 4, kv_heads = 2, head_dim = 8, position = "rotary", rope_base = 5e5, window = 6 }
mlp = { hidden = 40, activation = "swiglu" }
norm = { kind = "rmsnorm", epsilon = 1e-6 }
tied_embeddings = false
)";

// Name → parameter; every name occurs once.
std::map<std::string, Parameter> ByName(const Graph& graph) {
  std::map<std::string, Parameter> parameters;
  for (const Parameter& parameter : graph.parameters()) {
    CHECK(parameters.emplace(graph.value(parameter.value).name, parameter).second);
  }
  return parameters;
}

std::map<std::string, Shape> LogicalShapes(const Graph& graph) {
  std::map<std::string, Shape> shapes;
  for (const auto& [name, parameter] : ByName(graph)) shapes[name] = parameter.logical_shape;
  return shapes;
}

const Node& FindNode(const Graph& graph, const std::string& name) {
  for (const Node& node : graph.nodes()) {
    if (node.name == name) return node;
  }
  FAIL("no node ", name);
  return graph.nodes()[0];
}

// Fails with the first name that differs, which a comparison of the whole maps would not print.
void CheckShapes(const std::map<std::string, Shape>& actual, const std::map<std::string, Shape>& expected) {
  CHECK(actual.size() == expected.size());
  for (const auto& [name, shape] : expected) {
    INFO(name);
    REQUIRE(actual.count(name) == 1);
    CHECK(actual.at(name).ToString() == shape.ToString());
  }
}

}  // namespace

TEST_CASE("decoder: parameter counts of the published checkpoints") {
  struct Row {
    const char* model;
    std::int64_t parameters;
  };
  // As the released checkpoints hold them (unpadded vocabulary).
  const Row rows[] = {
      {"gpt2-124m", 124'439'808},       {"gpt2-355m", 354'823'168},    {"gpt2-large", 774'030'080},
      {"gpt2-xl", 1'557'611'200},       {"llama2-7b", 6'738'415'616},  {"llama2-13b", 13'015'864'320},
      {"llama2-70b", 68'976'648'192},   {"llama3-8b", 8'030'261'248},  {"llama3-70b", 70'553'706'496},
      {"llama3-405b", 405'853'388'800}, {"mistral-7b", 7'241'732'096}, {"llama-1b", 1'235'814'400},
  };
  for (const Row& row : rows) {
    CAPTURE(row.model);
    CHECK(CountParameters(Build(RecipeOfFragment(row.model))) == row.parameters);
  }
}

// Models whose steps are text. The counts are those of the released checkpoints; of OPT from 13B on they are computed from
// the published sizes; of Gemma 3 from 4B on, whose checkpoints take images too (4'300'079'472, 12'187'325'040,
// 27'432'406'640), without the 416'866'032 of the vision tower and the 1152·(D + 1) of the projector.
TEST_CASE("texts: parameter counts of the published checkpoints") {
  struct Row {
    const char* model;
    std::int64_t parameters;
  };
  const Row rows[] = {
      {"pythia-70m", 70'426'624},
      {"pythia-160m", 162'322'944},
      {"pythia-410m", 405'334'016},
      {"pythia-1b", 1'011'781'632},
      {"pythia-1.4b", 1'414'647'808},
      {"pythia-2.8b", 2'775'208'960},
      {"pythia-6.9b", 6'857'302'016},
      {"pythia-12b", 11'846'072'320},
      {"gpt-neox-20b", 20'554'567'680},
      {"gpt-j-6b", 6'050'882'784},
      {"opt-125m", 125'239'296},
      {"opt-1.3b", 1'315'758'080},
      {"opt-2.7b", 2'651'596'800},
      {"opt-6.7b", 6'658'473'984},
      {"falcon-7b", 6'921'720'704},
      {"phi3-mini", 3'821'079'552},
      {"gemma-2b", 2'506'172'416},
      {"gemma-7b", 8'537'680'896},
      {"gemma2-2b", 2'614'341'888},
      {"gemma2-9b", 9'241'705'984},
      {"gemma2-27b", 27'227'128'320},
      {"gemma3-1b", 999'885'952},
      {"gemma3-4b", 3'880'263'168},
      {"gemma3-12b", 11'766'034'176},
      {"gemma3-27b", 27'009'346'304},
      {"opt-13b", 12'853'473'280},
      {"opt-30b", 29'974'540'288},
      {"opt-66b", 65'719'701'504},
      {"opt-175b", 174'604'468'224},
      {"qwen2.5-0.5b", 494'032'768},
      {"qwen2.5-1.5b", 1'543'714'304},
      {"qwen2.5-3b", 3'085'938'688},
      {"qwen2.5-7b", 7'615'616'512},
      {"qwen2.5-14b", 14'770'033'664},
      {"qwen2.5-32b", 32'763'876'352},
      {"qwen2.5-72b", 72'706'203'648},
      {"qwen3-0.6b", 596'049'920},
      {"qwen3-1.7b", 1'720'574'976},
      {"qwen3-4b", 4'022'468'096},
      {"qwen3-8b", 8'190'735'360},
      {"qwen3-14b", 14'768'307'200},
      {"qwen3-32b", 32'762'123'264},
      {"olmo2-7b", 7'298'617'344},
      {"olmo2-13b", 13'716'198'400},
      {"llama3.1-8b", 8'030'261'248},
      {"llama3.1-70b", 70'553'706'496},
      {"llama3.2-1b", 1'235'814'400},
      {"llama3.2-3b", 3'212'749'824},
      {"mistral-nemo-12b", 12'247'782'400},
      {"stablelm2-1.6b", 1'644'515'328},
  };
  for (const Row& row : rows) {
    CAPTURE(row.model);
    CHECK(CountParameters(Build(RecipeOfFragment(row.model))) == row.parameters);
  }
}

// Models with experts. All parameters are those of the released checkpoints of Mixtral 8x7B and Qwen3-30B-A3B, and of the others
// computed from the published sizes; those that a token meets are without the experts
// that it does not go to, as the names and cards have them rounded (12.9B, 39B, 1.3B, 2.7B, 3.3B, 22B).
TEST_CASE("texts: parameter counts of models with experts, all and those of a token") {
  struct Row {
    const char* model;
    std::int64_t parameters, active;
    double billions;  // as published
  };
  const Row rows[] = {
      {"mixtral-8x7b", 46'702'792'704, 12'879'925'248, 12.9},
      {"mixtral-8x22b", 140'620'634'112, 39'152'031'744, 39},
      {"olmoe-1b-7b", 6'919'161'856, 1'282'017'280, 1.3},
      {"qwen1.5-moe-a2.7b", 14'315'784'192, 2'689'173'504, 2.7},
      {"qwen3-30b-a3b", 30'532'122'624, 3'353'032'704, 3.3},
      {"qwen3-235b-a22b", 235'093'634'560, 22'190'763'520, 22},
  };
  for (const Row& row : rows) {
    CAPTURE(row.model);
    const Graph graph = Build(RecipeOfFragment(row.model));
    CHECK(CountParameters(graph) == row.parameters);
    CHECK(CountActiveParameters(graph) == row.active);
    CHECK(1e-9 * static_cast<double>(row.active) == doctest::Approx(row.billions).epsilon(0.02));
  }
  CHECK(CountActiveParameters(Build(RecipeOfFragment("gpt2-124m"))) == 124'439'808);  // all
  // Their papers print what a token meets (2.4B and 37B; arXiv:2405.04434, appendix B; arXiv:2412.19437, section 4.2) without the
  // table of embeddings, V·D.
  struct LatentRow {
    const char* model;
    std::int64_t parameters, active, table, without_table;
    double billions;
  };
  for (const LatentRow& row :
       {LatentRow{"deepseek-v2-lite", 15'706'484'224, 2'661'150'208, 102400 * 2048, 2'451'435'008, 2.4},
        {"deepseek-v3", 671'026'419'200, 37'552'297'472, 129280 * 7168, 36'625'618'432, 37}}) {
    CAPTURE(row.model);
    const Graph graph = Build(RecipeOfFragment(row.model));
    CHECK(CountParameters(graph) == row.parameters);
    CHECK(CountActiveParameters(graph) == row.active);
    CHECK(row.active - row.table == row.without_table);
    CHECK(1e-9 * static_cast<double>(row.without_table) == doctest::Approx(row.billions).epsilon(0.025));
  }
  // No checkpoint has it; from its dims: six layers of each kind.
  constexpr std::int64_t kHidden = 768, kWide = 2 * kHidden * 3072, kExperts = 8;
  constexpr std::int64_t kAttention = 4 * kHidden * kHidden + 4 * kHidden + 2 * kHidden;
  constexpr std::int64_t kOthers = (50257 + 1024) * kHidden + 12 * kAttention + 2 * kHidden +
                                   12 * 2 * kHidden + 6 * kWide + 6 * kExperts * kHidden;
  const Graph graph = Build(RecipeOfFragment("gpt2-124m-8e"));
  CHECK(CountParameters(graph) == kOthers + 6 * kExperts * kWide);
  CHECK(CountActiveParameters(graph) == kOthers + 6 * kWide);
}

// Where the papers print rounded sizes only, the exact count follows from their L, h, V and context: with
// biases and an MLP of 4h, a block has 12h² + 13h parameters (arXiv:2104.04473, equation 2), the embeddings
// (V + context)·h, and the final norm, which that equation leaves out, 2h.
TEST_CASE("decoder: parameter counts of the GPT-3 and Megatron tables") {
  struct Row {
    const char* model;
    std::int64_t layers, hidden, vocab;
    double billions;  // as the paper prints it
    double within;    // half a unit of its last printed place, unless noted
  };
  const Row rows[] = {
      // arXiv:2005.14165, table 2.1: the sizes are names more than counts.
      {"gpt3-125m", 12, 768, 50257, 0.125, 0.0005},
      {"gpt3-350m", 24, 1024, 50257, 0.356, 0.0005},
      {"gpt3-760m", 24, 1536, 50257, 0.760, 0.0005},
      {"gpt3-1.3b", 24, 2048, 50257, 1.3, 0.05},
      {"gpt3-2.7b", 32, 2560, 50257, 2.7, 0.05},
      {"gpt3-6.7b", 32, 4096, 50257, 6.7, 0.05},
      {"gpt3-13b", 40, 5120, 50257, 13.0, 0.5},
      {"gpt3-175b", 96, 12288, 50257, 175.0, 0.5},
      // arXiv:2104.04473, table 1.
      {"megatron-1.7b", 24, 2304, 51200, 1.7, 0.05},
      {"megatron-3.6b", 30, 3072, 51200, 3.6, 0.05},
      {"megatron-7.5b", 36, 4096, 51200, 7.5, 0.05},
      {"megatron-18.4b", 40, 6144, 51200, 18.4, 0.05},
      {"megatron-39.1b", 48, 8192, 51200, 39.1, 0.05},
      {"megatron-76.1b", 60, 10240, 51200, 76.1, 0.05},
      {"megatron-145.6b", 80, 12288, 51200, 145.6, 0.05},
      {"megatron-310.1b", 96, 16384, 51200, 310.1, 0.05},
      {"megatron-530b", 105, 20480, 51200, 529.6, 0.05},
      {"megatron-1t", 128, 25600, 51200, 1008.0, 0.05},
  };
  constexpr std::int64_t kContext = 2048;
  for (const Row& row : rows) {
    CAPTURE(row.model);
    const std::int64_t h = row.hidden;
    const std::int64_t expected = row.layers * (12 * h * h + 13 * h) + (row.vocab + kContext) * h + 2 * h;
    CHECK(CountParameters(Build(RecipeOfFragment(row.model))) == expected);
    CHECK(std::abs(1e-9 * static_cast<double>(expected) - row.billions) <= row.within);
  }
}

TEST_CASE("decoder: every model fragment has a count above, and its graph is lawful") {
  size_t models = 0;
  for (const auto& entry : std::filesystem::directory_iterator(ENGINE_SOURCE_DIR "/configs/models")) {
    const std::string name = entry.path().stem().string();
    CAPTURE(name);
    const Graph graph = Build(RecipeOfFragment(name));
    const absl::Status status = graph.Verify();
    CHECK_MESSAGE(status.ok(), Message(status));
    ++models;
  }
  CHECK(models == 89);  // 12 + 50 + 9 + 18 rows
}

// Otherwise a warning of a decoder would point at the step of an expansion that no one has written.
TEST_CASE("decoder: attributes that are said to follow from keys are those of an expansion's steps") {
  for (const recipe::ExpandedAttribute& row : recipe::ExpandedAttributes()) {
    CAPTURE(row.step);
    CAPTURE(row.attribute);
    int found = 0;
    for (const char* const text : {kSmallGpt, kSmallLlama}) {
      Origins origins;
      const Graph graph = BuildModel(RecipeOfModel(text), {.sequence = 8}, &origins);
      REQUIRE(origins.size() == graph.nodes().size());
      for (size_t i = 0; i < origins.size(); ++i) {
        const bool contracts = row.attribute == "contract" && graph.nodes()[i].op == &ops::kLinear;
        const bool says = std::any_of(origins[i]->attributes.begin(), origins[i]->attributes.end(),
                                      [&](const auto& known) { return known.first == row.attribute; });
        found += static_cast<int>(origins[i]->step == row.step && (contracts || says));
      }
    }
    CHECK(found > 0);
    for (const std::string_view key : row.keys) CHECK(recipe::FindField(std::string(key)) != nullptr);
  }
}

TEST_CASE("decoder: a GPT's parameters") {
  const Graph graph = Build(RecipeOfModel(kSmallGpt));
  std::map<std::string, Shape> expected = {{"embedding.tokens", {300, 24}},
                                           {"embedding.positions", {10, 24}},
                                           {"final_norm.weight", {24}},
                                           {"final_norm.bias", {24}}};
  for (const std::string layer : {"layers.0", "layers.1"}) {
    for (const std::string block : {".attention", ".mlp"}) {
      expected[layer + block + ".norm.weight"] = {24};
      expected[layer + block + ".norm.bias"] = {24};
    }
    expected[layer + ".attention.qkv.weight"] = {3, 3, 8, 24};
    expected[layer + ".attention.qkv.bias"] = {3, 3, 8};
    expected[layer + ".attention.proj.weight"] = {24, 3, 8};
    expected[layer + ".attention.proj.bias"] = {24};
    expected[layer + ".mlp.fc1.weight"] = {96, 24};
    expected[layer + ".mlp.fc1.bias"] = {96};
    expected[layer + ".mlp.fc2.weight"] = {24, 96};
    expected[layer + ".mlp.fc2.bias"] = {24};
  }
  CheckShapes(LogicalShapes(graph), expected);
}

TEST_CASE("decoder: a Llama's parameters") {
  const Graph graph = Build(RecipeOfModel(kSmallLlama));
  std::map<std::string, Shape> expected = {
      {"embedding.tokens", {300, 24}}, {"head.weight", {300, 24}}, {"final_norm.weight", {24}}};
  for (const std::string layer : {"layers.0", "layers.1"}) {
    expected[layer + ".attention.norm.weight"] = {24};
    expected[layer + ".mlp.norm.weight"] = {24};
    expected[layer + ".attention.qkv.weight"] = {2, 4, 8,
                                                 24};  // 2 groups of 2 query heads, a key and a value
    expected[layer + ".attention.proj.weight"] = {24, 4, 8};
    expected[layer + ".mlp.fc1.weight"] = {2, 40, 24};
    expected[layer + ".mlp.fc2.weight"] = {24, 40};
  }
  CheckShapes(LogicalShapes(graph), expected);
}

TEST_CASE("decoder: padding rows are in the tables and not in the count") {
  for (const char* model : {kSmallGpt, kSmallLlama}) {
    const recipe::Recipe recipe = RecipeOfModel(model);
    const Graph padded = Build(recipe);
    REQUIRE(recipe.padded_vocab() == 384);
    for (const auto& [name, parameter] : ByName(padded)) {
      CAPTURE(name);
      const bool table = name == "embedding.tokens" || name == "head.weight";
      const Shape& shape = padded.value(parameter.value).type.shape;
      CHECK((shape != parameter.logical_shape) == table);
      if (table) CHECK(shape == Shape{384, 24});
    }
    const Graph exact = BuildModel(recipe, {.batch = 1, .sequence = 8, .vocab_multiple = 1});
    CHECK(CountParameters(padded) == CountParameters(exact));
    CHECK(padded.value(padded.logits()).type.shape == Shape{1, 8, 384});
    CHECK(FindNode(padded, "loss.cross_entropy").attributes.Int("classes") == 300);
  }
}

TEST_CASE("decoder: weight decay on matrices, not on norms and biases") {
  for (const char* model : {kSmallGpt, kSmallLlama}) {
    const Graph graph = Build(RecipeOfModel(model));
    std::set<bool> seen;
    for (const auto& [name, parameter] : ByName(graph)) {
      CAPTURE(name);
      const bool matrix = name.ends_with(".weight") && !name.ends_with("norm.weight");
      CHECK(parameter.weight_decay == (matrix || name.starts_with("embedding.")));
      seen.insert(parameter.weight_decay);
    }
    CHECK(seen.size() == 2);
  }
}

TEST_CASE("decoder: initial values") {
  recipe::Recipe recipe = RecipeOfModel(kSmallGpt);
  recipe.model.init_std = 0.05;
  for (const auto& [name, parameter] : ByName(Build(recipe))) {
    CAPTURE(name);
    using Kind = graph::Initializer::Kind;
    if (name.ends_with(".bias")) {
      CHECK(parameter.initializer.kind == Kind::kZeros);
    } else if (name.ends_with("norm.weight")) {
      CHECK(parameter.initializer.kind == Kind::kOnes);
    } else {
      const bool branch = name.ends_with(".proj.weight") || name.ends_with(".fc2.weight");
      CHECK(parameter.initializer.kind == Kind::kNormal);
      CHECK(parameter.initializer.std == doctest::Approx(branch ? 0.05 / 2.0 : 0.05));  // √(2 · 2 layers) = 2
    }
  }
}

TEST_CASE("decoder: the residual stream and the loss statistics are pinned") {
  for (const char* model : {kSmallGpt, kSmallLlama}) {
    const Graph graph = Build(RecipeOfModel(model), 2, 6);
    const Shape stream = {2, 6, 24};
    size_t residual = 0;
    for (const Value& value : graph.values()) {
      CAPTURE(value.name);
      if (value.pin == Pin::kResidual) {
        CHECK(value.type.shape == stream);
        ++residual;
      }
      const bool norm =
          value.name.ends_with("norm");  // its output feeds a split product, and is the planner's to place
      const bool on_stream = value.kind == ValueKind::kActivation && value.type.shape == stream && !norm;
      CHECK((value.pin == Pin::kResidual) == on_stream);
    }
    CHECK(residual > 0);
    for (graph::ValueId statistic : FindNode(graph, "loss.cross_entropy").outputs) {
      CHECK(graph.value(statistic).pin == Pin::kReplicated);
    }
    REQUIRE(graph.metrics().size() == 1);
    const graph::Metric& loss = graph.metrics()[0];
    CHECK(loss.name == "loss");
    CHECK(loss.weight == 1);
    CHECK(graph.value(loss.sum).kind == ValueKind::kAccumulator);
    CHECK(graph.value(loss.sum).type.dtype == DType::kF64);
  }
}

TEST_CASE("decoder: the knobs reach the ops") {
  const Graph gpt = Build(RecipeOfModel(kSmallGpt));
  CHECK(FindNode(gpt, "layers.1.mlp.activation").op == &ops::kGelu);
  CHECK(FindNode(gpt, "layers.1.mlp.activation").attributes.Int("tanh") == 1);
  CHECK(FindNode(gpt, "layers.0.attention.norm").op == &ops::kLayerNorm);
  CHECK(FindNode(gpt, "layers.0.attention.split").attributes.Int("rotary") == 0);
  CHECK(FindNode(gpt, "layers.0.attention.core").attributes.Float("scale") ==
        doctest::Approx(1 / std::sqrt(8.0)));
  CHECK(FindNode(gpt, "layers.0.attention.core").attributes.Int("window") == 0);
  // Tied: the head reads the token table.
  CHECK(gpt.value(FindNode(gpt, "head").inputs[1]).name == "embedding.tokens");

  recipe::Recipe other = RecipeOfModel(kSmallGpt);
  other.model.mlp.activation = "gelu_erf";
  CHECK(FindNode(Build(other), "layers.1.mlp.activation").attributes.Int("tanh") == 0);

  other.model.mlp.activation = "squared_relu";
  CHECK(FindNode(Build(other), "layers.1.mlp.activation").op == &ops::kRelu2);

  const Graph llama = Build(RecipeOfModel(kSmallLlama));
  CHECK(FindNode(llama, "layers.0.mlp.activation").op == &ops::kSwiglu);
  CHECK(FindNode(llama, "layers.0.mlp.fc1").attributes.Int("out_split") == 1);
  CHECK(FindNode(llama, "final_norm").op == &ops::kRmsNorm);
  CHECK(FindNode(llama, "final_norm").attributes.Float("epsilon") == 1e-6);
  CHECK(FindNode(llama, "layers.0.attention.split").attributes.Float("base") == 5e5);
  CHECK(FindNode(llama, "layers.0.attention.core").attributes.Int("window") == 6);
  CHECK(llama.value(FindNode(llama, "head").inputs[1]).name == "head.weight");
}

TEST_CASE("decoder: dropout where the recipe asks for it, in training only") {
  const recipe::Recipe recipe = RecipeOfModel(kSmallGpt);
  const auto dropouts = [&](bool training) {
    const Graph graph = BuildModel(recipe, {.sequence = 8, .vocab_multiple = 128, .dropout = training});
    std::map<std::string, double> found;
    for (const Node& node : graph.nodes()) {
      if (node.op == &ops::kDropout) found[node.name] = node.attributes.Float("p");
      if (node.op == &ops::kAttention) found[node.name] = node.attributes.Float("dropout");
    }
    return found;
  };
  const std::map<std::string, double> training = {
      {"embedding.dropout", 0.1},    {"layers.0.attention.core", 0.3}, {"layers.0.attention.dropout", 0.2},
      {"layers.0.mlp.dropout", 0.2}, {"layers.1.attention.core", 0.3}, {"layers.1.attention.dropout", 0.2},
      {"layers.1.mlp.dropout", 0.2}};
  CHECK(dropouts(true) == training);
  const std::map<std::string, double> evaluation = {{"layers.0.attention.core", 0.0},
                                                    {"layers.1.attention.core", 0.0}};
  CHECK(dropouts(false) == evaluation);
}

TEST_CASE("decoder: units of the nodes, options, and inputs") {
  const recipe::Recipe recipe = RecipeOfModel(kSmallGpt);
  const Graph graph = BuildModel(
      recipe, {.batch = 2, .sequence = 6, .vocab_multiple = 128, .dtype = DType::kF64, .global_samples = 4});
  std::vector<std::string> units;
  for (const graph::Unit& unit : graph.units()) units.push_back(unit.name);
  CHECK(units == std::vector<std::string>{"embedding", "layers.0", "layers.1", "final_norm"});
  CHECK(graph.units()[0].kind == graph::Unit::Kind::kEntry);
  CHECK(graph.units()[2].kind == graph::Unit::Kind::kBlock);
  CHECK(graph.units()[3].kind == graph::Unit::Kind::kExit);
  std::int32_t last = -1;
  for (const Node& node : graph.nodes()) {
    CAPTURE(node.name);
    CHECK(node.phase == graph::Phase::kForward);
    CHECK(node.unit >= last);
    last = node.unit;
    const size_t dot = node.name.find('.', 7);
    const bool block = node.name.starts_with("layers.");
    CHECK(node.unit == (block                                ? 1 + std::stoi(node.name.substr(7, dot - 7))
                        : node.name.starts_with("embedding") ? 0
                                                             : 3));
  }
  CHECK(last == 3);
  CHECK(FindNode(graph, "loss.sum").attributes.Float("scale") == 1.0 / 24);
  std::set<std::string> inputs;
  for (const Value& value : graph.values()) {
    if (value.kind == ValueKind::kParameter) CHECK(value.type.dtype == DType::kF64);
    if (value.kind != ValueKind::kInput) continue;
    inputs.insert(value.name);
    CHECK(value.type == graph::TensorType{.shape = {2, 6}, .dtype = DType::kI32});
  }
  CHECK(inputs == std::set<std::string>{kTokens, kLabels, kPositions});
}

}  // namespace engine::model
