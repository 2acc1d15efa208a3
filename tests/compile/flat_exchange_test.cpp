// Where reductions of buckets stand in a backward pass.
#include "engine/compile/flat_exchange.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/backend/cuda/profile/profile.h"
#include "tests/plan/plans.h"

namespace engine::compile {
namespace {

constexpr Rates kLateRates = {.matmul_flops = 1e12, .memory_bandwidth = 1e15, .link_bandwidth = 1e9};
// What a reduction takes that moves no bytes, and a kernel that computes nothing.
constexpr double kNoBytesMs = 0.015;
constexpr double kNoWorkMs = 0.003;

plan::Instruction KernelTaking(const std::string& name, double ms) {
  plan::Instruction instruction;
  instruction.name = instruction.AsKernel()->name = name;
  instruction.AsKernel()->work.flops = (ms - kNoWorkMs) * 1e9;
  return instruction;
}

plan::Instruction ReductionTaking(const std::string& name, double ms) {
  plan::BucketExchange exchange;
  exchange.collective = plan::Collective::kReduceScatter;
  exchange.push = exchange.last_only = true;
  exchange.wire_bytes = static_cast<std::int64_t>((ms - kNoBytesMs) * 1e6);
  plan::Instruction instruction;
  instruction.name = name;
  instruction.stream = plan::kBucketStream;
  instruction.what = exchange;
  return instruction;
}

// Layers of 3 + 1 ms, each reduced in `ms` behind the first of them.
DraftSegment ReducedLayers(int layers, double ms) {
  DraftSegment segment;
  for (int i = layers; i-- > 0;) {
    segment.drafts.push_back({.instruction = KernelTaking("wgrad", 3)});
    segment.drafts.push_back({.instruction = ReductionTaking("sum" + std::to_string(i), ms)});
    segment.drafts.push_back({.instruction = KernelTaking("norm", 1)});
  }
  return segment;
}

std::string NamesInOrder(const DraftSegment& segment) {
  std::string names;
  for (const auto& [i, scratch_bytes] : segment.drafts) names += (names.empty() ? "" : " ") + i.name;
  return names;
}

TEST_CASE("late reductions: as near to the end as twice their time between each two allows") {
  DraftSegment segment = ReducedLayers(6, 0.4);
  ReduceLate(kLateRates, &segment);
  // 1 ms is enough, where it stands between.
  CHECK(NamesInOrder(segment) ==
        "wgrad norm wgrad norm wgrad norm sum5 wgrad sum4 norm sum3 wgrad sum2 norm sum1 wgrad sum0 norm");
  segment = ReducedLayers(4, 0.6);
  ReduceLate(kLateRates, &segment);
  CHECK(NamesInOrder(segment) == "wgrad norm sum3 wgrad norm sum2 wgrad norm sum1 wgrad sum0 norm");
}

TEST_CASE("late reductions: none before its gradients are made") {
  DraftSegment segment = ReducedLayers(5, 3.5);  // 7 ms of computation are more than a layer
  const std::string before = NamesInOrder(segment);
  ReduceLate(kLateRates, &segment);
  CHECK(NamesInOrder(segment) == before);
}

TEST_CASE("late reductions: none where the cluster's rates are not known") {
  for (double Rates::*rate : {&Rates::matmul_flops, &Rates::link_bandwidth}) {
    Rates rates = kLateRates;
    rates.*rate = 0;
    DraftSegment segment = ReducedLayers(6, 0.1);
    const std::string before = NamesInOrder(segment);
    ReduceLate(rates, &segment);
    CHECK(NamesInOrder(segment) == before);
  }
}

TEST_CASE("late reductions: none where the segment exchanges anything else, or the links carry it anyway") {
  const auto stays = [](const auto& edit) {
    DraftSegment segment = ReducedLayers(6, 0.4);
    edit(segment.drafts);
    const std::string before = NamesInOrder(segment);
    ReduceLate(kLateRates, &segment);
    return NamesInOrder(segment) == before;
  };
  CHECK_FALSE(stays([](std::vector<Draft>&) {}));
  CHECK(stays([](std::vector<Draft>& list) { list[1].instruction.AsExchange()->push = false; }));  // NCCL's
  CHECK(stays([](std::vector<Draft>& list) {
    list[1].instruction.AsBucketExchange()->last_only = false;
  }));  // in every microbatch
  CHECK(stays([](std::vector<Draft>& list) { list[1].instruction.stream = plan::kComputeStream; }));
  CHECK(stays([](std::vector<Draft>& list) {
    list[3].instruction.what = plan::Conversion();  // of tp
  }));
}

// By instruction of the first chunk's backward pass: computation behind the first reduction, of all.
double ShareBehindFirst(const plan::Plan& plan) {
  const plan::Segment& backward =
      plan.stages[0].segments[static_cast<size_t>(plan.stages[0].chunks[0].train().backward)];
  double all = 0, behind = 0;
  bool first = false;
  for (const plan::Instruction& i : backward.instructions) {
    if (i.collective() != plan::Collective::kNone) first = true;
    all += i.work().flops;
    behind += first ? i.work().flops : 0;
  }
  return behind / all;
}

TEST_CASE("late reductions: of whole plans with dp alone") {
  const auto plan_of = [](std::vector<std::string> sets) {
    for (const char* set :
         {"model.layers=12", "model.hidden=1024", "model.mlp.hidden=4096", "data.sequence_length=1024",
          "model.max_positions=1024", "training.micro_batch=8", "precision.compute=bf16",
          "cluster.matmul_flops=668e12", "cluster.intra_node_bandwidth=360e9"}) {
      sets.emplace_back(set);
    }
    const auto plan =
        driver::CompileRecipe(plan::TinyRecipe(false, sets), {.profile = backend::cuda::CudaProfile()});
    REQUIRE_MESSAGE(plan.ok(), plan.status().message());
    return *plan;
  };
  const double all = ShareBehindFirst(plan_of({"parallelism.dp=2", "parallelism.zero_stage=2"}));
  CHECK(all > 0.8);
  CHECK(ShareBehindFirst(plan_of({"parallelism.dp=2", "parallelism.zero_stage=1"})) < 0.3);
  CHECK(ShareBehindFirst(plan_of({"parallelism.dp=2", "parallelism.pp=2", "parallelism.zero_stage=1"})) >
        0.8);
}

}  // namespace
}  // namespace engine::compile
