// Each warning of `engine check`: what gives it, where it points, and that the recipe without that has none.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "engine/cli/commands.h"
#include "engine/recipe/codes.h"
#include "tests/cli/run_command.h"

namespace engine::cli {
namespace {

using Json = nlohmann::json;
using Sets = std::vector<std::string>;

struct Case {
  std::string code;
  std::string recipe;  // of recipes/, without a warning as it is
  Sets sets;           // give the warning, at one of themselves
  std::string message;
};

const std::vector<Case>& Cases() {
  const std::string small = "gpt2-124m-1gpu";
  static const std::vector<Case> cases = {
      {"W101",
       "gpt2-large-tp2",
       {"cluster.nodes=2", "cluster.devices_per_node=1"},
       "tp 2 reaches across nodes of 1 devices"},
      {"W102",
       "gpt2-large-pp2",
       {"training.micro_batch=32"},
       "33 % of the pipeline's time is idle: 2 microbatches for 2 stages"},
      {"W103", "gpt2-large-pp2", {"parallelism.layers_per_stage=[30,6]"}, "stage 0 has "},
      {"W104",
       "gpt2-large-tp2",
       {"parallelism.tp=2", "cluster.intra_node_bandwidth=1e9"},
       "wait for exchange"},
      {"W105", small, {"parallelism.zero_stage=1"}, "zero_stage 1 shards over dp and cp, and both are 1"},
      {"W106",
       "gpt2-large-dp2",
       {"parallelism.zero_stage=2", "precision.gradient_dtype=bf16"},
       "zero_stage 2 takes 53.47 GiB of a device, zero_stage 1 53.40 GiB: gradients are bf16"},
      {"W201",
       small,
       {"model.vocab_multiple=8192"},
       "vocab 50257 is padded to 57344 (vocab_multiple 8192 × tp 1), 4 % of a forward pass"},
      {"W202",
       "llama-7b-1gpu-fp8",
       {"cluster.memory_bytes=\"126 GB\""},
       "of a device's 117.35 GiB are taken, 96."},
      {"W203", small, {"recompute.granularity=full"}, "full recomputation takes "},
      {"W204",
       small,
       {"training.micro_batch=1"},
       "1024 tokens of a microbatch × 768 features are 24 tiles of 128 × 256, for 132 multiprocessors"},
      {"W205",
       small,
       {"model.hidden=780", "model.attention.head_dim=64"},
       "hidden is 780, no multiple of 64"},
      {"W206", small, {"precision.compute=fp32"}, "products in fp32 on h200"},
      {"W207",
       small,
       {"precision.gradient_dtype=bf16", "training.micro_batch=2", "training.global_batch=256"},
       "gradients of 128 microbatches are added up in bf16"},
      {"W209",
       small,
       {"precision.attention=reference"},
       "attention runs in the reference kernels; the reference kernels take 1"},
      {"W209", small, {"precision.compute=fp32"}, "attention in fp32 has no fast kernel; "},
      {"W210",
       "llama-1b-1gpu",
       {"model.attention.window=1024", "cluster.device=a100"},
       "with a window of 1024 of 4096 tokens an iteration takes 1."},
      {"W211",
       small,
       {"training.logits_bytes=\"512 MiB\"", "model.tied_embeddings=false",
        "optimizer.group=[{ match = \"embedding.*\", frozen = true }, { match = \"layers.*\", frozen = true "
        "}, "
        "{ match = \"final_norm.*\", frozen = true }]"},
       "all logits of a microbatch exist at once, 6.14 GiB on a rank, and once more as gradients: "
       "loss.cross_entropy is not computed in chunks with its head, since nothing before the head is "
       "trained"},
      {"W212",
       "qwen3-moe-s-1gpu",
       {"training.micro_batch=1", "data.sequence_length=1024"},
       "an expert has 64 rows of a microbatch in the mean, and products work in blocks of 128: 50 % of a "
       "block is empty"},
      {"W213",
       "mixtral-s-ep2",
       {"block.mlp.steps.router.aux_loss=0"},
       "nothing balances the experts of layers.0.mlp.router.route, which 2 ranks share: where they are "
       "chosen as Zipf's law "
       "has it (exponent 0.7), an iteration takes 1.25 times as long, at the worst 1.66 times"},
      {"W214",
       "mixtral-s-ep2",
       {"parallelism.ep=2", "cluster.memory_bytes=\"80 GB\""},
       "rows of experts take 20.37 GiB of a device's 74.51 GiB: there is room for the worst load, 2.0 times "
       "the mean"},
      {"W301",
       small,
       {"training.iterations=100"},
       "the training ends after 6400 samples, and its warm-up after 204800"},
      {"W302",
       small,
       {"training.iterations=100000"},
       "the decay takes 20480000 samples, the training 6400000: it ends at a learning rate of 0.00012, not "
       "1e-05"},
      {"W303",
       small,
       {"schedule.min_learning_rate=0", "schedule.decay_iterations=320000"},
       "the decay to a learning rate of 0 ends after 20480000 of 32000000 samples"},
      {"W303",
       small,
       {"schedule.decay_iterations=15", "schedule.warmup_fraction=0"},
       "the decay ends after 960 of 32000000 samples: 100 % of the training has the lowest learning rate"},
      {"W304", small, {"schedule.warmup_fraction=0", "schedule.kind=cosine"}, "there is no warm-up"},
      {"W305",
       small,
       {"optimizer.learning_rate=0.01"},
       "learning_rate 0.01 is 17 times what models of 124.44M parameters usually take"},
      {"W306", "llama-7b-1gpu-fp8", {"optimizer.beta2=0.999"}, "beta2 0.999 for 6.89G parameters"},
      {"W307", small, {"optimizer.clip_grad_norm=0"}, "gradients are not clipped"},
      {"W308", small, {"training.iterations=1000"}, "65.54M tokens of training for 124.44M parameters"},
      {"W309",
       small,
       {"model.max_positions=2048"},
       "positions 1024 to 2047 of the learned table are never trained: sequence_length is 1024"},
      {"W310", small, {"model.attention.window=1024"}, "a window of 1024 does nothing to sequences of 1024"},
      {"W311", small, {"optimizer.weight_decay=0"}, "weight_decay is 0"},
      {"W312",
       small,
       {"schedule.min_learning_rate=1.5e-4"},
       "min_learning_rate is learning_rate, 0.00015: \"cosine\" changes nothing"},
      {"W313", small, {"model.init_std=0"}, "init_std 0: all weights of a matrix are equal"},
      {"W313", small, {"model.norm.epsilon=1"}, "norm.epsilon 1 is added to the mean square"},
      {"W313",
       "llama-7b-1gpu-fp8",
       {"model.attention.rope_base=1"},
       "rope_base 1: the slowest pair of a head turns round in 6 tokens"},
      {"W313",
       small,
       {"optimizer.epsilon=1"},
       "far below optimizer.epsilon 1: steps are 9e-05 of the learning rate"},
      {"W313",
       small,
       {"optimizer.clip_grad_norm=1e-12"},
       "of a gradient of norm 1e-12 an element is 9.0e-17"},
      {"W314", small, {"data.paths=[\"a\",\"b\",\"a\"]"}, "data.paths has \"a\" twice"},
      {"W315", small, {"model.vocab=50256"}, "vocab 50256 is less than the 50257 ids of GPT-2's vocabulary"},
      {"W316",
       small,
       {"training.rampup.samples=4000000000", "training.global_batch=128", "training.rampup.start=64",
        "training.rampup.increment=64", "schedule.decay_iterations=0", "schedule.decay_samples=40960000"},
       "the global batch grows over 4000000000 samples, but the training has "},
      {"W318",
       "experts",
       {"block.mlp.steps.router.microbatch_aux_loss=0.01"},
       "microbatch_aux_loss of layers.0.mlp.router.microbatch_counts counts what a rank or a microbatch has"},
      {"W318",
       "experts",
       {"block.mlp.steps.router.global_aux_loss=0.01"},
       "global_aux_loss of layers.0.mlp.router.global_counts"},
      {"W318",
       "experts",
       {"block.mlp.steps.experts={ capacity = 1.0, capacity_of = \"rank\" }"},
       "capacity_of of layers.0.mlp.experts.drop"},
      {"W319", "experts", {"debug.router=zipf"}, "debug.router \"zipf\" says which experts tokens go to"},
      {"W401", small, {"checkpoint.interval=200000"}, "200000 iterations of "},
      {"W402",
       small,
       {"evaluation.interval=0"},
       "split \"969,30,1\" sets validation data aside, and evaluation.interval is 0"},
      {"W402",
       small,
       {"evaluation.interval=500001"},
       "evaluation.interval 500001 is never reached in 500000 iterations"},
      {"W403", small, {"checkpoint.keep=0"}, "500 checkpoints are kept, "},
      {"W404", small, {"evaluation.interval=1"}, "evaluation is predicted to take 7"},
      {"W405", "gpt2-large-dp2", {"checkpoint.interval=3"}, "checkpoints of 8.65 GiB after every 0.9"},
  };
  return cases;
}

// The diagnostics of a recipe with these --set.
Json Check(const std::string& recipe, const Sets& sets) {
  std::vector<std::string> arguments = {"check", "--format", "json",
                                        SourcePath("recipes/" + recipe + ".toml")};
  for (const std::string& set : sets) arguments.insert(arguments.end(), {"--set", set});
  const CommandResult result = RunCommand(AddCheckCommand, arguments);
  CHECK(result.exit_code == 0);
  return Json::parse(result.output)["files"][0]["diagnostics"];
}

}  // namespace

TEST_CASE("check: every warning, at what causes it, and silent where it is allowed") {
  for (const Case& test : Cases()) {
    CAPTURE(test.code);
    CHECK(Check(test.recipe, {}) == Json::array());
    Json found;
    for (const Json& diagnostic : Check(test.recipe, test.sets)) {
      if (found.is_null() && diagnostic["code"] == test.code) found = diagnostic;
    }
    REQUIRE(!found.is_null());
    CHECK(found["severity"] == "warning");
    CHECK(found["file"] == "--set");
    CAPTURE(found["message"]);
    CHECK((found["message"].get<std::string>().find(test.message) != std::string::npos));
    CHECK(found["hint"] != "");
    Sets allowed = test.sets;
    allowed.push_back("check.allow=[\"" + test.code + "\"]");
    for (const Json& diagnostic : Check(test.recipe, allowed)) CHECK(diagnostic["code"] != test.code);
  }
}

TEST_CASE("check: what is said of Adam's numbers is not said of another optimizer") {
  const Sets sets = {"training.iterations=2000", "schedule.warmup_iterations=0",
                     "optimizer.learning_rate=0.5", "optimizer.weight_decay=0"};
  Sets sgd = sets;
  sgd.emplace_back("optimizer.kind=sgd");
  const auto codes = [](const Sets& all) {
    std::set<std::string> found;
    for (const Json& diagnostic : Check("../tests/recipe/base", all)) found.insert(diagnostic["code"]);
    return found;
  };
  const std::set<std::string> adamw_codes = codes(sets);
  const std::set<std::string> sgd_codes = codes(sgd);
  for (const char* code : {"W304", "W305", "W311"}) {
    CAPTURE(code);
    CHECK(adamw_codes.contains(code));
    CHECK(!sgd_codes.contains(code));
  }
}

TEST_CASE("check: widths of experts' products are sizes of products, too") {
  std::vector<std::string> messages;
  for (const Json& diagnostic : Check("mixtral-s-1gpu", {"model.dims.F=14300"})) {
    if (diagnostic["code"] == "W205") messages.push_back(diagnostic["message"]);
  }
  CHECK(messages == Sets{"layers.0.mlp.experts.fc2 contracts 14300 features on a rank, no multiple of 64"});
}

TEST_CASE("check: no warning is without a case above") {
  std::set<std::string> covered;
  for (const Case& test : Cases()) covered.insert(test.code);
  for (const std::string& code : recipe::WarningCodes()) {
    CAPTURE(code);
    CHECK(covered.count(code) == 1);
  }
}

TEST_CASE("check: without the cluster's rates nothing is said about times") {
  for (const Json& diagnostic :
       Check("gpt2-124m-1gpu", {"checkpoint.interval=200000", "cluster.matmul_flops=0"})) {
    CHECK(diagnostic["code"] != "W401");
  }
}

TEST_CASE("check: a trial of few iterations may leave things out") {
  CHECK(Check("gpt2-124m-1gpu",
              {"training.iterations=999", "schedule.warmup_fraction=0", "optimizer.clip_grad_norm=0",
               "optimizer.weight_decay=0", "evaluation.interval=0"}) == Json::array());
}

}  // namespace engine::cli
