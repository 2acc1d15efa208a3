// The recipes of recipes/megatron/ are what the importer makes of the scripts, and what they come to is what
// the notes on these runs say. The values below were written by hand from the notes and from Megatron-LM's
// defaults.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "engine/import/megatron_import.h"
#include "engine/model/build.h"
#include "engine/model/load.h"
#include "engine/recipe/fields.h"
#include "engine/recipe/load.h"
#include "tests/import/megatron_runs.h"
#include "tests/recipe/test_files.h"

namespace engine::import {
namespace {

namespace fs = std::filesystem;
using KeyValues = std::map<std::string, std::string>;  // key → value as TOML

const fs::path kRoot = ENGINE_SOURCE_DIR;

recipe::Recipe Loaded(const std::string& name) {
  const recipe::LoadResult result = recipe::Load((kRoot / "recipes/megatron" / (name + ".toml")).string());
  for (const Diagnostic& diagnostic : result.diagnostics) MESSAGE(Format(diagnostic));
  REQUIRE(result.ok());
  return result.recipe;
}

// Every key that is neither in `values` nor of [cluster] has the recipe's own default.
void CheckValues(const std::string& name, const KeyValues& values) {
  CAPTURE(name);
  const recipe::Recipe recipe = Loaded(name);
  for (const recipe::Field& field : recipe::Fields()) {
    if (field.table() == "cluster" && !values.contains(field.key)) continue;
    CAPTURE(field.key);
    const auto expected = values.find(field.key);
    CHECK(recipe::ToToml(Get(field, recipe)) ==
          (expected != values.end() ? expected->second : recipe::ToToml(recipe::DefaultOf(field))));
  }
  for (const auto& [key, value] : values) CHECK_MESSAGE(recipe::FindField(key) != nullptr, key);
}

KeyValues operator+(KeyValues values, const KeyValues& more) {
  for (const auto& [key, value] : more) values[key] = value;
  return values;
}

// What Megatron-LM does unless told otherwise and a recipe does not, and what all these runs have.
const KeyValues kMegatron = {
    {"model.vocab", "50257"},  // GPT-2's
    {"model.attention.bias", "true"},
    {"model.mlp.bias", "true"},
    {"model.dropout.attention", "0.1"},
    {"model.dropout.hidden", "0.1"},
    {"model.dropout.embedding", "0.1"},
    {"data.tokenizer.kind", "\"gpt2\""},
    {"data.tokenizer.vocab_file", "\"gpt2-vocab.json\""},
    {"data.tokenizer.merges_file", "\"gpt2-merges.txt\""},
    {"data.split", "\"949,50,1\""},
    {"schedule.kind", "\"cosine\""},
    {"optimizer.weight_decay", "0.1"},
    {"optimizer.clip_grad_norm", "1.0"},
    {"precision.deterministic", "false"},
    {"evaluation.iterations", "10"},
};

// 36 blocks, 1280 features, 20 heads, 1024 tokens; fp16; 64 samples an iteration of 2 GPUs.
const KeyValues kGpt2Large = kMegatron + KeyValues{
                                             {"model.layers", "36"},
                                             {"model.hidden", "1280"},
                                             {"model.attention.heads", "20"},
                                             {"model.max_positions", "1024"},
                                             {"model.init_std", "0.006"},
                                             {"data.sequence_length", "1024"},
                                             {"data.paths", "[\"owt-ds/openwebtext-10k_text_document\"]"},
                                             {"data.tokenizer.vocab_file", "\"gpt2/vocab.json\""},
                                             {"data.tokenizer.merges_file", "\"gpt2/merges.txt\""},
                                             {"optimizer.learning_rate", "6e-05"},
                                             {"optimizer.beta2", "0.95"},
                                             {"schedule.min_learning_rate", "6e-06"},
                                             {"schedule.warmup_fraction", "0.001"},
                                             {"schedule.decay_iterations", "430000"},
                                             {"training.global_batch", "64"},
                                             {"training.micro_batch", "64"},
                                             {"training.iterations", "500000"},
                                             {"precision.compute", "\"fp16\""},
                                             {"checkpoint.interval", "10000"},
                                             {"evaluation.interval", "1000"},
                                             {"logging.sinks", "[\"tensorboard\", \"wandb\"]"},
                                             {"logging.wandb.project", "\"gpt2-large\""},
                                             {"cluster.name", "\"h200-x2\""},
                                             {"cluster.nodes", "1"},
                                             {"cluster.devices_per_node", "2"},
                                         };

// What the three scripts of one collection share.
const KeyValues kGuide =
    kMegatron + KeyValues{
                    {"model.max_positions", "2048"},         {"data.sequence_length", "2048"},
                    {"schedule.min_learning_rate", "1e-05"}, {"schedule.warmup_iterations", "2000"},
                    {"training.iterations", "100000"},       {"precision.compute", "\"bf16\""},
                    {"evaluation.interval", "100"},          {"cluster.name", "\"h100-8x-ib400\""},
                    {"cluster.devices_per_node", "8"},
                };

// GPT-3's example.
const KeyValues kGpt3 =
    kMegatron + KeyValues{
                    {"model.max_positions", "2048"},   {"model.init_std", "0.006"},
                    {"data.sequence_length", "2048"},  {"optimizer.learning_rate", "6e-05"},
                    {"optimizer.beta2", "0.95"},       {"schedule.min_learning_rate", "6e-06"},
                    {"training.micro_batch", "1"},     {"precision.compute", "\"fp16\""},
                    {"evaluation.interval", "1000"},   {"cluster.name", "\"h100-8x-ib400\""},
                    {"cluster.devices_per_node", "8"},
                };

}  // namespace

TEST_CASE("megatron: the recipes are what the importer makes of the scripts") {
  for (const MegatronRun& run : MegatronRuns()) {
    CAPTURE(run.recipe);
    const fs::path script = kRoot / "tests/import/megatron" / (run.script + ".sh");
    const MegatronImport import =
        ImportMegatron(recipe::Source(script.string(), recipe::ReadText(script)),
                       {run.variables, "../../configs/clusters/" + run.cluster + ".toml"});
    for (const Diagnostic& diagnostic : import.diagnostics) MESSAGE(Format(diagnostic));
    CHECK(std::all_of(import.diagnostics.begin(), import.diagnostics.end(),
                      [](const Diagnostic& diagnostic) { return diagnostic.severity == Severity::kNote; }));
    CHECK(import.recipe == recipe::ReadText(kRoot / "recipes/megatron" / (run.recipe + ".toml")));
  }
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(kRoot / "recipes/megatron")) ++files;
  CHECK(files == MegatronRuns().size());
}

