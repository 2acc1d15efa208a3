// The texts of configs/blocks with experts train alike in every layout: an expert that all tokens share, behind a sigmoid, and
// layers with and without experts in turn.
#include <string>
#include <vector>

#include "tests/train/text_testing.h"

namespace engine::train::testing {
namespace {

recipe::Recipe BlockOf(const std::string& name, const std::vector<std::string>& model,
                       const std::string& sets) {
  std::vector<std::string> all = {
      "model.vocab_multiple=16",    "model.init_std=0.1",           "data.paths=[\"none\"]",
      "data.sequence_length=16",    "optimizer.learning_rate=1e-2", "optimizer.epsilon=1e-3",
      "optimizer.weight_decay=0.1", "schedule.kind=constant",       "training.global_batch=12",
      "training.micro_batch=12",    "training.iterations=5",        "training.seed=7"};
  const std::vector<std::string> own = SetsOf(sets);
  all.insert(all.end(), model.begin(), model.end());
  all.insert(all.end(), own.begin(), own.end());
  return Loaded(
      model::Load(ENGINE_SOURCE_DIR "/configs/blocks/" + name + ".toml", {.sets = all, .root = ""}));
}

}  // namespace

TEST_CASE("experts beside one that all tokens share train alike in every layout") {
  const auto make = [](const std::string& sets) {
    return BlockOf(
        "qwen2-moe",
        {"model.dims={ D = 32, L = 2, H = 4, K = 2, E = 8, F = 8, G = 24, X = 6, T = 2, V = 300 }"}, sets);
  };
  CheckTextLayouts(make,
                   {"dp=2 micro_batch=2", "tp=2 micro_batch=2", "tp=2 sequence_parallel=true micro_batch=2",
                    "tp=2 sequence_parallel=true expert_tp=1 micro_batch=2", "cp=2 micro_batch=2",
                    "pp=2 micro_batch=2", "ep=3 micro_batch=2", "ep=2 tp=2 micro_batch=1",
                    "ep=2 tp=2 sequence_parallel=true overlap=on micro_batch=2",
                    "ep=2 zero_stage=3 micro_batch=2 granularity=full", "ep=2 cp=2 micro_batch=1"});
}

TEST_CASE("layers with and without experts in turn train alike in every layout") {
  const auto make = [](const std::string& sets) {
    return BlockOf("switch",
                   {"model.dims={ D = 32, H = 4, E = 8, F = 24, X = 6, V = 300, P = 16 }",
                    "model.main.layers={ pattern = \"DEDE\" }"},
                   sets);
  };
  CheckTextLayouts(make,
                   {"dp=2 micro_batch=2", "tp=2 sequence_parallel=true micro_batch=2", "pp=4 micro_batch=1",
                    "ep=2 pp=2 virtual_stages=2 micro_batch=1", "ep=3 zero_stage=1 micro_batch=2"});
}

}  // namespace engine::train::testing
