// A plan is there as quickly as a person expects of a command, however many ranks and experts it has.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <ctime>
#include <limits>
#include <string>

#include "engine/backend/cuda/profile/profile.h"
#include "engine/driver/compile_recipe.h"
#include "engine/model/load.h"
#include "tests/recipe/test_files.h"

namespace engine::compile {
namespace {

// DeepSeek-V3 on 1024 H100s, 64 of which share the experts of each layer, in a pipeline of 16 stages.
constexpr const char* kDeepSeekText = R"(
extends = ["ROOT/configs/models/deepseek-v3.toml", "ROOT/configs/optimizers/adamw-gpt3.toml",
           "ROOT/configs/data/openwebtext.toml", "ROOT/configs/clusters/h100-128x8.toml"]
[data]
sequence_length = 4096
[parallelism]
pp = 16
ep = 64
zero_stage = 1
[training]
global_batch = 8192
micro_batch = 1
iterations = 1000
[precision]
compute = "bf16"
[recompute]
granularity = "full"
)";

recipe::Recipe DeepSeekRecipe() {
  std::string text = kDeepSeekText;
  for (std::size_t at = text.find("ROOT"); at != std::string::npos; at = text.find("ROOT"))
    text.replace(at, 4, ENGINE_SOURCE_DIR);
  const recipe::TemporaryFolder folder;
  const recipe::LoadResult loaded = model::Load(folder.Write("recipe.toml", text));
  std::string errors;
  for (const Diagnostic& diagnostic : loaded.diagnostics) errors += Format(diagnostic);
  REQUIRE_MESSAGE(loaded.ok(), errors);
  return loaded.recipe;
}

}  // namespace

TEST_CASE("DeepSeek-V3 on 1024 ranks: the plan is lawful, and there in less than a second") {
  const recipe::Recipe recipe = DeepSeekRecipe();
  double least_s = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 3; ++i) {  // of processor time, the least, as other programs disturb it
    const std::clock_t begin = std::clock();
    const absl::StatusOr<plan::Plan> plan =
        driver::CompileRecipe(recipe, {.profile = backend::cuda::CudaProfile()});
    least_s = std::min(least_s, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
    REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
    CHECK(plan->mesh.world() == 1024);
  }
  MESSAGE("compiled and verified in ", least_s, " s");
#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  CHECK(least_s < 1);
#endif
}

}  // namespace engine::compile
