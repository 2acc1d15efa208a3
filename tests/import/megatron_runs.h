// The runs whose recipes are in recipes/megatron/: the script, what it takes from outside, its cluster.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace engine::import {

struct MegatronRun {
  std::string recipe;   // of recipes/megatron/, without .toml
  std::string script;   // of tests/import/megatron/, without .sh
  std::string cluster;  // of configs/clusters/, without .toml
  std::map<std::string, std::string> variables;
};

inline std::vector<MegatronRun> MegatronRuns() {
  return {
      {"gpt2-large-dp2", "gpt2_large_2gpu", "h200-x2", {}},
      {"gpt2-large-tp2", "gpt2_large_2gpu", "h200-x2", {{"TP_SIZE", "2"}, {"MICRO_BATCH_SIZE", "64"}}},
      {"gpt2-large-sp2",
       "gpt2_large_2gpu",
       "h200-x2",
       {{"TP_SIZE", "2"}, {"SEQUENCE_PARALLEL", "yes"}, {"MICRO_BATCH_SIZE", "64"}}},
      {"gpt2-large-cp2", "gpt2_large_2gpu", "h200-x2", {{"CP_SIZE", "2"}, {"MICRO_BATCH_SIZE", "64"}}},
      {"gpt2-large-pp2", "gpt2_large_2gpu", "h200-x2", {{"PP_SIZE", "2"}, {"MICRO_BATCH_SIZE", "64"}}},
      {"gpt-2.7b", "gpt_2.7b", "h100-8x-ib400", {}},
      {"gpt-pipeline-tp4pp2", "gpt_pipeline", "h100-8x-ib400", {}},
      {"gpt-70b-slurm", "gpt_70b_slurm", "h100-8x-ib400", {}},
      {"gpt3-175b-tp8pp16",
       "gpt3_175b",
       "h100-8x-ib400",
       {{"NUM_NODES", "32"},
        {"3", "gpt2/vocab.json"},
        {"4", "gpt2/merges.txt"},
        {"5", "data/gpt3_text_document"}}},
      {"gpt3-hyperpod", "gpt3_hyperpod", "h100-8x-ib400", {}},
      {"mixtral-8x7b-pp4ep8", "mixtral_8x7b", "h100-8x-ib400", {}},
      {"qwen3-30b-a3b-tp2ep8", "qwen3_30b_a3b", "h100-8x-ib400", {}},
      {"deepseek-v2-lite-pp2ep8", "deepseek_v2_lite", "h100-8x-ib400", {}},
  };
}

}  // namespace engine::import
