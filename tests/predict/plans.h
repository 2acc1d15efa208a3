// Plans for GPUs, and the cluster on which the tests of predictions play them.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "engine/backend/cuda/profile/profile.h"
#include "tests/plan/plans.h"

namespace engine::predict {

inline plan::Plan CudaPlan(const recipe::Recipe& recipe) {
  absl::StatusOr<plan::Plan> plan =
      driver::CompileUnverified(recipe, {.profile = backend::cuda::CudaProfile()});
  if (!plan.ok()) FAIL(Message(plan.status()));
  return *std::move(plan);
}

// Layouts that exchange in every way there is.
inline const std::vector<std::vector<std::string>> kLayouts = {
    {},
    {"parallelism.tp=2", "training.micro_batch=2"},
    {"parallelism.tp=2", "parallelism.sequence_parallel=true", "training.micro_batch=2", "parallelism.dp=2"},
    {"parallelism.tp=2", "parallelism.overlap=off"},
    {"parallelism.tp=2", "parallelism.exchange=nccl", "training.micro_batch=2"},
    {"parallelism.cp=2", "parallelism.dp=2", "parallelism.zero_stage=1"},
    {"parallelism.dp=4", "parallelism.zero_stage=2"},
    {"parallelism.dp=4", "parallelism.zero_stage=3"},
    {"parallelism.pp=4"},
    {"parallelism.pp=2", "parallelism.virtual_stages=2", "parallelism.dp=2"},
    {"parallelism.pp=4", "parallelism.schedule=zero_bubble", "parallelism.tp=2"},
};

inline recipe::Cluster SmallNodes() {
  recipe::Cluster cluster;
  cluster.device = "h200";
  cluster.devices_per_node = 2;
  cluster.matmul_flops = 668e12;
  cluster.peak_flops = 989e12;
  cluster.memory_bandwidth = 4.3e12;
  cluster.intra_node_bandwidth = 360e9;
  cluster.inter_node_bandwidth = 50e9;
  return cluster;
}

// In bf16 on such nodes.
inline std::vector<std::string> OnSmallNodes(const std::vector<std::string>& sets) {
  std::vector<std::string> all = {"precision.compute=bf16", "cluster.device=h200",
                                  "cluster.devices_per_node=2"};
  all.insert(all.end(), sets.begin(), sets.end());
  return all;
}

inline plan::Plan PlanOfLayout(const std::vector<std::string>& layout) {
  std::vector<std::string> sets = OnSmallNodes({"model.dropout.attention=0"});
  sets.insert(sets.end(), layout.begin(), layout.end());
  return CudaPlan(plan::TinyRecipe(false, sets));
}

inline std::string Text(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += word + " ";
  return text;
}

}  // namespace engine::predict
