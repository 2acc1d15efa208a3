// Flags that no key of a decoder says: the model as steps, which must load, and have what the flag means. Meanings are those of
// Megatron-LM's arguments.py and transformer_config.py.
#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/import/megatron_layer_pattern.h"
#include "engine/model/build.h"
#include "engine/model/load.h"
#include "engine/recipe/text.h"
#include "tests/import/megatron_script.h"
#include "tests/import/megatron_steps.h"

namespace engine::import {
namespace {

const Flags kRope = {{"--position-embedding-type", "rope"}};
const Flags kYarn = {{"--position-embedding-type", "yarn"},
                     {"--yarn-rotary-scaling-factor", "16"},
                     {"--yarn-original-max-position-embeddings", "16"}};

std::string RopeOf(const Flags& changes) { return StepsOfImport(changes)["model.rotary.rope"]; }

}  // namespace

TEST_CASE("megatron steps: lists of layers in Python's notation") {
  using List = std::vector<std::int64_t>;
  CHECK(EvaluateLayerList("[1,0]", 9) == List{1, 0});
  CHECK(EvaluateLayerList("([0]*3+[1]*1)*2", 9) == List{0, 0, 0, 1, 0, 0, 0, 1});
  CHECK(EvaluateLayerList("2*[1,0]+[1,1,]", 9) == List{1, 0, 1, 0, 1, 1});
  CHECK(EvaluateLayerList("[1]*(1+2)*2", 9) == List{1, 1, 1, 1, 1, 1});
  CHECK(EvaluateLayerList("[]+[1]*0", 9) == List{});
  for (const char* bad : {"", "3", "[1", "1]", "[1]*[2]", "[1]+2", "[[1]]", "[-1]", "[1 ,0]",
                          "[1]*99999999999999999999", "([1]", "[1],[2]", "[1]**2", "__import__('os')"}) {
    CAPTURE(bad);
    CHECK(!EvaluateLayerList(bad, 9));
  }
  CHECK(!EvaluateLayerList("[1]*10", 9));
  CHECK(!EvaluateLayerList("[1]*1000000*1000000", 9));
  CHECK(!EvaluateLayerList(std::string(100000, '('), 9));
  CHECK(PeriodOf({1, 1, 1}) == 1);
  CHECK(PeriodOf({1, 0, 1, 1, 0, 1, 1, 0}) == 3);
  CHECK(PeriodOf({1, 1, 0, 0}) == 4);
}

TEST_CASE("megatron steps: what the keys of a decoder say stays keys") {
  CHECK(StepsOfImport({}).empty());
  CHECK(StepsOfImport({{"--softmax-type", "vanilla"}, {"--glu-linear-offset", "0"}, {"--add-qkv-bias", ""}})
            .empty());
  CHECK(StepsOfImport({{"--embedding-init-method-std", "0.01"}, {"--init-method-std", "0.01"}}).empty());
  CHECK(StepsOfImport(
            With(kRope, {{"--rotary-percent", "1.0"}, {"--rotary-seq-len-interpolation-factor", "1"}}))
            .empty());
  CHECK(StepsOfImport({{"--window-size", "15,0"}, {"--window-attn-skip-freq", "9"}}).empty());  // of 8 layers
  CHECK(LoadedImport({{"--window-size", "15,0"}, {"--window-attn-skip-freq", "1"}}).model.attention.window ==
        0);
  CHECK(LoadedImport(With(kRope, {{"--no-rope-freq", "1"}})).model.attention.position == "none");
  CHECK(StepsOfImport({{"--rotary-interleaved", ""}, {"--rotary-percent", "0.5"}, {"--no-rope-freq", "2"}})
            .empty());
}

TEST_CASE("megatron steps: further tokens") {
  TextTable steps =
      StepsOfImport(With(kRope, {{"--mtp-num-layers", "2"}, {"--mtp-loss-scaling-factor", "0.3"}}));
  CHECK(IsWithin(
      "mtp.0.embedding, mtp.0.enorm, mtp.0.e_proj, mtp.0.hnorm, mtp.0.h_proj, mtp.0.pair, mtp.0.layer, "
      "mtp.0.final_norm, mtp.0.head, loss_2, mtp.1.embedding",
      steps["model.main"]));
  CHECK(IsWithin("of = \"labels\"", steps["model.main.mtp.0.embedding"]));
  CHECK(IsWithin("of = \"labels_2\"", steps["model.main.mtp.1.embedding"]));
  CHECK(IsWithin("of = \"mtp.0.layer\"", steps["model.main.mtp.1.hnorm"]));
  CHECK(IsWithin("labels = \"labels_3\", weight = 0.15", steps["model.main.loss_3"]));
  CHECK(steps["model.inputs.labels_3"] == "\"i32[B,S]\"");
  steps = StepsOfImport(
      With(kRope, {{"--mtp-num-layers", "1"}, {"--window-size", "15,0"}, {"--window-attn-skip-freq", "3"}}));
  CHECK(IsWithin("set = { window = 0 }", steps["model.main.mtp.0.layer"]));  // layer 8 of [16, 16, 0, …]
  CHECK(IsWithin("weight = 0.1 }", steps["model.main.loss_2"]));
}

TEST_CASE("megatron steps: norms") {
  TextTable steps = StepsOfImport(With(kRope, {{"--qk-layernorm", ""}, {"--norm-epsilon", "1e-6"}}));
  CHECK(steps["block.attention"] ==
        "[norm, qkv, split, q_norm, k_norm, rotary, core, proj, dropout, residual]");
  CHECK(steps["block.attention.q_norm"] ==
        "{ do = \"layer_norm\", as = \"q_norm\", of = \"q\", to = \"q\", epsilon = 1e-06 }");
  CHECK(!IsWithin("rotary", steps["block.attention.split"]));
  CHECK(IsWithin("table = \"rope\"", steps["block.attention.rotary"]));
  steps = StepsOfImport({{"--qk-layernorm", ""}, {"--normalization", "RMSNorm"}});  // learned positions
  CHECK(steps["block.attention"] == "[norm, qkv, split, q_norm, k_norm, core, proj, dropout, residual]");
  CHECK(IsWithin("do = \"rms_norm\"", steps["block.attention.k_norm"]));
  steps = StepsOfImport({{"--apply-layernorm-1p", ""}, {"--qk-layernorm", ""}});
  for (const char* name : {"model.main.final_norm", "block.attention.norm", "block.attention.q_norm",
                           "block.attention.k_norm", "block.mlp.norm"}) {
    CAPTURE(name);
    CHECK(IsWithin("gain_offset = 1", steps[name]));
  }
}

TEST_CASE("megatron steps: biases, activations, sinks, first values") {
  TextTable steps = StepsOfImport({{"--disable-bias-linear", ""}, {"--add-qkv-bias", ""}});
  CHECK(IsWithin("bias = true", steps["block.attention.qkv"]));
  for (const char* name : {"block.attention.proj", "block.mlp.fc1", "block.mlp.fc2"})
    CHECK(!IsWithin("bias", steps[name]));
  steps = StepsOfImport({{"--quick-geglu", ""}});
  CHECK(IsWithin("out = [2, \"F\"], bias = true", steps["block.mlp.fc1"]));
  CHECK(steps["block.mlp.activation"] == "{ do = \"gate\", as = \"activation\", act = \"quick_gelu\" }");
  CHECK(steps["model.dims.F"] == "256");  // 4 · 64: only --swiglu has another width by default
  steps = StepsOfImport({{"--softmax-type", "learnable"}, {"--attention-dropout", "0"}});
  CHECK(IsWithin("sinks = true", steps["block.attention.core"]));
  steps =
      StepsOfImport({{"--embedding-init-method-std", "0.5"}, {"--untie-embeddings-and-output-weights", ""}});
  CHECK(IsWithin("init = 0.5", steps["model.main.embedding.tokens"]));
  CHECK(IsWithin("init = 0.5", steps["model.main.embedding.positions"]));
  CHECK(!IsWithin("init", steps["model.main.head"]));
}

TEST_CASE("megatron steps: rotary tables") {
  const auto rope = [](const Flags& flags) { return RopeOf(With(kRope, flags)); };
  CHECK(rope({{"--rotary-percent", "0.5"}}) == "{ dim = \"E\", base = 10000.0, width = 4 }");
  CHECK(rope({{"--rotary-percent", "0.3"}}) == "{ dim = \"E\", base = 10000.0, width = 2 }");  // int(2.4)
  CHECK(rope({{"--rotary-interleaved", ""}, {"--rotary-base", "500"}}) ==
        "{ dim = \"E\", base = 500.0, interleaved = true }");
  CHECK(rope({{"--rotary-seq-len-interpolation-factor", "4"}}) ==
        "{ dim = \"E\", base = 10000.0, scaling = \"linear\", factor = 4.0 }");
  CHECK(rope({{"--use-rope-scaling", ""}, {"--rotary-interleaved", ""}}) ==
        "{ dim = \"E\", base = 10000.0, scaling = \"llama3\", factor = 8.0, low = 1.0, high = 4.0, original "
        "= 8192, "
        "interleaved = true }");
  CHECK(RopeOf(kYarn) == "{ dim = \"E\", base = 10000.0, scaling = \"yarn\", factor = 16.0, original = 16 }");
  // 0.1 · 0.5 · ln 16 + 1 over 0.1 · 0.25 · ln 16 + 1.
  const std::string yarn = RopeOf(With(kYarn, {{"--yarn-beta-fast", "24"},
                                               {"--yarn-beta-slow", "2"},
                                               {"--yarn-mscale", "0.5"},
                                               {"--yarn-mscale-all-dim", "0.25"},
                                               {"--no-yarn-correction-range-round-to-int", ""}}));
  CHECK(IsWithin("beta_fast = 24.0, beta_slow = 2.0, attention_factor = 1.064", yarn));
  CHECK(IsWithin("truncate = false", yarn));
}

TEST_CASE("megatron steps: patterns of layers") {
  TextTable steps = StepsOfImport({{"--window-size", "15,0"}, {"--window-attn-skip-freq", "4"}});
  CHECK(IsWithin("cycle = { window = [16, 16, 16, 0] }", steps["model.main.layers"]));
  CHECK(IsWithin("window = \"$window\"", steps["block.attention.core"]));
  steps = StepsOfImport(With(kRope, {{"--no-rope-freq", "\"([0]*3+[1])*2\""}}));
  CHECK(IsWithin("cycle = { table = [\"rope\", \"rope\", \"rope\", \"none\"] }", steps["model.main.layers"]));
  CHECK(IsWithin("rotary = \"$table\"", steps["block.attention.split"]));
  steps = StepsOfImport(With(kRope, {{"--no-rope-freq", "2"}, {"--qk-layernorm", ""}}));
  CHECK(IsWithin("table = \"$table\"", steps["block.attention.rotary"]));
  steps = StepsOfImport({{"--window-size", "\"(15,0)\""}, {"--window-attn-skip-freq", "\"[1]+[0]*7\""}});
  CHECK(IsWithin("window = [16, 0, 0, 0, 0, 0, 0, 0]", steps["model.main.layers"]));
}

TEST_CASE("megatron steps: a script with several, in a layout") {
  const Flags flags = With(kRope, {{"--qk-layernorm", ""},
                                   {"--apply-wd-to-qk-layernorm", ""},
                                   {"--weight-decay", "0.1"},
                                   {"--apply-layernorm-1p", ""},
                                   {"--normalization", "RMSNorm"},
                                   {"--swiglu", ""},
                                   {"--ffn-hidden-size", "96"},
                                   {"--disable-bias-linear", ""},
                                   {"--add-qkv-bias", ""},
                                   {"--rotary-percent", "0.5"},
                                   {"--window-size", "15,0"},
                                   {"--window-attn-skip-freq", "2"},
                                   {"--no-rope-freq", "2"},
                                   {"--softmax-type", "learnable"},
                                   {"--group-query-attention", ""},
                                   {"--num-query-groups", "2"},
                                   {"--tensor-model-parallel-size", "2"},
                                   {"--pipeline-model-parallel-size", "2"},
                                   {"--recompute-activations", ""},
                                   {"--attention-dropout", "0"},
                                   {"--hidden-dropout", "0"},
                                   {"--untie-embeddings-and-output-weights", ""},
                                   {"--make-vocab-size-divisible-by", "64"}});
  const recipe::Recipe recipe = LoadedImport(flags);
  REQUIRE(recipe.is_text());
  CHECK(recipe.model.layers == 8);
  CHECK(recipe.model.vocab == 1000);
  CHECK(recipe.model.hidden == 64);
  CHECK(recipe.model.vocab_multiple == 64);
  CHECK(recipe.parallelism.layers_per_stage == std::vector<std::int64_t>{4, 4});
  const graph::Graph graph = model::BuildModel(recipe, {.batch = 8, .sequence = 32, .vocab_multiple = 128});
  std::map<std::string, double> decays;  // of those that have one of their own
  for (const graph::Parameter& parameter : graph.parameters()) {
    const std::optional<double>& decay = parameter.training.weight_decay;
    if (decay) decays[graph.value(parameter.value).name] = *decay;
  }
  CHECK(decays.size() == 16);
  CHECK(decays["layers.7.attention.k_norm.weight"] == 0.1);
  // Of a layer: two norms, qkv of 2 groups of 4 + 2 heads of 8 with its bias, sinks, norms of q and k, proj, fc1, fc2.
  const std::int64_t layer = 2 * 64 + 2 * 6 * 8 * (64 + 1) + 8 + 2 * 8 + 64 * 64 + 3 * 64 * 96;
  CHECK(model::CountParameters(graph) == 8 * layer + 64 + 2 * 1000 * 64);
  const std::string text = Import(Script(flags)).recipe;
  CHECK(
      IsWithin("# The steps of a decoder, changed by --qk-layernorm, --apply-layernorm-1p, --add-qkv-bias, "
               "--softmax-type,\n# --window-attn-skip-freq, --no-rope-freq, --rotary-percent:\n",
               text));
}

TEST_CASE("megatron steps: groups of the optimizer") {
  const auto group = [](const Flags& flags) {
    const recipe::Recipe recipe = LoadedImport(With(flags, {{"--lr", "1e-3"}}));
    return recipe::TextTables(*recipe.text);
  };
  CHECK(group({{"--decoupled-lr", "2e-3"}, {"--decoupled-min-lr", "2e-5"}, {"--min-lr", "1e-5"}}) ==
        "\n[[optimizer.group]]\nmatch = [\"embedding.tokens\"]\nlearning_rate = 0.002\n");
  CHECK(group({{"--decoupled-lr", "2e-3"}, {"--untie-embeddings-and-output-weights", ""}}) ==
        "\n[[optimizer.group]]\nmatch = [\"embedding.tokens\", \"head.weight\"]\nlearning_rate = 0.002\n");
  CHECK(ErrorOf({{"--lr", "1e-3"}, {"--decoupled-lr", "2e-3"}, {"--min-lr", "1e-5"}}) ==
        "--decoupled-lr 0.002 with a least of 1e-05 cannot be imported: learning rates stay in one "
        "proportion, here "
        "0.002 to 0.001 | hint: --decoupled-min-lr 2e-05");
  CHECK(ErrorOf({{"--decoupled-lr", "2e-3"}, {"--lr-warmup-init", "1e-7"}})
            .starts_with("--decoupled-lr with --lr-warmup-init cannot be imported"));
}

TEST_CASE("megatron steps: what cannot be is an error at its flag") {
  const std::map<std::string, Flags> errors = {
      {"--swiglu and --quick-geglu contradict each other | hint: keep one of them",
       {{"--swiglu", ""}, {"--quick-geglu", ""}}},
      {"--glu-linear-offset cannot be imported: what a gate multiplies is not shifted | hint: remove it to "
       "train so",
       {{"--quick-geglu", ""}, {"--glu-linear-offset", "1.0"}}},
      {"--activation-func-clamp-value cannot be imported: activations are not clamped",
       {{"--activation-func-clamp-value", "7"}}},
      {"--softmax-type off-by-one cannot be imported | hint: one of vanilla, learnable",
       {{"--softmax-type", "off-by-one"}}},
      {"--rotary-percent 0.4 of the 8 features of a head are 3, and pairs are rotated | hint: such that they "
       "are an "
       "even number, at least 2",
       With(kRope, {{"--rotary-percent", "0.4"}})},
      {"--rotary-percent is 1.5 | hint: from 0 to 1", With(kRope, {{"--rotary-percent", "1.5"}})},
      {"--use-rope-scaling and --rotary-seq-len-interpolation-factor contradict each other | hint: keep one "
       "of them",
       With(kRope, {{"--use-rope-scaling", ""}, {"--rotary-seq-len-interpolation-factor", "2"}})},
      {"--position-embedding-type yarn needs --yarn-rotary-scaling-factor",
       With(kYarn, {{"--yarn-rotary-scaling-factor", "-"}})},
      {"--position-embedding-type yarn and --rotary-interleaved contradict each other",
       With(kYarn, {{"--rotary-interleaved", ""}})},
      {"--rotary-percent has no effect with YaRN | hint: --rotary-percent 1.0",
       With(kYarn, {{"--rotary-percent", "0.5"}})},
      {"--use-rope-scaling needs --position-embedding-type rope", With(kYarn, {{"--use-rope-scaling", ""}})},
      {"--position-embedding-type mrope cannot be imported | hint: one of learned_absolute, rope, yarn, none",
       {{"--position-embedding-type", "mrope"}}},
      {"--no-rope-freq 3 does not divide the 8 layers", With(kRope, {{"--no-rope-freq", "3"}})},
      {"--no-rope-freq '[0,1]' is a list of 2, and there are 8 layers | hint: an entry for each layer",
       With(kRope, {{"--no-rope-freq", "\"[0,1]\""}})},
      {"--window-attn-skip-freq 'two' is neither a number nor a list | hint: a list is written in digits, "
       "brackets, "
       "commas, + and *, without blanks: ([0]*3+[1])*2",
       {{"--window-size", "15,0"}, {"--window-attn-skip-freq", "two"}}},
      {"--window-attn-skip-freq is 0 | hint: at least 1, or a list such as ([0]*3+[1])*2",
       {{"--window-size", "15,0"}, {"--window-attn-skip-freq", "0"}}},
      {"--embedding-init-method-std is 11 | hint: from 0 to 10", {{"--embedding-init-method-std", "11"}}},
      {"--mtp-num-layers is 9 | hint: from 1 to 8", With(kRope, {{"--mtp-num-layers", "9"}})},
      {"--mtp-num-layers with learned positions cannot be imported | hint: --position-embedding-type rope or "
       "none",
       {{"--mtp-num-layers", "1"}}},
      {"--qk-l2-norm cannot be imported: norms of queries and keys have a gain, as with --qk-layernorm",
       {{"--qk-l2-norm", ""}}},
  };
  for (const auto& [message, flags] : errors) {
    CAPTURE(message);
    CHECK(ErrorOf(flags) == message);
  }
  // A model of steps is checked by the rules of the keys, too, at the flags that they come of.
  CHECK(Messages(Import(Script({{"--qk-layernorm", ""}, {"--num-attention-heads", "7"}})).diagnostics)
            .starts_with("7:3: error: hidden 64 is not divisible by heads 7"));
  CHECK(Messages(Import(Script({{"--qk-layernorm", ""}, {"--seq-length", "64"}})).diagnostics)
            .find("sequence_length 64 is more than the model's max_positions 32") != std::string::npos);
}

TEST_CASE("megatron steps: flags that have no effect are comments") {
  const auto comment = [](const Flags& flags, const std::string& text) {
    return Import(Script(flags)).recipe.find(text) != std::string::npos;
  };
  CHECK(comment({{"--no-rope-freq", "2"}, {"--rotary-interleaved", ""}},
                "# --no-rope-freq, --rotary-interleaved: no effect without rotary positions\n"));
  CHECK(comment({{"--window-attn-skip-freq", "2"}},
                "# --window-attn-skip-freq: no effect without --window-size\n"));
  CHECK(comment({{"--yarn-beta-fast", "2"}},
                "# --yarn-beta-fast: no effect without --position-embedding-type yarn\n"));
  CHECK(comment({{"--apply-wd-to-qk-layernorm", ""}},
                "# --apply-wd-to-qk-layernorm: no effect without --qk-layernorm\n"));
  CHECK(comment({{"--decoupled-min-lr", "0"}}, "# --decoupled-min-lr: no effect without --decoupled-lr\n"));
}

}  // namespace engine::import
