// The canonical text of a few tiny plans, reviewed as data. ENGINE_UPDATE_GOLDEN=1 writes the files anew.
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "engine/backend/cuda/profile/profile.h"
#include "engine/base/hash.h"
#include "engine/plan/canonical.h"
#include "engine/plan/print.h"
#include "tests/plan/plans.h"

namespace engine::plan {
namespace {

void CompareWithFile(const std::string& name, const std::string& text) {
  const std::string path = std::string(ENGINE_SOURCE_DIR) + "/tests/plan/golden/" + name;
  if (std::getenv("ENGINE_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path, std::ios::binary) << text;
    return;
  }
  std::ifstream file(path, std::ios::binary);
  REQUIRE_MESSAGE(file.good(), path);
  const std::string golden{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (golden == text) return;
  const auto at =
      std::mismatch(golden.begin(), golden.end(), text.begin(), text.end()).first - golden.begin();
  const size_t line_start = golden.rfind('\n', static_cast<size_t>(at)) + 1;
  FAIL(name << " differs; golden: " << golden.substr(line_start, 300)
            << "\n  now: " << text.substr(std::min(line_start, text.size()), 300));
}

void CompareWithFiles(const std::string& name, const Plan& plan) {
  std::string text;
  WriteCanonical(plan, [&](std::string_view piece) { text += piece; });
  CHECK(plan.hash == HashHex(text));  // so these files fix hashes too, on every machine
  CompareWithFile(name + ".txt", text);
  CompareWithFile(name + ".summary.txt", Summary(plan));
}

void Golden(const std::string& name, std::vector<std::string> sets, const DeviceProfile& profile = {},
            bool llama = false) {
  for (const char* set : {"model.layers=2", "training.global_batch=4"}) sets.emplace_back(set);
  absl::StatusOr<Plan> compiled = driver::CompileRecipe(TinyRecipe(llama, sets), {.profile = profile});
  if (!compiled.ok()) FAIL(Message(compiled.status()));
  CompareWithFiles(name, *compiled);
}

}  // namespace

TEST_CASE(
    "golden: generation on two GPUs of one process, where nothing is pushed and no term of a sum is left to "
    "its reader") {
  DeviceProfile profile = backend::cuda::CudaProfile(/*deterministic=*/true);
  profile.pushes = false;
  const recipe::Recipe recipe =
      TinyRecipe(true, {"model.layers=1", "parallelism.tp=2", "training.global_batch=1",
                        "training.micro_batch=1", "precision.compute=bf16"});
  const absl::StatusOr<Plan> plan = driver::CompileGeneration(
      recipe, {.profile = profile},
      {.slots = 2, .context = 32, .prefill_tokens = {32}, .decode_batches = {1, 2}});
  if (!plan.ok()) FAIL(Message(plan.status()));
  bool exchanges = false;
  for (const Segment& segment : plan->stages[0].segments) {
    for (const Instruction& instruction : segment.instructions) {
      exchanges = exchanges || instruction.Exchanges();
      CHECK(!instruction.push());
      CHECK(!instruction.direct());
      CHECK(!(instruction.AsKernel() != nullptr && instruction.AsKernel()->adds.has_value()));
    }
  }
  CHECK(exchanges);
  CompareWithFiles("generation", *plan);
}
TEST_CASE("golden: one rank") { Golden("one_rank", {}); }
TEST_CASE("golden: tp 2 with sequence parallelism") {
  Golden("tp2_sequence", {"parallelism.tp=2", "parallelism.sequence_parallel=true"});
}
TEST_CASE("golden: pp 2, dp 2, ZeRO-1") {
  Golden("pp2_dp2_zero1", {"parallelism.pp=2", "parallelism.dp=2", "parallelism.zero_stage=1"});
}

TEST_CASE("golden: tp 2, halves in turns") {
  Golden("tp2_halves", {"parallelism.tp=2", "parallelism.overlap=on", "training.micro_batch=4"});
}
TEST_CASE("golden: bf16 on CUDA") {
  Golden("cuda_bf16", {"precision.compute=bf16"}, backend::cuda::CudaProfile());
}
TEST_CASE("golden: FP8 on CUDA") {
  Golden("cuda_fp8", {"precision.compute=fp8", "model.attention.kv_heads=8"}, backend::cuda::CudaProfile(),
         true);
}

}  // namespace engine::plan
