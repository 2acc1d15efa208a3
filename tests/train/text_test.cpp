// Models that recipes write as steps train alike in every layout.
#include <cmath>
#include <string>
#include <vector>

#include "engine/model/build.h"
#include "engine/model/load.h"
#include "tests/train/text_testing.h"

namespace engine::train::testing {
namespace {

// recipes/custom-block.toml with small dims and the tests' optimizer.
recipe::Recipe CustomBlock(const std::string& sets) {
  std::vector<std::string> all = {"model.dims={ D = 32, L = 3, H = 4, K = 2, E = 8, F = 48, V = 300 }",
                                  "model.vocab_multiple=16",
                                  "model.main.layers={ cycle = { window = [5, 5, 0] } }",
                                  "model.init_std=0.1",
                                  "data.paths=[\"none\"]",
                                  "data.sequence_length=16",
                                  "optimizer.learning_rate=1e-2",
                                  "optimizer.epsilon=1e-3",
                                  "training.global_batch=8",
                                  "training.micro_batch=8",
                                  "training.iterations=5",
                                  "schedule.warmup_iterations=0",
                                  "parallelism.tp=1",
                                  "training.seed=7"};
  const std::vector<std::string> own = SetsOf(sets);
  all.insert(all.end(), own.begin(), own.end());
  return Loaded(model::Load(ENGINE_SOURCE_DIR "/recipes/custom-block.toml", {.sets = all, .root = ""}));
}

// A decoder that also predicts the token after the next: DeepSeek-V3's module of depth 1 (arXiv:2412.19437, section 2.2), whose
// product with the pair of both norms is written as a sum of two.
constexpr const char* kTwoTokens = R"(
[model]
dims = { D = 32, L = 3, H = 4, K = 2, E = 8, F = 48, V = 300 }
inputs = { tokens = "i32[B,S]", labels = "i32[B,S]", positions = "i32[B,S]", labels_2 = "i32[B,S]" }
rotary.rope = { dim = "E", base = 1e4 }
vocab_multiple = 16
init_std = 0.1
main = [
  { do = "embedding", as = "embedding.tokens", of = "tokens", rows = "V", width = "D" },
  { do = "stack", as = "layers", repeat = "L", layer = ["attention as attention", "mlp as mlp"] },
  { do = "rms_norm", as = "final_norm" },
  { do = "linear", as = "head", out = ["V"] },
  { do = "cross_entropy", as = "loss" },
  { do = "embedding", as = "next", of = "labels", weight = "embedding.tokens" },
  { do = "rms_norm", as = "mtp.next_norm", of = "next" },
  { do = "linear", as = "mtp.next_proj", out = ["D"] },
  { do = "rms_norm", as = "mtp.norm", of = "layers" },
  { do = "linear", as = "mtp.proj", out = ["D"] },
  { do = "add", as = "mtp.sum", of = ["mtp.proj", "mtp.next_proj"] },
  { do = "stack", as = "mtp.layers", repeat = 1, layer = ["attention as attention", "mlp as mlp"] },
  { do = "rms_norm", as = "mtp.final_norm" },
  { do = "linear", as = "mtp.head", out = ["V"], weight = "head.weight" },
  { do = "cross_entropy", as = "loss_2", labels = "labels_2", weight = 0.3 },
]
[block.attention]
steps = [
  { do = "rms_norm", as = "norm", of = "x" },
  { do = "linear", as = "qkv", out = ["K", "H/K+2", "E"] },
  { do = "qkv_split", as = "split", to = ["q", "k", "v"], rotary = "rope" },
  { do = "attention", as = "core", of = ["q", "k", "v"] },
  { do = "linear", as = "proj", out = ["D"], init = "branch" },
  { do = "residual", as = "residual", of = ["x", "proj"], to = "x" },
]
[block.mlp]
steps = [
  { do = "rms_norm", as = "norm", of = "x" },
  { do = "linear", as = "fc1", out = [2, "F"] },
  { do = "gate", as = "activation", act = "silu" },
  { do = "linear", as = "fc2", out = ["D"], init = "branch" },
  { do = "residual", as = "residual", of = ["x", "fc2"], to = "x" },
]
)";

// An encoder whose tokens have no positions: attention sees all of them, and nothing rotates.
constexpr const char* kBag = R"(
[model]
dims = { D = 32, L = 3, H = 4, K = 2, E = 8, F = 48, V = 300 }
inputs = { tokens = "i32[B,S]", labels = "i32[B,S]" }
vocab_multiple = 16
init_std = 0.1
main = [
  { do = "embedding", as = "embedding.tokens", of = "tokens", rows = "V", width = "D" },
  { do = "stack", as = "layers", repeat = "L", layer = ["attention as attention", "mlp as mlp"] },
  { do = "rms_norm", as = "final_norm" },
  { do = "linear", as = "head", out = ["V"] },
  { do = "cross_entropy", as = "loss" },
]
[block.attention]
steps = [
  { do = "rms_norm", as = "norm", of = "x" },
  { do = "linear", as = "qkv", out = ["K", "H/K+2", "E"] },
  { do = "qkv_split", as = "split", to = ["q", "k", "v"] },
  { do = "attention", as = "core", of = ["q", "k", "v"], mask = "none" },
  { do = "linear", as = "proj", out = ["D"], init = "branch" },
  { do = "residual", as = "residual", of = ["x", "proj"], to = "x" },
]
[block.mlp]
steps = [
  { do = "rms_norm", as = "norm", of = "x" },
  { do = "linear", as = "fc1", out = [2, "F"] },
  { do = "gate", as = "activation", act = "silu" },
  { do = "linear", as = "fc2", out = ["D"], init = "branch" },
  { do = "residual", as = "residual", of = ["x", "fc2"], to = "x" },
]
)";

