// The head with its loss as one op where bias, scale and soft cap make the logits, and where its parameters are frozen: the
// plans that CUDA's profile gives.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>
#include <string>
#include <vector>

#include "engine/backend/cuda/profile/profile.h"
#include "engine/model/load.h"
#include "engine/verify/verify.h"
#include "tests/graphs/graphs.h"
#include "tests/plan/plans.h"

namespace engine::compile {
namespace {

// Verified; computes in bf16 unless `sets` say otherwise.
plan::Plan HeadPlan(const plan::GraphModel& model, const std::vector<std::string>& sets) {
  std::vector<std::string> all = {"precision.compute=bf16"};
  all.insert(all.end(), sets.begin(), sets.end());
  const absl::StatusOr<plan::Plan> plan =
      plan::PlanOfGraph(plan::TinyRecipe(true, all), model, backend::cuda::CudaProfile());
  REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
  const absl::Status lawful = verify::Verify(*plan, {});
  REQUIRE_MESSAGE(lawful.ok(), Message(lawful));
  return *plan;
}

// Of the training passes.
std::vector<plan::Instruction> Instructions(const plan::Plan& plan, std::string_view kernel) {
  std::vector<plan::Instruction> found;
  for (const plan::StagePlan& stage : plan.stages) {
    for (const plan::Chunk& chunk : stage.chunks) {
      for (const std::int32_t pass : {chunk.train().forward, chunk.train().backward}) {
        for (const plan::Instruction& instruction :
             stage.segments.at(static_cast<size_t>(pass)).instructions) {
          if (instruction.kernel() == kernel) found.push_back(instruction);
        }
      }
    }
  }
  return found;
}

std::string NameOf(const plan::Plan& plan, const plan::BufferRef& ref) {
  return plan.values.at(static_cast<size_t>(ref.value)).name;
}

// A decoder whose logits have a bias and are scaled and capped.
plan::GraphModel CappedDecoder(const std::set<std::string>& frozen) {
  return plan::WithTraining(plan::NormedDecoder(2, 0), [frozen](const std::string& name) {
    return graph::TrainingSettings{.frozen = frozen.contains(name)};
  });
}

}  // namespace

TEST_CASE("fuse head: bias, scale and soft cap, trained or frozen") {
  struct Case {
    std::set<std::string> frozen;
    std::vector<std::string> outputs;  // beside the gradient of x
    std::uint32_t adds;
  };
  for (const Case& test :
       {Case{{}, {"d_table", "loss", "d_head.bias"}, 0b1110}, Case{{"head.bias"}, {"d_table", "loss"}, 0b110},
        Case{{"table"}, {"loss", "d_head.bias"}, 0b110}, Case{{"table", "head.bias"}, {"loss"}, 0b10}}) {
    INFO(fmt::format("{}", fmt::join(test.frozen, ", ")));
    const plan::Plan plan = HeadPlan(CappedDecoder(test.frozen), {});
    const auto heads = Instructions(plan, "linear_cross_entropy");
    REQUIRE(heads.size() == 1);
    const graph::Attributes& attributes = heads[0].attributes();
    CHECK(attributes.Float("by") == 0.75);
    CHECK(attributes.Float("cap") == 2);
    CHECK(attributes.Int("frozen", 0) == (test.frozen.contains("table") ? 1 : 0));
    CHECK(attributes.Int("bias", 0) == (test.frozen.contains("head.bias") ? 0 : 1));
    REQUIRE(heads[0].inputs.size() == 4);
    CHECK(NameOf(plan, heads[0].inputs[1]) == "table");
    CHECK(NameOf(plan, heads[0].inputs[3]) == "head.bias");
    REQUIRE(heads[0].outputs.size() == test.outputs.size() + 1);
    for (size_t o = 0; o < test.outputs.size(); ++o)
      CHECK(NameOf(plan, heads[0].outputs[o + 1]) == test.outputs[o]);
    CHECK(heads[0].accumulate() == test.adds);
    for (const char* kernel : {"softcap", "softcap_grad", "cross_entropy", "cross_entropy_grad"})
      CHECK(Instructions(plan, kernel).empty());
  }
}

TEST_CASE("fuse head: in other layouts") {
  for (const bool frozen : {false, true}) {
    for (const std::vector<std::string>& layout : {std::vector<std::string>{"parallelism.dp=2"},
                                                   {"parallelism.cp=2"},
                                                   {"parallelism.pp=2"},
                                                   {"parallelism.pp=2", "parallelism.schedule=zero_bubble"},
                                                   {"parallelism.dp=2", "parallelism.zero_stage=2"}}) {
      CAPTURE(fmt::format("{}", fmt::join(layout, " ")));
      const plan::Plan plan =
          HeadPlan(CappedDecoder(frozen ? std::set<std::string>{"table"} : std::set<std::string>{}), layout);
      CHECK(Instructions(plan, "linear_cross_entropy").size() == 1);
      CHECK(Instructions(plan, "cross_entropy_grad").empty());
    }
  }
}

// With the vocabulary split over tp, the ranks' statistics are exchanged between head and gradient.
TEST_CASE("fuse head: one whose vocabulary is split keeps bias, scale and soft cap apart") {
  const plan::Plan plan = HeadPlan(CappedDecoder({}), {"parallelism.tp=2"});
  CHECK(Instructions(plan, "linear_cross_entropy").empty());
  for (const char* kernel : {"softcap_grad", "cross_entropy_grad"})
    CHECK(Instructions(plan, kernel).size() == 1);
  const auto capped = Instructions(plan, "softcap");
  REQUIRE(capped.size() == 1);
  CHECK(plan.values.at(static_cast<size_t>(capped[0].outputs[0].value)).local[2] == 32);  // of 64 words
}

// Models as text: Gemma 2 caps its logits, GPT-J's head has a bias, and the mixture has a bias and terms of the loss.
TEST_CASE("fuse head: of texts") {
  const auto head = [](const std::string& name, const std::vector<std::string>& sets) {
    recipe::LoadOptions options{.sets = {"precision.compute=bf16"}, .root = {}};
    options.sets.insert(options.sets.end(), sets.begin(), sets.end());
    const recipe::LoadResult loaded =
        model::Load(std::string(ENGINE_SOURCE_DIR "/tests/train/texts/") + name + ".toml", options);
    REQUIRE_MESSAGE(loaded.ok(), Format(loaded.diagnostics.at(0)));
    const absl::StatusOr<plan::Plan> plan =
        driver::CompileRecipe(loaded.recipe, {.profile = backend::cuda::CudaProfile()});
    REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
    const auto heads = Instructions(*plan, "linear_cross_entropy");
    REQUIRE(heads.size() == 1);
    return heads[0].attributes();
  };
  CHECK(head("gemma2", {}).Float("cap") == 3);
  CHECK(head("gemma2", {"model.main.loss={ smoothing = 0.1, z_loss = 1e-4 }"}).Float("smoothing") == 0.1);
  CHECK(head("gpt-j", {}).Int("bias") == 1);
  const graph::Attributes mixture = head("mixture", {});
  CHECK(mixture.Int("bias") == 1);
  CHECK(mixture.Float("smoothing") == 0.1);
  CHECK(mixture.Float("z_loss") == 0.01);
}

TEST_CASE("fuse head: with operands in fp8") {
  for (const bool frozen : {false, true}) {
    CAPTURE(frozen);
    const std::set<std::string> names =
        frozen ? std::set<std::string>{"table", "head.bias"} : std::set<std::string>{};
    const plan::Plan plan =
        HeadPlan(CappedDecoder(names),
                 {"precision.compute=fp8", "precision.fp8_head=true", "model.vocab_multiple=16"});
    const auto heads = Instructions(plan, "linear_cross_entropy_fp8");
    REQUIRE(heads.size() == 1);
    CHECK(heads[0].attributes().Float("by") == 0.75);
    CHECK(heads[0].attributes().Float("cap") == 2);
    REQUIRE(heads[0].inputs.size() == 6);
    CHECK(NameOf(plan, heads[0].inputs[5]) == "head.bias");
    CHECK(heads[0].outputs.size() == (frozen ? 2 : 4));
    CHECK(heads[0].accumulate() == (frozen ? 0b10 : 0b1110));
  }
}

}  // namespace engine::compile
