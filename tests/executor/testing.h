// Tiny recipes and their ranks, for tests of the executor without data, checkpoints or a training loop.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "engine/base/philox.h"
#include "engine/driver/compile_recipe.h"
#include "engine/executor/executor.h"
#include "engine/model/build.h"
#include "engine/recipe/load.h"
#include "engine/state/ranks.h"
#include "tests/executor/wrapped_backend.h"

namespace engine::executor::testing {

// `sets` are as of --set, separated by blanks.
inline recipe::Recipe TinyRecipe(const std::string& sets) {
  constexpr const char* kText = R"(
[model]
layers = 4
hidden = 16
vocab = 259
vocab_multiple = 4
max_positions = 16
attention = { heads = 4, kv_heads = 2, position = "learned", bias = true }
mlp = { hidden = 32, activation = "gelu_tanh", bias = true }
norm = { kind = "layernorm" }
dropout = { hidden = 0.1, attention = 0.1 }
tied_embeddings = true
[data]
paths = ["none"]
sequence_length = 16
[optimizer]
learning_rate = 1e-2
[schedule]
kind = "constant"
[training]
global_batch = 8
micro_batch = 2
iterations = 5
)";
  recipe::LoadOptions options;
  for (size_t begin = 0; begin < sets.size();) {
    const size_t end = std::min(sets.find(' ', begin), sets.size());
    options.sets.push_back(sets.substr(begin, end - begin));
    begin = end + 1;
  }
  const recipe::LoadResult loaded = recipe::LoadText(kText, "tiny.toml", options);
  std::string errors;
  for (const Diagnostic& diagnostic : loaded.diagnostics) errors += Format(diagnostic);
  INFO(errors);
  REQUIRE(loaded.ok());
  return loaded.recipe;
}

// dp, tp, sequence parallelism, cp, ZeRO-1, 1F1B, interleaved and zero-bubble pipelines, recomputation.
inline constexpr const char* kLayouts[] = {
    "",
    "training.micro_batch=8",
    "recompute.granularity=full",
    "recompute.granularity=selective",
    "parallelism.dp=2",
    "parallelism.dp=4 parallelism.zero_stage=1",
    "parallelism.tp=2",
    "parallelism.tp=2 parallelism.sequence_parallel=true",
    "parallelism.cp=2",
    "parallelism.cp=4",
    "parallelism.pp=2",
    "parallelism.pp=4 training.micro_batch=1",
    "parallelism.pp=2 parallelism.virtual_stages=2",
    "parallelism.pp=2 parallelism.virtual_stages=2 recompute.granularity=full training.micro_batch=1",
    "parallelism.dp=2 parallelism.tp=2 parallelism.zero_stage=1 parallelism.sequence_parallel=true",
    "parallelism.dp=2 parallelism.pp=2 parallelism.zero_stage=1 training.micro_batch=1",
    "parallelism.cp=2 parallelism.tp=2 parallelism.pp=2",
    "parallelism.pp=2 parallelism.schedule=zero_bubble training.micro_batch=1",
};

// Small random weights, and tokens from a counter.
inline absl::Status FillParameters(RankExecutor& rank) {
  for (const LocalTensor& tensor : rank.Parameters()) {
    std::vector<float> values(static_cast<size_t>(tensor.view.shape.elements()));
    const PhiloxKey key = MakePhiloxKey(5, std::to_string(tensor.parameter));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(0.1 * PhiloxNormal(key, i));
    RETURN_IF_ERROR(rank.backend().Upload(static_cast<std::byte*>(tensor.view.data), values.data(),
                                          static_cast<std::int64_t>(values.size() * sizeof(float))));
  }
  return absl::OkStatus();
}

inline FeedFunction SomeFeed() {
  return
      [](const std::string& input, std::int64_t microbatch, const backend::TensorView& host) -> absl::Status {
        for (std::int64_t i = 0; i < host.shape.elements(); ++i) {
          const std::int64_t position = LogicalIndex(host.extent.dims[1], i % host.shape[1]);
          host.as<std::int32_t>()[i] =
              static_cast<std::int32_t>(input == model::kPositions ? position : (7 * i + microbatch) % 259);
        }
        return absl::OkStatus();
      };
}

}  // namespace engine::executor::testing
