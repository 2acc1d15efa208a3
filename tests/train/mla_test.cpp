// Models with multi-head latent attention train alike in every layout.
#include <string>
#include <vector>

#include "tests/train/text_testing.h"

namespace engine::train::testing {
namespace {

// The steps of configs/blocks/mla.toml with few features: one dense layer, then layers with 8 experts beside a shared one.
constexpr const char* kMlaText = R"(
[model]
dims = { D = 32, L = 4, J = 1, H = 4, Q = 24, C = 16, N = 8, R = 4, E = "N+R", U = 6, F = 48, X = 8, W = 8, Y = "2*W", V = 300 }
means = { D = "other", Q = "other", C = "other", N = "other", R = "other", U = "other" }
inputs = { tokens = "i32[B,S]", labels = "i32[B,S]", positions = "i32[B,S]" }
rotary.rope = { dim = "E", width = "R", base = 100, interleaved = true, scaling = "yarn", factor = 4, original = 8 }
rotary.shared = { dim = "R", base = 100, interleaved = true, scaling = "yarn", factor = 4, original = 8 }
vocab_multiple = 16
init_std = 0.1
main = [
  { do = "embedding", as = "embedding.tokens", of = "tokens", rows = "V", width = "D" },
  { do = "stack", as = "dense", repeat = "J", layer = ["attention as attention", "mlp as mlp"] },
  { do = "stack", as = "layers", repeat = "L-J", layer = ["attention as attention", "moe as mlp"] },
  { do = "rms_norm", as = "final_norm" },
  { do = "linear", as = "head", out = ["V"] },
  { do = "cross_entropy", as = "loss" },
]
[block.attention]
steps = [
  { do = "rms_norm", as = "norm", of = "x" },
  { do = "linear", as = "q_down", out = ["Q"] },
  { do = "rms_norm", as = "q_norm" },
  { do = "linear", as = "q", out = ["H", "E"] },
  { do = "rotary", of = "q", to = "q", table = "rope" },
  { do = "linear", as = "kv_down", of = "norm", parts = { latent = ["C"], shared = [1, "R"] } },
  { do = "rms_norm", as = "kv_norm", of = "latent" },
  { do = "linear", as = "kv", parts = { k = ["H", "N"], v = ["H", "U"] } },
  { do = "rotary", of = "shared", to = "shared", table = "shared" },
  { do = "join", as = "key", of = ["shared", "k"] },
  { do = "attention", as = "core", of = ["q", "key", "v"], scale = 0.4 },
  { do = "linear", as = "proj", out = ["D"] },
  { do = "residual", as = "residual", of = ["x", "proj"], to = "x" },
]
[block.mlp]
steps = [
  { do = "rms_norm", as = "norm", of = "x" },
  { do = "linear", as = "fc1", out = [2, "F"] },
  { do = "gate", as = "activation", act = "silu" },
  { do = "linear", as = "fc2", out = ["D"] },
  { do = "residual", as = "residual", of = ["x", "fc2"], to = "x" },
]
[block.moe]
steps = [
  { do = "rms_norm", as = "norm", of = "x" },
  { do = "route", as = "router", experts = "X", top_k = 2, score = "sigmoid", scale = 2.5, groups = 4, group_top_k = 2, group_best = 2, bias_rate = 0.01, aux_loss = 0.02, to = ["choice", "weight"] },
  { do = "experts", as = "experts", of = ["norm", "choice", "weight"], hidden = "W" },
  { do = "linear", as = "shared_fc1", of = "norm", out = [2, "Y"] },
  { do = "gate", as = "shared_activation", act = "silu" },
  { do = "linear", as = "shared_fc2", out = ["D"] },
  { do = "residual", as = "residual", of = ["x", "experts", "shared_fc2"], to = "x" },
]
)";

recipe::Recipe Mla(const std::string& sets) {
  std::vector<std::string> all = SetsOf(sets);
  all.emplace_back("training.global_batch=8");
  return Loaded(
      model::LoadText(std::string(kMlaText) + kCommon + kAdamW, "test.toml", {.sets = all, .root = ""}));
}

}  // namespace

TEST_CASE("multi-head latent attention trains alike in every layout") {
  CheckTextLayouts(
      Mla, {"micro_batch=4",
            "dp=2 micro_batch=2",
            "tp=2 micro_batch=2",
            "tp=4 micro_batch=2",
            "tp=2 sequence_parallel=true micro_batch=2",
            "tp=4 sequence_parallel=true micro_batch=2",
            "cp=2 micro_batch=2",
            "cp=4 micro_batch=2",
            "pp=2 micro_batch=2",
            "pp=4 micro_batch=2",
            "pp=2 virtual_stages=2 micro_batch=2",
            "pp=2 schedule=zero_bubble micro_batch=2",
            "ep=2 micro_batch=2",
            "ep=4 micro_batch=1",
            "ep=2 tp=2 micro_batch=2",
            "ep=2 tp=2 sequence_parallel=true micro_batch=2",
            "tp=2 cp=2 micro_batch=2",
            "tp=2 cp=2 sequence_parallel=true micro_batch=2",
            "tp=2 pp=2 sequence_parallel=true micro_batch=2",
            "tp=2 sequence_parallel=true overlap=on micro_batch=4",
            "cp=2 overlap=on micro_batch=4",
            "dp=2 zero_stage=3 micro_batch=2",
            "tp=2 dp=2 zero_stage=1 micro_batch=2",
            "tp=2 micro_batch=2 granularity=full",
            "tp=2 micro_batch=2 granularity=selective modules=[\"attention\",\"norm\",\"activation\"]",
            "ep=2 cp=2 tp=2 sequence_parallel=true micro_batch=2",
            "ep=2 dp=2 pp=2 tp=2 sequence_parallel=true zero_stage=1 overlap=on micro_batch=1"});
}

}  // namespace engine::train::testing