recipe::Recipe Bag(const std::string& sets) {
  return Loaded(
      model::LoadText(std::string(kBag) + kCommon + kAdamW, "test.toml", {.sets = SetsOf(sets), .root = ""}));
}

// A decoder whose only positions are the distances of its attention: a table a layer, of buckets beyond which there are both
// nearer and further keys, within a window and beside the other terms of scores.
constexpr const char* kNear = R"(
[model]
dims = { D = 32, L = 3, H = 4, K = 2, E = 8, F = 48, V = 300 }
inputs = { tokens = "i32[B,S]", labels = "i32[B,S]", positions = "i32[B,S]" }
vocab_multiple = 16
init_std = 0.1
main = [
  { do = "embedding", as = "embedding.tokens", of = "tokens", rows = "V", width = "D" },
  { do = "stack", as = "layers", repeat = "L", layer = ["attention as attention", "mlp as mlp"], cycle = { window = [0, 5, 0], sinks = [false, true, true] } },
  { do = "rms_norm", as = "final_norm" },
  { do = "linear", as = "head", out = ["V"] },
  { do = "cross_entropy", as = "loss" },
]
[block.attention]
steps = [
  { do = "rms_norm", as = "norm", of = "x" },
  { do = "linear", as = "qkv", out = ["K", "H/K+2", "E"] },
  { do = "qkv_split", as = "split", to = ["q", "k", "v"] },
  { do = "relative_bias", as = "distances", heads = "H", buckets = 6, max_distance = 8, init = 0.8 },
  { do = "attention", as = "core", of = ["q", "k", "v"], bias = "distances", window = "$window", sinks = "$sinks", softcap = 2.0, dropout = 0.1 },
  { do = "linear", as = "proj", out = ["D"], init = "branch" },
  { do = "residual", as = "residual", of = ["x", "proj"], to = "x" },
]
[block.mlp]
steps = [
  { do = "rms_norm", as = "norm", of = "x" },
  { do = "linear", as = "fc1", out = [2, "F"] },
  { do = "gate", as = "activation", act = "silu" },
  { do = "linear", as = "fc2", out = ["D"], init = "branch" },
  { do = "residual", as = "residual", of = ["x", "fc2"], to = "x" },
]
)";

