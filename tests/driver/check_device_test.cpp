#include "engine/driver/check_device.h"

#include <doctest/doctest.h>

#include "engine/backend/cuda/profile/profile.h"
#include "tests/plan/plans.h"

namespace engine::driver {

TEST_CASE("device: each key beyond its limits is an error where the recipe sets it") {
  const recipe::Recipe recipe = plan::TinyRecipe(
      false, {"precision.compute=bf16", "precision.gradient_dtype=bf16", "optimizer.moment_dtype=bf16"});
  plan::DeviceProfile profile;
  profile.name = "small";
  profile.limits = {{"precision.compute", {"fp32", "fp16"}},
                    {"precision.master_dtype", {"fp32"}},
                    {"optimizer.moment_dtype", {"fp32"}}};
  const std::vector<Diagnostic> errors = CheckDevice(recipe, profile);
  REQUIRE(errors.size() == 2);
  CHECK(Format(errors[0]) ==
        "--set:1:19: error: the small executor runs precision.compute fp32, fp16, not bf16\n"
        "    precision.compute=bf16\n"
        "                      ^~~~\n"
        "    hint: --set precision.compute=fp32 runs it here\n");
  CHECK(errors[1].message == "the small executor runs optimizer.moment_dtype fp32, not bf16");
  CHECK(errors[1].span.line == 3);
  CHECK(CheckDevice(recipe, {}).empty());
  CHECK(CheckDevice(recipe, backend::cuda::CudaProfile()).empty());
}

}  // namespace engine::driver