TEST_CASE("megatron: GPT-2 large on two GPUs") {
  CheckValues("gpt2-large-dp2",
              kGpt2Large + KeyValues{{"parallelism.dp", "2"}, {"training.micro_batch", "32"}});
  CheckValues("gpt2-large-tp2", kGpt2Large + KeyValues{{"parallelism.tp", "2"}});
  CheckValues("gpt2-large-sp2",
              kGpt2Large + KeyValues{{"parallelism.tp", "2"}, {"parallelism.sequence_parallel", "true"}});
  CheckValues("gpt2-large-cp2", kGpt2Large + KeyValues{{"parallelism.cp", "2"}});
  CheckValues("gpt2-large-pp2",
              kGpt2Large + KeyValues{{"parallelism.pp", "2"}, {"parallelism.layers_per_stage", "[18, 18]"}});
  for (const char* name :
       {"gpt2-large-dp2", "gpt2-large-tp2", "gpt2-large-sp2", "gpt2-large-cp2", "gpt2-large-pp2"}) {
    CHECK(Loaded(name).world_size() == 2);
    CHECK(Loaded(name).microbatches() == 1);
  }
}

TEST_CASE("megatron: 2.7B on a node, tp 4 · pp 2 on four, 70B under SLURM") {
  CheckValues("gpt-2.7b", kGuide + KeyValues{{"model.layers", "32"},
                                             {"model.hidden", "2560"},
                                             {"model.attention.heads", "32"},
                                             {"parallelism.dp", "4"},
                                             {"parallelism.tp", "2"},
                                             {"data.paths", "[\"/data/my-gpt3_text_document\"]"},
                                             {"optimizer.learning_rate", "0.00015"},
                                             {"training.global_batch", "32"},
                                             {"training.micro_batch", "4"},
                                             {"checkpoint.interval", "1000"},
                                             {"logging.sinks", "[\"tensorboard\"]"},
                                             {"logging.interval", "10"},
                                             {"cluster.nodes", "1"}});
  CheckValues("gpt-pipeline-tp4pp2",
              kGuide + KeyValues{{"model.layers", "32"},
                                 {"model.hidden", "4096"},
                                 {"model.attention.heads", "32"},
                                 {"parallelism.dp", "4"},
                                 {"parallelism.tp", "4"},
                                 {"parallelism.pp", "2"},
                                 {"parallelism.layers_per_stage", "[16, 16]"},
                                 {"parallelism.sequence_parallel", "true"},
                                 {"parallelism.zero_stage", "1"},
                                 {"data.paths", "[\"/workspace/gpt-training/data/arxiv_text_document\"]"},
                                 {"optimizer.learning_rate", "0.00015"},
                                 {"training.global_batch", "256"},
                                 {"training.micro_batch", "2"},
                                 {"checkpoint.interval", "1000"},
                                 {"logging.sinks", "[\"tensorboard\", \"wandb\"]"},
                                 {"logging.wandb.project", "\"gpt-13b-arxiv\""},
                                 {"logging.interval", "10"},
                                 {"cluster.nodes", "4"}});
  CheckValues("gpt-70b-slurm",
              kGuide + KeyValues{{"model.layers", "80"},
                                 {"model.hidden", "8192"},
                                 {"model.attention.heads", "64"},
                                 {"parallelism.dp", "4"},
                                 {"parallelism.tp", "8"},
                                 {"parallelism.pp", "4"},
                                 {"parallelism.layers_per_stage", "[20, 20, 20, 20]"},
                                 {"parallelism.sequence_parallel", "true"},
                                 {"parallelism.zero_stage", "1"},
                                 {"data.paths", "[\"/scratch/data/pile_text_document\"]"},
                                 {"data.tokenizer.vocab_file", "\"/data/vocab/gpt2-vocab.json\""},
                                 {"data.tokenizer.merges_file", "\"/data/vocab/gpt2-merges.txt\""},
                                 {"optimizer.learning_rate", "0.0001"},
                                 {"training.global_batch", "128"},
                                 {"training.micro_batch", "1"},
                                 {"checkpoint.interval", "500"},
                                 {"logging.sinks", "[\"tensorboard\", \"wandb\"]"},
                                 {"logging.wandb.project", "\"gpt-70b-training\""},
                                 {"logging.interval", "1"},
                                 {"cluster.nodes", "16"}});
  CHECK(Loaded("gpt-2.7b").world_size() == 8);
  CHECK(Loaded("gpt-2.7b").microbatches() == 2);
  CHECK(Loaded("gpt-pipeline-tp4pp2").world_size() == 32);
  CHECK(Loaded("gpt-pipeline-tp4pp2").microbatches() == 32);
  CHECK(Loaded("gpt-70b-slurm").world_size() == 128);
  CHECK(Loaded("gpt-70b-slurm").microbatches() == 32);
}