// An encoder as T5's, whose layers share a table that stands before the stack, and a decoder of one layer that shares it too
// and looks at the encoder besides: the table's value, and its gradient, go through all chunks of a pipeline.
constexpr const char* kShared = R"(
[model]
dims = { D = 32, L = 3, H = 4, K = 4, E = 8, F = 48, V = 300 }
inputs = { tokens = "i32[B,S]", labels = "i32[B,S]", positions = "i32[B,S]" }
vocab_multiple = 16
init_std = 0.1
main = [
  { do = "embedding", as = "embedding.tokens", of = "tokens", rows = "V", width = "D" },
  { do = "relative_bias", as = "distances", heads = "H", buckets = 8, max_distance = 6, both_ways = true, init = 0.8 },
  { do = "stack", as = "encoder", of = { x = "embedding.tokens", bias = "distances" }, repeat = "L", layer = ["attention as attention", "mlp as mlp"], set = { mask = "none" } },
  { do = "rms_norm", as = "memory" },
  { do = "relative_bias", as = "decoder.distances", buckets = 8, max_distance = 10, both_ways = true, weight = "distances.weight" },
  { do = "stack", as = "decoder", of = { x = "embedding.tokens", bias = "decoder.distances" }, repeat = 1, layer = ["attention as attention", "cross as cross", "mlp as mlp"], set = { mask = "causal" } },
  { do = "rms_norm", as = "final_norm" },
  { do = "linear", as = "head", out = ["V"] },
  { do = "cross_entropy", as = "loss" },
]
[block.attention]
steps = [
  { do = "rms_norm", as = "norm", of = "x" },
  { do = "linear", as = "qkv", out = ["K", "H/K+2", "E"] },
  { do = "qkv_split", as = "split", to = ["q", "k", "v"] },
  { do = "attention", as = "core", of = ["q", "k", "v"], mask = "$mask", bias = "bias" },
  { do = "linear", as = "proj", out = ["D"], init = "branch" },
  { do = "residual", as = "residual", of = ["x", "proj"], to = "x" },
]
[block.cross]
steps = [
  { do = "rms_norm", as = "norm", of = "x" },
  { do = "linear", as = "q", out = ["H", "E"] },
  { do = "linear", as = "kv", of = "memory", parts = { k = ["H", "E"], v = ["H", "E"] } },
  { do = "attention", as = "core", of = ["q", "k", "v"] , bias = "distances" },
  { do = "linear", as = "proj", out = ["D"], init = "branch" },
  { do = "residual", as = "residual", of = ["x", "proj"], to = "x" },
]
[block.mlp]
steps = [
  { do = "rms_norm", as = "norm", of = "x" },
  { do = "linear", as = "fc1", out = [2, "F"] },
  { do = "gate", as = "activation", act = "silu" },
  { do = "linear", as = "fc2", out = ["D"], init = "branch" },
  { do = "residual", as = "residual", of = ["x", "fc2"], to = "x" },
]
)";

// The text with a bias for each pair of the 16 places in place of its relative position biases.
std::string ByPair(std::string text) {
  const std::string with = R"({ do = "pair_bias", as = "distances", heads = "H", places = 16, init = 0.8 },)";
  for (std::size_t at = text.find("{ do = \"relative_bias\""); at != std::string::npos;
       at = text.find("{ do = \"relative_bias\"", at)) {
    const std::size_t end = text.find('\n', at);
    const bool first = text.find("pair_bias") == std::string::npos;
    text.replace(at, end - at, first ? with : "");
  }
  const std::string of_decoder = "bias = \"decoder.distances\"";
  const std::size_t at = text.find(of_decoder);
  if (at != std::string::npos) text.replace(at, of_decoder.size(), "bias = \"distances\"");
  return text;
}

recipe::Recipe TextWith(const std::string& text, const std::string& sets) {
  return Loaded(model::LoadText(text + kCommon + kAdamW, "test.toml", {.sets = SetsOf(sets), .root = ""}));
}

recipe::Recipe TwoTokens(const std::string& sets) {
  return Loaded(model::LoadText(std::string(kTwoTokens) + kCommon + kAdamW, "test.toml",
                                {.sets = SetsOf(sets), .root = ""}));
}

}  // namespace

TEST_CASE("texts: a block of a user's own trains alike in every layout") {
  CheckTextLayouts(
      CustomBlock,
      {"micro_batch=8", "tp=2 micro_batch=2", "tp=2 sequence_parallel=true micro_batch=4",
       "cp=2 micro_batch=2", "dp=2 zero_stage=1 micro_batch=2", "dp=2 zero_stage=3 overlap=on micro_batch=2",
       "pp=3 micro_batch=2", "tp=2 pp=3 schedule=zero_bubble micro_batch=2", "granularity=full micro_batch=2",
       "tp=2 overlap=on micro_batch=4"});
}

