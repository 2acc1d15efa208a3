// Flags of experts and of multi-head latent attention. Meanings are those of Megatron-LM's arguments.py, transformer_config.py and
// moe_utils.py.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <string>

#include "engine/model/build.h"
#include "tests/import/megatron_script.h"
#include "tests/import/megatron_steps.h"

namespace engine::import {
namespace {

// 8 experts of 8 ranks; a microbatch of one sample.
const Flags kEight = {{"--num-experts", "8"},      {"--disable-bias-linear", ""}, {"--swiglu", ""},
                      {"--ffn-hidden-size", "96"}, {"--attention-dropout", "0"},  {"--hidden-dropout", "0"},
                      {"--micro-batch-size", "1"}};

const Flags kLatent = {{"--multi-latent-attention", ""},
                       {"--kv-lora-rank", "32"},
                       {"--qk-head-dim", "16"},
                       {"--qk-pos-emb-head-dim", "8"},
                       {"--v-head-dim", "12"},
                       {"--rotary-scaling-factor", "1"},
                       {"--position-embedding-type", "rope"},
                       {"--normalization", "RMSNorm"},
                       {"--disable-bias-linear", ""},
                       {"--swiglu", ""},
                       {"--ffn-hidden-size", "96"},
                       {"--attention-dropout", "0"},
                       {"--hidden-dropout", "0"}};

TextTable StepsOfExperts(const Flags& flags) { return StepsOfImport(With(kEight, flags)); }

std::string RouterOf(const Flags& flags) { return StepsOfExperts(flags)["block.mlp.router"]; }

recipe::Parallelism LayoutOf(const Flags& flags) { return LoadedImport(With(kEight, flags)).parallelism; }

std::int64_t ParametersOf(const Flags& flags) {
  const recipe::Recipe recipe = LoadedImport(flags);
  return model::CountParameters(
      model::BuildModel(recipe, {.batch = 1, .sequence = 32, .vocab_multiple = 128}));
}

}  // namespace

TEST_CASE("megatron experts: a layer's steps") {
  TextTable steps = StepsOfExperts({{"--norm-epsilon", "1e-6"}});
  CHECK(steps["block.mlp"] == "[norm, router, experts, residual]");
  CHECK(steps["model.dims.X"] == "8");
  CHECK(steps["block.mlp.router"] ==
        "{ do = \"route\", as = \"router\", experts = \"X\", top_k = 2, to = [\"choice\", \"weight\"] }");
  CHECK(steps["block.mlp.experts"] ==
        "{ do = \"experts\", as = \"experts\", of = [\"norm\", \"choice\", \"weight\"], hidden = \"F\" }");
  CHECK(IsWithin("epsilon = 1e-06", steps["block.mlp.norm"]));
  steps = StepsOfExperts({{"--moe-ffn-hidden-size", "40"},
                          {"--moe-shared-expert-intermediate-size", "24"},
                          {"--apply-layernorm-1p", ""},
                          {"--hidden-dropout", "0.5"}});
  CHECK(steps["block.mlp"] ==
        "[norm, router, experts, shared.fc1, shared.activation, shared.fc2, sum, dropout, residual]");
  CHECK(steps["model.dims.W"] == "40");
  CHECK(steps["model.dims.Y"] == "24");
  CHECK(IsWithin("gain_offset = 1", steps["block.mlp.norm"]));
  CHECK(IsWithin("of = [\"experts\", \"shared.fc2\"]", steps["block.mlp.sum"]));
  CHECK(IsWithin("of = [\"x\", \"dropout\"]", steps["block.mlp.residual"]));
  steps = StepsOfExperts({{"--moe-shared-expert-intermediate-size", "24"}, {"--moe-shared-expert-gate", ""}});
  CHECK(IsWithin("of = [\"x\", \"experts\", \"shared\"]", steps["block.mlp.residual"]));
  CHECK(IsWithin("out = [1]", steps["block.mlp.shared.gate"]));
  CHECK(IsWithin("act = \"gelu_erf\", gated = false",
                 StepsOfExperts({{"--swiglu", "-"}})["block.mlp.experts"]));
  CHECK(IsWithin("act = \"quick_gelu\"",
                 StepsOfExperts({{"--swiglu", "-"}, {"--quick-geglu", ""}})["block.mlp.experts"]));
}

TEST_CASE("megatron experts: parameters of a whole model, by hand") {
  // Learned positions; LayerNorm; a layer: two norms, qkv and proj, router, 8 experts and a gated shared one.
  const std::int64_t layer = 4 * 64 + 4 * 64 * 64 + 8 * 64 + 8 * 3 * 64 * 40 + 3 * 64 * 24 + 64;
  CHECK(ParametersOf(With(kEight, {{"--moe-ffn-hidden-size", "40"},
                                   {"--moe-shared-expert-intermediate-size", "24"},
                                   {"--moe-shared-expert-gate", ""}})) ==
        8 * layer + 2 * 64 + (1000 + 32) * 64);
}

TEST_CASE("megatron experts: routers") {
  CHECK(IsWithin("top_k = 3, normalize = false",
                 RouterOf({{"--moe-router-topk", "3"}, {"--moe-router-pre-softmax", ""}})));
  CHECK(
      IsWithin("top_k = 2, score = \"sigmoid\", scale = 2.5, groups = 4, group_top_k = 2, bias_rate = 0.001",
               RouterOf({{"--moe-router-score-function", "sigmoid"},
                         {"--moe-router-topk-scaling-factor", "2.5"},
                         {"--moe-router-num-groups", "4"},
                         {"--moe-router-group-topk", "2"},
                         {"--moe-router-dtype", "fp32"},
                         {"--moe-router-enable-expert-bias", ""}})));
  CHECK(IsWithin("score = \"sigmoid\", normalize = false",
                 RouterOf({{"--moe-router-score-function", "sigmoid"}, {"--moe-router-topk", "1"}})));
  CHECK(IsWithin("bias_rate = 0.01", RouterOf({{"--moe-router-score-function", "sigmoid"},
                                               {"--moe-router-enable-expert-bias", ""},
                                               {"--moe-router-bias-update-rate", "0.01"}})));
  // The default kind has no weight, a microbatch of one sample is that sample, and kinds have a weight each.
  CHECK(!IsWithin("loss", RouterOf({})));
  CHECK(IsWithin("aux_loss = 0.01", RouterOf({{"--moe-aux-loss-coeff", "1e-2"}})));
  CHECK(IsWithin("aux_loss = 0.01", RouterOf({{"--moe-aux-loss-coeff", "1e-2"},
                                              {"--micro-batch-size", "2"},
                                              {"--moe-router-load-balancing-type", "seq_aux_loss"}})));
  CHECK(IsWithin("aux_loss = 0.02, z_loss = 0.001",
                 RouterOf({{"--moe-aux-loss-coeff", "0 2e-2"},
                           {"--moe-router-load-balancing-type", "global_aux_loss seq_aux_loss"},
                           {"--moe-z-loss-coeff", "1e-3"}})));
  CHECK(!IsWithin("loss", RouterOf({{"--moe-router-load-balancing-type", "none"}})));
  CHECK(IsWithin("microbatch_aux_loss = 0.01",
                 RouterOf({{"--moe-aux-loss-coeff", "1e-2"}, {"--micro-batch-size", "2"}})));
  CHECK(IsWithin(
      "global_aux_loss = 0.01",
      RouterOf({{"--moe-aux-loss-coeff", "1e-2"}, {"--moe-router-load-balancing-type", "global_aux_loss"}})));
}

TEST_CASE("megatron experts: other scores, Sinkhorn's iteration, noise and forced choices") {
  CHECK(IsWithin("score = \"sqrtsoftplus\"", RouterOf({{"--moe-router-score-function", "sqrtsoftplus"}})));
  const Flags sinkhorn = {{"--moe-router-load-balancing-type", "sinkhorn"}};
  const std::string rounds = "16 rounds of each sample by itself";
  CHECK(IsWithin("top_k = 2, select = \"sinkhorn\", normalize = false",
                 StepsOfImport(With(kEight, sinkhorn), rounds)["block.mlp.router"]));
  const Flags one =
      With(With(kEight, sinkhorn), {{"--moe-router-topk", "1"}, {"--moe-router-pre-softmax", ""}});
  CHECK(IsWithin("top_k = 1, select = \"sinkhorn\", score = \"sigmoid\", normalize = false",
                 StepsOfImport(one, rounds)["block.mlp.router"]));
  CHECK(IsWithin("jitter = 0.1", RouterOf({{"--moe-input-jitter-eps", "0.1"}})));
  CHECK(ErrorOf(With(kEight, {{"--moe-input-jitter-eps", "1"}})) ==
        "--moe-input-jitter-eps 1 leaves nothing | hint: less than 1");
  CHECK(
      ErrorOf(With(With(kEight, sinkhorn),
                   {{"--moe-router-num-groups", "4"}, {"--moe-router-group-topk", "2"}})) ==
      "--moe-router-num-groups does not go with --moe-router-load-balancing-type sinkhorn | hint: remove it");
  CHECK(
      ErrorOf(With(kEight, {{"--moe-router-load-balancing-type", "sinkhorn aux_loss"},
                            {"--moe-aux-loss-coeff", "0 1e-2"}})) ==
      "--moe-aux-loss-coeff has no loss of balance with --moe-router-load-balancing-type sinkhorn | hint: 0 "
      "for each");
  // With one sample a microbatch both are losses of a sample, and add up.
  CHECK(IsWithin("aux_loss = 0.011", RouterOf({{"--moe-router-load-balancing-type", "aux_loss seq_aux_loss"},
                                               {"--moe-aux-loss-coeff", "1e-2 1e-3"}})));
  CHECK(LoadedImport(With(kEight, {{"--moe-router-force-load-balancing", ""}})).debug.router == "even");
}

TEST_CASE("megatron experts: a capacity is counted as here where a rank has one whole sample at a time") {
  CHECK(IsWithin("capacity = 1.25 }",
                 StepsOfExperts({{"--moe-expert-capacity-factor", "1.25"}})["block.mlp.experts"]));
  CHECK(IsWithin("capacity = 1.0, drop = \"position\" }",
                 StepsOfExperts({{"--moe-expert-capacity-factor", "1"},
                                 {"--moe-pad-expert-input-to-capacity", ""},
                                 {"--moe-token-drop-policy", "position"}})["block.mlp.experts"]));
  CHECK(!IsWithin("capacity", StepsOfExperts({{"--moe-expert-capacity-factor", "-1"}})["block.mlp.experts"]));
  const Flags factor = With(kEight, {{"--moe-expert-capacity-factor", "1"}});
  const std::string of_rank = "capacity = 1.0, capacity_of = \"rank\" }";
  CHECK(IsWithin(of_rank, StepsOfImport(With(factor, {{"--micro-batch-size", "2"}}))["block.mlp.experts"]));
  CHECK(IsWithin(
      of_rank, StepsOfImport(With(factor, {{"--context-parallel-size", "2"}}),
                             "counted over the tokens that ranks of tp and cp share")["block.mlp.experts"]));
}

TEST_CASE("megatron experts: layers with experts and others") {
  // Layer i, from 0, has experts where N divides i.
  TextTable steps = StepsOfExperts({{"--moe-layer-freq", "3"}});
  CHECK(
      IsWithin("pattern = \"EDDEDDED\", letters = { D = [\"attention as attention\", \"mlp as mlp\"], E = "
               "[\"attention as attention\", \"experts as mlp\"] }",
               steps["model.main.layers"]));
  CHECK(steps["block.mlp"] == "[norm, fc1, activation, fc2, residual]");
  CHECK(steps["block.experts"] == "[norm, router, experts, residual]");
  steps = StepsOfExperts({{"--moe-layer-freq", "\"([0]*2+[1]*6)\""},
                          {"--window-size", "15,0"},
                          {"--window-attn-skip-freq", "2"},
                          {"--position-embedding-type", "rope"},
                          {"--mtp-num-layers", "1"}});
  CHECK(IsWithin("pattern = \"DDEEEEEE\"", steps["model.main.layers"]));
  CHECK(IsWithin("cycle = { window = [16, 0] }", steps["model.main.layers"]));
  CHECK(IsWithin("\"experts as mlp\"", steps["model.main.mtp.0.layer"]));
  CHECK(steps["block.experts"].empty() == false);
  CHECK(StepsOfExperts({{"--moe-layer-freq", "1"}})["block.experts"].empty());
  const std::int64_t others = 8 * (4 * 64 + 4 * 64 * 64) + 2 * 64 + (1000 + 32) * 64;
  CHECK(ParametersOf(With(kEight, {{"--moe-layer-freq", "2"}})) ==
        others + 4 * (3 * 64 * 96) + 4 * (8 * 64 + 8 * 3 * 64 * 96));
}

TEST_CASE("megatron experts: their ranks are some of Megatron-LM's dp") {
  recipe::Parallelism p = LayoutOf({{"--expert-model-parallel-size", "4"}});
  CHECK(p.dp == 2);
  CHECK(p.ep == 4);
  CHECK(p.expert_tp == 0);
  CHECK(LoadedImport(With(kEight, {{"--expert-model-parallel-size", "4"}, {"--micro-batch-size", "4"}}))
            .training.global_batch == 32);  // micro_batch × their dp
  const Flags tp2 = {{"--tensor-model-parallel-size", "2"},
                     {"--sequence-parallel", ""},
                     {"--expert-model-parallel-size", "2"}};
  p = LayoutOf(tp2);
  CHECK(p.dp == 2);
  CHECK(p.ep == 2);
  CHECK(p.expert_tp == 0);
  CHECK(LayoutOf(With(tp2, {{"--expert-tensor-parallel-size", "2"}})).expert_tp == 0);
  CHECK(LayoutOf(With(tp2, {{"--expert-tensor-parallel-size", "1"}})).expert_tp == 1);
  const auto error = [](const Flags& flags) { return ErrorOf(With(kEight, flags)); };
  CHECK(error(With(tp2, {{"--expert-model-parallel-size", "8"}, {"--expert-tensor-parallel-size", "1"}})) ==
        "--expert-model-parallel-size 8 cannot be imported: its ranks are some of tp and cp too, and here "
        "they are of dp "
        "alone, which is 4 | hint: --expert-model-parallel-size 4; or --tensor-model-parallel-size 1, whose "
        "dp is 8");
  CHECK(error(With(tp2, {{"--tensor-model-parallel-size", "4"}, {"--expert-tensor-parallel-size", "2"}})) ==
        "--expert-tensor-parallel-size 2 cannot be imported: ranks of tp 4 have parts of all experts, or "
        "whole ones | "
        "hint: --expert-tensor-parallel-size 4, or 1");
  CHECK(error(With(tp2, {{"--sequence-parallel", "-"}})) ==
        "--num-experts with tp 2 needs --sequence-parallel | hint: add --sequence-parallel");
  CHECK(error({{"--num-experts", "6"}, {"--expert-model-parallel-size", "4"}}) ==
        "6 experts cannot be shared by ep 4 (remainder 2) | hint: --expert-model-parallel-size 3 or 6");
}

TEST_CASE("megatron experts: latent attention") {
  TextTable steps = StepsOfImport(kLatent);
  CHECK(steps["block.attention"] == "[norm, q, rotary, kv_down, kv, rotary#2, key, core, proj, residual]");
  CHECK(steps["model.dims.E"] == "24");
  CHECK(steps["model.dims.C"] == "32");
  CHECK(steps["model.rotary.rope"] == "{ dim = \"E\", base = 10000.0, interleaved = true, width = \"R\" }");
  CHECK(steps["model.rotary.shared"] == "{ dim = \"R\", base = 10000.0, interleaved = true }");
  CHECK(!IsWithin("scale", steps["block.attention.core"]));
  steps = StepsOfImport(With(kLatent, {{"--q-lora-rank", "48"},
                                       {"--qk-layernorm", ""},
                                       {"--rotary-scaling-factor", "40"},
                                       {"--mscale", "1.0"},
                                       {"--mscale-all-dim", "0.5"},
                                       {"--beta-fast", "24"}}));
  CHECK(steps["block.attention"] ==
        "[norm, q_down, q_norm, q, rotary, kv_down, kv_norm, kv, rotary#2, key, core, proj, residual]");
  // 0.1 ln 40 + 1 over 0.05 ln 40 + 1; the latter's square over √24.
  CHECK(IsWithin("scaling = \"yarn\", factor = 40.0, original = 4096, attention_factor = 1.155",
                 steps["model.rotary.rope"]));
  CHECK(IsWithin("beta_fast = 24.0", steps["model.rotary.shared"]));
  CHECK(IsWithin("scale = 0.286", steps["block.attention.core"]));
  CHECK(std::abs(std::pow(0.05 * std::log(40) + 1, 2) / std::sqrt(24) - 0.286) < 1e-3);
  // A layer: three norms (one of a latent of 32), q, latent and shared part, keys and values of the latent, proj; a gated unit.
  const std::int64_t layer =
      2 * 64 + 32 + 64 * 8 * 24 + 64 * (32 + 8) + 32 * 8 * (16 + 12) + 8 * 12 * 64 + 3 * 64 * 96;
  CHECK(ParametersOf(With(kLatent, {{"--qk-layernorm", ""}})) == 8 * layer + 64 + 1000 * 64);
}

TEST_CASE("megatron experts: what cannot be is an error at its flag") {
  const std::map<std::string, Flags> errors = {
      {"--num-experts is 1 | hint: from 2 to 65536", {{"--num-experts", "1"}}},
      {"--num-experts without --disable-bias-linear cannot be imported: experts have no biases | hint: "
       "--disable-bias-linear",
       {{"--disable-bias-linear", "-"}}},
      {"--num-experts with --squared-relu cannot be imported: it is no activation of experts | hint: "
       "--swiglu, "
       "--quick-geglu, or a GELU",
       {{"--swiglu", "-"}, {"--squared-relu", ""}}},
      {"a token goes to 9 experts, and there are 8 | hint: from 1 to 8", {{"--moe-router-topk", "9"}}},
      {"--moe-router-topk 1 needs --moe-router-pre-softmax: the softmax over one expert is 1 | hint: add "
       "--moe-router-pre-softmax",
       {{"--moe-router-topk", "1"}}},
      {"--moe-router-score-function softmin is unknown | hint: softmax, sigmoid or sqrtsoftplus",
       {{"--moe-router-score-function", "softmin"}}},
      {"--moe-router-enable-expert-bias needs --moe-router-score-function sigmoid, not softmax | hint: "
       "--moe-router-score-function sigmoid",
       {{"--moe-router-enable-expert-bias", ""}}},
      {"--moe-router-num-groups needs --moe-router-group-topk | hint: add --moe-router-group-topk, or remove "
       "it",
       {{"--moe-router-num-groups", "4"}}},
      {"8 experts do not make 3 equal groups | hint: a divisor of the experts",
       {{"--moe-router-num-groups", "3"}, {"--moe-router-group-topk", "1"}}},
      {"1 of 8 groups of 1 experts are to hold 2 choices",
       {{"--moe-router-num-groups", "8"}, {"--moe-router-group-topk", "1"}}},
      {"--moe-aux-loss-coeff has 2 weights of losses, and --moe-router-load-balancing-type has 1 | hint: one "
       "for each",
       {{"--moe-aux-loss-coeff", "1e-2 1e-3"}, {"--moe-router-load-balancing-type", "seq_aux_loss"}}},
      {"--moe-aux-loss-coeff x is no weight of a loss | hint: from 0 to 1000",
       {{"--moe-aux-loss-coeff", "x"}}},
      {"--moe-pad-expert-input-to-capacity needs --moe-expert-capacity-factor | hint: remove it: no token is "
       "dropped then",
       {{"--moe-pad-expert-input-to-capacity", ""}}},
      {"--moe-layer-freq leaves no layer with experts | hint: remove --num-experts",
       {{"--moe-layer-freq", "\"[0]*8\""}}},
      {"--moe-layer-freq '[0,1]' is a list of 2, and there are 8 layers | hint: an entry for each layer",
       {{"--moe-layer-freq", "\"[0,1]\""}}},
      {"--rope-type yarn goes with --multi-latent-attention | hint: --position-embedding-type yarn",
       {{"--rope-type", "yarn"}}},
  };
  for (const auto& [message, flags] : errors) {
    CAPTURE(message);
    CHECK(ErrorOf(With(kEight, flags)) == message);
  }
  CHECK(ErrorOf(With(kLatent, {{"--kv-lora-rank", "-"}})) ==
        "--kv-lora-rank is missing: its default is not the same in all releases | hint: 512, or 32 before "
        "2026");
  CHECK(ErrorOf(With(kLatent, {{"--rotary-scaling-factor", "-"}})) ==
        "--rotary-scaling-factor is missing: its default is not the same in all releases | hint: 40, or 1 "
        "before 2026; "
        "--rope-type rope has none");
  CHECK(
      ErrorOf(With(kLatent, {{"--group-query-attention", ""}, {"--num-query-groups", "4"}})) ==
      "--multi-latent-attention and --group-query-attention contradict each other | hint: keep one of them");
  CHECK(ErrorOf(With(kLatent, {{"--position-embedding-type", "-"}})) ==
        "--multi-latent-attention with --position-embedding-type learned_absolute cannot be imported | hint: "
        "rope");
}

TEST_CASE("megatron experts: flags that have no effect are comments") {
  const auto comment = [](const Flags& flags, const std::string& text) {
    return IsWithin(text, Import(Script(flags)).recipe);
  };
  CHECK(comment({{"--moe-router-topk", "4"}, {"--moe-router-pre-softmax", ""}},
                "# --moe-router-pre-softmax, --moe-router-topk: there are no experts for it\n"));
  CHECK(comment({{"--kv-lora-rank", "64"}, {"--rope-type", "rope"}},
                "# --kv-lora-rank, --rope-type: no effect without --multi-latent-attention\n"));
  CHECK(comment(With(kEight, {{"--moe-token-drop-policy", "probs"}}),
                "# --moe-token-drop-policy: no effect without --moe-expert-capacity-factor\n"));
  CHECK(comment(With(kEight, {{"--moe-grouped-gemm", ""}, {"--moe-router-dtype", "fp32"}}),
                "# --moe-router-dtype: a router computes in fp32\n"));
  CHECK(IsWithin("warning: --moe-router-dtype has no key: a router computes in fp32",
                 Messages(Import(Script(With(kEight, {{"--moe-router-dtype", "fp64"}}))).diagnostics)));
}

}  // namespace engine::import