TEST_CASE("megatron: GPT-3 with tp 8 · pp 16, and on HyperPod") {
  CheckValues("gpt3-175b-tp8pp16", kGpt3 + KeyValues{{"model.layers", "96"},
                                                     {"model.hidden", "12288"},
                                                     {"model.attention.heads", "96"},
                                                     {"parallelism.dp", "2"},
                                                     {"parallelism.tp", "8"},
                                                     {"parallelism.pp", "16"},
                                                     {"parallelism.layers_per_stage",
                                                      "[6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6]"},
                                                     {"parallelism.sequence_parallel", "true"},
                                                     {"parallelism.zero_stage", "1"},
                                                     {"data.paths", "[\"data/gpt3_text_document\"]"},
                                                     {"data.tokenizer.vocab_file", "\"gpt2/vocab.json\""},
                                                     {"data.tokenizer.merges_file", "\"gpt2/merges.txt\""},
                                                     {"schedule.warmup_fraction", "0.001"},
                                                     {"schedule.decay_iterations", "430000"},
                                                     {"training.global_batch", "1536"},
                                                     {"training.iterations", "500000"},
                                                     {"checkpoint.interval", "10000"},
                                                     {"logging.sinks", "[\"tensorboard\"]"},
                                                     {"logging.interval", "100"},
                                                     {"cluster.nodes", "32"}});
  CHECK(Loaded("gpt3-175b-tp8pp16").world_size() == 256);
  CheckValues("gpt3-hyperpod",
              kGpt3 + KeyValues{{"model.layers", "36"},
                                {"model.hidden", "4096"},
                                {"model.attention.heads", "32"},
                                {"parallelism.tp", "8"},
                                {"data.paths", "[\"/fsx/gpt2/my-gpt2_text_document\"]"},
                                {"data.split", "\"98,2,0\""},
                                {"data.tokenizer.vocab_file", "\"/fsx/gpt2/gpt2-vocab.json\""},
                                {"data.tokenizer.merges_file", "\"/fsx/gpt2/gpt2-merges.txt\""},
                                {"schedule.warmup_samples", "183105"},
                                {"schedule.decay_samples", "126953125"},
                                {"training.global_batch", "288"},
                                {"training.samples", "146484288"},  // 508626 whole batches
                                {"recompute.granularity", "\"selective\""},
                                {"evaluation.iterations", "40"},
                                {"cluster.nodes", "1"}});
  const recipe::Recipe hyperpod = Loaded("gpt3-hyperpod");
  CHECK(hyperpod.microbatches() == 288);    // "setting number of micro-batches to constant 288"
  CHECK(hyperpod.padded_vocab() == 51200);  // "with 943 dummy tokens (new size: 51200)"
  CHECK(hyperpod.iterations() == 508626);   // "iteration 1/  508626"
  CHECK(hyperpod.training.seed == 1234);    // "setting random seeds to 1234"
}

