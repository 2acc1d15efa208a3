// The canonical text of a few tiny plans, reviewed as data. ENGINE_UPDATE_GOLDEN=1 writes the files anew.
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "engine/backend/cuda/profile/profile.h"
#include "engine/base/hash.h"
#include "engine/model/load.h"
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

TEST_CASE("golden: generation of a model with latent attention on two GPUs of one process") {
  DeviceProfile profile = backend::cuda::CudaProfile(/*deterministic=*/true);
  profile.pushes = false;
  const recipe::LoadResult loaded = model::LoadText(R"(
[model]
dims = { D = 32, L = 1, H = 4, C = 16, N = 8, R = 4, E = "N+R", U = 8, V = 256 }
means = { D = "other", C = "other", N = "other", R = "other", U = "other" }
inputs = { tokens = "i32[B,S]", labels = "i32[B,S]", positions = "i32[B,S]" }
rotary.shared = { dim = "R", base = 1e4 }
main = [
  { do = "embedding", as = "embedding", of = "tokens", rows = "V", width = "D" },
  { do = "stack", as = "layers", repeat = "L", layer = ["latent"] },
  { do = "linear", as = "head", out = ["V"] },
  { do = "cross_entropy", as = "loss" },
]
[block.latent]
steps = [
  { do = "linear", as = "q", of = "x", out = ["H", "E"] },
  { do = "linear", as = "kv_down", of = "x", parts = { latent = ["C"], shared = [1, "R"] } },
  { do = "linear", as = "kv", of = "latent", parts = { k = ["H", "N"], v = ["H", "U"] } },
  { do = "rotary", of = "shared", to = "shared", table = "shared" },
  { do = "join", as = "key", of = ["shared", "k"] },
  { do = "attention", as = "core", of = ["q", "key", "v"] },
  { do = "linear", as = "proj", out = ["D"] },
  { do = "residual", as = "residual", of = ["x", "proj"], to = "x" },
]
[data]
source = "random"
sequence_length = 32
[optimizer]
learning_rate = 1e-3
[precision]
compute = "bf16"
[parallelism]
tp = 2
[training]
global_batch = 1
micro_batch = 1
iterations = 1
)",
                                                    "latent.toml", {});
  for (const Diagnostic& diagnostic : loaded.diagnostics) MESSAGE(Format(diagnostic));
  REQUIRE(loaded.ok());
  const absl::StatusOr<Plan> plan =
      driver::CompileGeneration(loaded.recipe, {.profile = profile},
                                {.slots = 2, .context = 32, .prefill_tokens = {32}, .decode_batches = {2}});
  if (!plan.ok()) FAIL(Message(plan.status()));
  CompareWithFiles("generation_latent", *plan);
}
TEST_CASE("golden: generation of a model with experts, whose slots and experts are split over dp and ep") {
  DeviceProfile profile = backend::cuda::CudaProfile(/*deterministic=*/true);
  profile.pushes = false;
  const recipe::LoadResult loaded = model::LoadText(R"(
[model]
dims = { D = 32, L = 1, H = 4, E = 8, X = 8, F = 64, V = 256 }
inputs = { tokens = "i32[B,S]", labels = "i32[B,S]", positions = "i32[B,S]" }
main = [
  { do = "embedding", as = "embedding", of = "tokens", rows = "V", width = "D" },
  { do = "stack", as = "layers", repeat = "L", layer = ["mixed"] },
  { do = "linear", as = "head", out = ["V"] },
  { do = "cross_entropy", as = "loss" },
]
[block.mixed]
steps = [
  { do = "linear", as = "qkv", of = "x", parts = { q = ["H", "E"], k = ["H", "E"], v = ["H", "E"] } },
  { do = "attention", as = "core", of = ["q", "k", "v"] },
  { do = "linear", as = "proj", out = ["D"] },
  { do = "route", as = "router", of = "proj", experts = "X", top_k = 2, to = ["choice", "weight"] },
  { do = "experts", as = "experts", of = ["proj", "choice", "weight"], hidden = "F" },
  { do = "residual", as = "residual", of = ["x", "experts"], to = "x" },
]
[data]
source = "random"
sequence_length = 32
[optimizer]
learning_rate = 1e-3
[precision]
compute = "bf16"
[parallelism]
dp = 2
ep = 2
[training]
global_batch = 4
micro_batch = 1
iterations = 1
)",
                                                    "experts.toml", {});
  for (const Diagnostic& diagnostic : loaded.diagnostics) MESSAGE(Format(diagnostic));
  REQUIRE(loaded.ok());
  const absl::StatusOr<Plan> plan =
      driver::CompileGeneration(loaded.recipe, {.profile = profile},
                                {.slots = 8, .context = 32, .prefill_tokens = {32}, .decode_batches = {2}});
  if (!plan.ok()) FAIL(Message(plan.status()));
  CompareWithFiles("generation_experts", *plan);
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
