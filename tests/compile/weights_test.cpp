#include "engine/compile/weights.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>

#include "engine/backend/cuda/profile/profile.h"
#include "tests/plan/plans.h"

namespace engine::compile {
namespace {

const plan::Segment* Find(const plan::StagePlan& stage, std::int32_t segment) {
  return segment < 0 ? nullptr : &stage.segments[static_cast<size_t>(segment)];
}

std::set<std::string> Kernels(const plan::Segment& segment) {
  std::set<std::string> kernels;
  for (const plan::Instruction& instruction : segment.instructions)
    kernels.insert(std::string(instruction.kernel()));
  return kernels;
}

std::vector<std::string> ZeroBubbleSets(std::vector<std::string> more) {
  more.insert(more.end(), {"parallelism.pp=2", "parallelism.schedule=zero_bubble"});
  return more;
}

}  // namespace

TEST_CASE("weights pass: products and sums for gradients of parameters, and nothing else") {
  const plan::Plan plan = plan::TinyPlan(false, ZeroBubbleSets({}));
  const plan::Segment& first = *Find(plan.stages[0], plan.stages[0].chunks[0].train().weights);
  CHECK(first.name == "weights.0");
  CHECK(Kernels(first) == std::set<std::string>{"linear_wgrad", "bias_grad", "embedding_grad"});
  const plan::Segment& last = *Find(plan.stages[1], plan.stages[1].chunks[0].train().weights);
  CHECK(Kernels(last) == std::set<std::string>{"linear_wgrad", "bias_grad"});
  for (const plan::StagePlan& stage : plan.stages) {
    const std::set<std::string> backward = Kernels(*Find(stage, stage.chunks[0].train().backward));
    for (const char* kernel : {"linear_wgrad", "bias_grad", "embedding_grad"})
      CHECK(!backward.contains(kernel));
    CHECK(backward.contains("layer_norm_grad"));  // dx with dγ and dβ
  }
}

TEST_CASE("weights pass: the same instructions as without, one after the other") {
  for (const bool llama : {false, true}) {
    const std::vector<std::string> more = {"parallelism.tp=2", "parallelism.sequence_parallel=true",
                                           "recompute.granularity=full"};
    std::vector<std::string> plain = more;
    plain.emplace_back("parallelism.pp=2");
    const plan::Plan whole = plan::TinyPlan(llama, plain);
    const plan::Plan split = plan::TinyPlan(llama, ZeroBubbleSets(more));
    for (size_t s = 0; s < 2; ++s) {
      const auto names = [&](const plan::Plan& plan, std::multiset<std::string>* found) {
        const plan::Chunk& chunk = plan.stages[s].chunks[0];
        for (std::int32_t id : {chunk.train().backward, chunk.train().weights}) {
          const plan::Segment* segment = Find(plan.stages[s], id);
          if (segment == nullptr) continue;
          for (const plan::Instruction& i : segment->instructions)
            found->insert(std::string(i.kernel()) + " " + i.name);
        }
      };
      std::multiset<std::string> one;
      std::multiset<std::string> two;
      names(whole, &one);
      names(split, &two);
      CHECK(one == two);
      CHECK(whole.stages[s].flops == split.stages[s].flops);
      CHECK(whole.stages[s].chunks[0].train().weights == -1);
    }
  }
}

TEST_CASE("weights pass: what is gathered for a weight gradient alone is gathered there") {
  const plan::Plan plan =
      plan::TinyPlan(true, ZeroBubbleSets({"parallelism.tp=2", "parallelism.sequence_parallel=true"}));
  for (const plan::StagePlan& stage : plan.stages) {
    const auto gathers = [&](std::int32_t id, bool gradient) {
      const auto& instructions = Find(stage, id)->instructions;
      return std::count_if(instructions.begin(), instructions.end(), [&](const plan::Instruction& i) {
        return i.collective() == plan::Collective::kAllGather && i.name.starts_with("d_") == gradient;
      });
    };
    const plan::Chunk& chunk = stage.chunks[0];
    const std::int64_t layers = plan.BlocksIn(chunk);
    // Inputs of qkv, fc1 and head; the gradients that enter proj and fc2 serve dgrad too, the embedding's
    // does not.
    CHECK(gathers(chunk.train().weights, false) ==
          2 * layers + (chunk.index + 1 == static_cast<std::int32_t>(plan.chunk_stage.size()) ? 1 : 0));
    CHECK(gathers(chunk.train().backward, false) == 0);
    CHECK(gathers(chunk.train().weights, true) == (chunk.index == 0 ? 1 : 0));
    CHECK(gathers(chunk.train().backward, true) == 2 * layers);
  }
}

TEST_CASE("weights pass: a repeated activation is repeated there if what it is made of was saved") {
  // Of gelu's input, which the backward pass reads from the slot as well.
  const plan::Plan saved = plan::TinyPlan(
      false, ZeroBubbleSets({"recompute.granularity=selective", "recompute.modules=[\"activation\"]"}));
  CHECK(Kernels(*Find(saved.stages[0], saved.stages[0].chunks[0].train().weights)).contains("gelu"));
  // Of what the backward pass repeats.
  const plan::Plan repeated = plan::TinyPlan(false, ZeroBubbleSets({"recompute.granularity=full"}));
  CHECK(Kernels(*Find(repeated.stages[0], repeated.stages[0].chunks[0].train().backward)).contains("gelu"));
}

}  // namespace engine::compile