TEST_CASE("texts: a second token is predicted, in every layout") {
  const Trained one = RunText(TwoTokens, "micro_batch=2");
  REQUIRE(one.metrics[0].size() == 2);
  // The objective is the sum by weights; both begin near the entropy of 300 tokens.
  CHECK(one.losses[0] == doctest::Approx(one.metrics[0][0] + 0.3 * one.metrics[0][1]).epsilon(1e-9));
  CHECK(one.metrics[0][1] == doctest::Approx(std::log(300.0)).epsilon(0.2));
  CHECK(one.metrics[0][1] != one.metrics[0][0]);
  CheckTextLayouts(TwoTokens,
                   {"tp=2 micro_batch=2", "tp=2 sequence_parallel=true micro_batch=2", "cp=2 micro_batch=2",
                    "pp=2 micro_batch=2", "pp=4 micro_batch=2", "dp=2 zero_stage=2 micro_batch=2"});
}

TEST_CASE("texts: an encoder needs no positions where nothing goes by them") {
  const recipe::Recipe recipe = Bag("micro_batch=2");
  const graph::Graph graph = model::BuildModel(recipe, {.sequence = 16});
  for (const graph::Value& value : graph.values()) CHECK(value.name != model::kPositions);
  CheckTextLayouts(Bag, {"tp=2 micro_batch=2", "cp=2 micro_batch=2", "tp=2 cp=2 micro_batch=2",
                         "pp=3 micro_batch=2", "dp=2 micro_batch=2", "granularity=full micro_batch=2"});
}

TEST_CASE("texts: a decoder with a relative position bias a layer trains alike in every layout") {
  CheckTextLayouts(
      [](const std::string& sets) { return TextWith(kNear, sets); },
      {"micro_batch=8", "tp=2 micro_batch=2", "tp=2 sequence_parallel=true micro_batch=4",
       "cp=2 micro_batch=2", "cp=4 micro_batch=2", "tp=2 cp=2 micro_batch=2",
       "dp=2 zero_stage=1 micro_batch=2", "dp=2 zero_stage=3 overlap=on micro_batch=2", "pp=3 micro_batch=2",
       "tp=2 pp=3 schedule=zero_bubble micro_batch=2", "granularity=full micro_batch=2",
       "granularity=selective micro_batch=2", "tp=2 overlap=on micro_batch=4"});
}

TEST_CASE("texts: a relative position bias that all layers share trains alike in every layout") {
  CheckTextLayouts(
      [](const std::string& sets) { return TextWith(kShared, sets); },
      {"micro_batch=8", "tp=2 micro_batch=2", "tp=2 sequence_parallel=true micro_batch=4",
       "cp=2 micro_batch=2", "tp=2 cp=2 micro_batch=2", "dp=2 zero_stage=1 micro_batch=2",
       "dp=2 zero_stage=3 overlap=on micro_batch=2", "pp=2 micro_batch=2", "pp=4 micro_batch=2",
       "pp=2 virtual_stages=2 micro_batch=2", "tp=2 pp=4 schedule=zero_bubble micro_batch=2",
       "cp=2 pp=2 micro_batch=2", "dp=2 pp=2 zero_stage=2 micro_batch=2", "granularity=full micro_batch=2",
       "granularity=full pp=2 micro_batch=2", "tp=2 overlap=on micro_batch=4"});
}

TEST_CASE(
    "texts: a bias for each pair of places trains alike in every layout, a layer's own or one that all "
    "share") {
  CheckTextLayouts(
      [](const std::string& sets) { return TextWith(ByPair(kNear), sets); },
      {"micro_batch=8", "tp=2 micro_batch=2", "tp=2 sequence_parallel=true micro_batch=4",
       "cp=2 micro_batch=2", "tp=2 cp=2 micro_batch=2", "dp=2 zero_stage=3 overlap=on micro_batch=2",
       "tp=2 pp=3 schedule=zero_bubble micro_batch=2", "granularity=full micro_batch=2"});
  CheckTextLayouts(
      [](const std::string& sets) { return TextWith(ByPair(kShared), sets); },
      {"micro_batch=8", "tp=2 micro_batch=2", "cp=2 micro_batch=2", "dp=2 zero_stage=1 micro_batch=2",
       "pp=2 micro_batch=2", "pp=2 virtual_stages=2 micro_batch=2", "granularity=full pp=2 micro_batch=2"});
}

}  // namespace engine::train::testing
