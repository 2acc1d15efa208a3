// A model that generates on a device, for tests and benches of generation.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "engine/backend/cuda/device/survey.h"
#include "engine/generate/cached_decoder.h"
#include "tests/gpu/world.h"

namespace engine::gpu_test {

inline constexpr std::uint64_t kSeed = 7;

inline state::Device GpuDevice(const recipe::Recipe& recipe) {
  absl::StatusOr<state::Device> device =
      recipe.world_size() > 1 ? cli::MakeCudaThreads(recipe, {}) : cli::MakeCudaDevice(recipe, {});
  Must(device.status());
  return *std::move(device);
}

struct Decoding {
  Decoding(recipe::Recipe recipe, state::Device of, std::int64_t slots)
      : device(std::move(of)),
        shape(generate::ShapeFor(slots, recipe.data.sequence_length, recipe.parallelism)) {
    driver::SetForGeneration(&recipe);
    absl::StatusOr<plan::Plan> compiled =
        driver::CompileGeneration(recipe, {.profile = device.profile}, shape);
    Must(compiled.status());
    plan = *std::move(compiled);
    absl::StatusOr<std::unique_ptr<state::Ranks>> created = state::Ranks::Create(plan, device, 0);
    Must(created.status());
    ranks = *std::move(created);
    decoder = generate::MakeCachedDecoder(plan, *ranks, shape);
  }
  void Start() {
    Must(ranks->Run(
        [&](executor::RankExecutor& rank) { return state::InitializeParameters(plan, kSeed, rank); }));
  }

  state::Device device;
  driver::GenerationShape shape;
  plan::Plan plan;
  std::unique_ptr<state::Ranks> ranks;
  std::unique_ptr<generate::Decoder> decoder;
};

inline std::int32_t TokenAt(std::int64_t i, std::int64_t vocab) {
  const double uniform =
      UniformFromWord(PhiloxWord(MakePhiloxKey(kSeed, "tokens"), static_cast<std::uint64_t>(i)));
  return static_cast<std::int32_t>(uniform * static_cast<double>(vocab));
}

inline bool HasGpus(int needed) {
  const absl::StatusOr<int> gpus = backend::cuda::CountGpus();
  Must(gpus.status());
  if (*gpus >= needed) return true;
  MESSAGE("skipped: " << needed << " GPUs are needed, this machine has " << *gpus);
  return false;
}
inline bool HasTwoGpus() { return HasGpus(2); }

}  // namespace engine::gpu_test