TEST_CASE("megatron: models with experts have the released numbers of parameters") {
  struct Expected {
    std::string recipe, like;  // `like`: of configs/models
    std::int64_t parameters, of_a_token;
    std::int64_t dp, tp, pp, ep, expert_tp;
  };
  for (const Expected& e :
       {Expected{"mixtral-8x7b-pp4ep8", "mixtral-8x7b", 46'702'792'704, 12'879'925'248, 2, 1, 4, 8, 0},
        Expected{"qwen3-30b-a3b-tp2ep8", "qwen3-30b-a3b", 30'532'122'624, 3'353'032'704, 1, 2, 1, 8, 1},
        Expected{"deepseek-v2-lite-pp2ep8", "deepseek-v2-lite", 15'706'484'224, 0, 1, 1, 2, 8, 0}}) {
    CAPTURE(e.recipe);
    const recipe::LoadResult loaded =
        model::Load((kRoot / "recipes/megatron" / (e.recipe + ".toml")).string());
    for (const Diagnostic& diagnostic : loaded.diagnostics) MESSAGE(Format(diagnostic));
    REQUIRE(loaded.ok());
    const recipe::Recipe& recipe = loaded.recipe;
    CHECK(recipe.parallelism.dp == e.dp);
    CHECK(recipe.parallelism.tp == e.tp);
    CHECK(recipe.parallelism.pp == e.pp);
    CHECK(recipe.parallelism.ep == e.ep);
    CHECK(recipe.parallelism.expert_tp == e.expert_tp);
    const graph::Graph graph = model::BuildModel(recipe, {.batch = 1, .sequence = 32, .vocab_multiple = 128});
    CHECK(model::CountParameters(graph) == e.parameters);
    if (e.of_a_token > 0) CHECK(model::CountActiveParameters(graph) == e.of_a_token);
  }
}

}  // namespace engine::import
