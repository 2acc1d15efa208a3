// A small world for tests of whole runs: tiny recipes, samples from a counter, ranks on the CPU.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/backend/cpu/cpu_backend.h"
#include "engine/backend/cpu/world.h"
#include "engine/base/philox.h"
#include "engine/driver/compile_recipe.h"
#include "engine/model/build.h"
#include "engine/ops/ops.h"
#include "engine/recipe/load.h"
#include "engine/state/ranks.h"
#include "engine/state/save.h"
#include "engine/state/state.h"

namespace engine::train::testing {

inline state::Device CpuDevice(int threads_per_rank = 1) {
  const auto world = std::make_shared<backend::cpu::World>();
  state::Device device;
  device.profile = backend::cpu::CpuBackend::CpuProfile();
  device.make_backend = [threads_per_rank](std::int64_t, std::int64_t) {
    return std::make_unique<backend::cpu::CpuBackend>(threads_per_rank);
  };
  device.make_communicator = [world](std::int64_t rank) {
    return std::make_unique<backend::cpu::CpuCommunicator>(world.get(), rank);
  };
  device.abort = [world] { world->Abort(); };
  return device;
}

// The same with plans of a device whose copy engines push, and whose kernels add the other rank's part of a
// sum that they read.
inline state::Device PushingDevice() {
  state::Device device = CpuDevice();
  device.profile.pushes = true;
  device.profile.exchange_bytes = [](const plan::Conversion& conversion, const graph::TensorType&,
                                     const graph::TensorType& to, std::int64_t) {
    const bool sums = conversion.collective == plan::Collective::kReduceScatter ||
                      conversion.collective == plan::Collective::kAllReduce;
    return conversion.push && sums ? to.shape.elements() * SizeOf(to.dtype) : 0;
  };
  device.profile.adds_part = [](const graph::OpDef& op, const graph::TensorType&, const graph::Attributes&) {
    if (&op == &ops::kAdd) return 1;
    const bool first = &op == &ops::kBiasAdd || &op == &ops::kLayerNormGrad || &op == &ops::kRmsNormGrad;
    return first ? 0 : -1;
  };
  return device;
}

// --set's of blank-separated keys of [parallelism], [recompute] and micro_batch, without their sections.
inline std::vector<std::string> SetsOf(const std::string& text) {
  std::vector<std::string> sets;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    const bool training = word.starts_with("micro_batch") || word.starts_with("pad_batch");
    const bool recompute = word.starts_with("granularity") || word.starts_with("modules");
    const bool cluster = word.starts_with("devices_per_node") || word.starts_with("matmul_flops") ||
                         word.starts_with("intra_node_bandwidth");
    sets.push_back((training    ? "training."
                    : recompute ? "recompute."
                    : cluster   ? "cluster."
                                : "parallelism.") +
                   word);
    begin = end + 1;
  }
  return sets;
}

// Adam's epsilon is large here on purpose: with 1e-8 the update of an element whose gradient is rounding
// noise is ± the learning rate, and no bound on the difference of two summation orders would carry over an
// iteration.
inline constexpr const char* kAdamW = R"(
[optimizer]
learning_rate = 1e-2
epsilon = 1e-3
weight_decay = 0.1
)";

inline constexpr const char* kSgd = R"(
[optimizer]
kind = "sgd"
learning_rate = 1e-1
momentum = 0.9
weight_decay = 0.1
)";

inline constexpr const char* kCommon = R"(
[data]
paths = ["none"]
sequence_length = 16
[schedule]
kind = "constant"
[training]
global_batch = 8
micro_batch = 8
iterations = 5
seed = 7
)";

inline constexpr const char* kGptLike = R"(
[model]
layers = 4
hidden = 32
vocab = 300
vocab_multiple = 16
max_positions = 16
attention = { heads = 4, position = "learned", bias = true }
mlp = { hidden = 64, activation = "gelu_tanh", bias = true }
norm = { kind = "layernorm", epsilon = 1e-5 }
dropout = { embedding = 0.1, hidden = 0.1, attention = 0.1 }
tied_embeddings = true
init_std = 0.1
)";

inline constexpr const char* kLlamaLike = R"(
[model]
layers = 4
hidden = 32
vocab = 300
vocab_multiple = 16
max_positions = 16
attention = { heads = 4, kv_heads = 2, position = "rotary" }
mlp = { hidden = 48, activation = "swiglu" }
norm = { kind = "rmsnorm", epsilon = 1e-5 }
tied_embeddings = false
init_std = 0.1
)";

inline recipe::Recipe MakeRecipe(const std::string& model, const std::vector<std::string>& sets,
                                 const char* optimizer = kAdamW) {
  const recipe::LoadResult loaded =
      recipe::LoadText(model + kCommon + optimizer, "test.toml", {.sets = sets, .root = ""});
  std::string errors;
  for (const Diagnostic& diagnostic : loaded.diagnostics) errors += Format(diagnostic);
  INFO(errors);
  REQUIRE(loaded.ok());
  return loaded.recipe;
}

// Places of a sample where documents begin, and its length, of a plan that masks documents; else the sample is one.
inline std::vector<std::int64_t> DocumentBounds(const plan::Plan& plan, std::int64_t sample) {
  const bool masked = std::any_of(plan.values.begin(), plan.values.end(), [](const plan::LocalValue& value) {
    return value.kind == graph::ValueKind::kInput && value.name == model::kDocumentSpans;
  });
  const PhiloxKey key = MakePhiloxKey(99, "documents");
  std::vector<std::int64_t> bounds = {0};
  for (std::int64_t place = 1; place < plan.sequence; ++place) {
    const std::uint32_t word = PhiloxWord(key, static_cast<std::uint64_t>(sample * plan.sequence + place));
    if (masked && word % 5 == 0) bounds.push_back(place);
  }
  bounds.push_back(plan.sequence);
  return bounds;
}

// Token s of sample n, and where its documents begin: pure functions, so every layout trains on the same text.
inline executor::FeedFunction CounterFeed(const plan::Plan& plan, std::int64_t first_sample) {
  return [&plan, first_sample](const std::string& input, std::int64_t microbatch,
                               const backend::TensorView& host) -> absl::Status {
    const PhiloxKey key = MakePhiloxKey(99, "tokens");
    const std::optional<int> offset = model::TokenOffset(input);
    const bool spans = input == model::kDocumentSpans;
    std::int32_t* out = host.as<std::int32_t>();
    for (std::int64_t b = 0; b < host.shape[0]; ++b) {
      const std::int64_t sample =
          first_sample + microbatch * plan.microbatch_samples + LogicalIndex(host.extent.dims[0], b);
      const std::vector<std::int64_t> bounds = DocumentBounds(plan, sample);
      for (std::int64_t s = 0; s < host.shape[1]; ++s) {
        const std::int64_t at = LogicalIndex(host.extent.dims[1], s);
        const auto next = std::upper_bound(bounds.begin(), bounds.end(), at);
        if (spans) {
          *out++ = static_cast<std::int32_t>(*(next - 1));
          *out++ = static_cast<std::int32_t>(*next);
        } else if (!offset) {
          *out++ = static_cast<std::int32_t>(input == model::kPositions ? at - *(next - 1) : at);
        } else if (at + *offset > plan.sequence || sample >= first_sample + plan.global_batch) {
          *out++ = model::IsLabels(input) || at + *offset > plan.sequence ? -1 : 0;
        } else {
          const auto index = static_cast<std::uint64_t>(sample * (plan.sequence + 1) + at + *offset);
          *out++ = static_cast<std::int32_t>(PhiloxWord(key, index) % static_cast<std::uint32_t>(plan.vocab));
        }
      }
    }
    return absl::OkStatus();
  };
}

// Inputs of any shape whose first dim counts samples: numbers below the input's limit, or where the limit is 0 the place
// along dim 1. A pure function of the name, the sample and the place in it, so every layout trains on the same.
inline executor::FeedFunction NamedFeed(const plan::Plan& plan, std::int64_t first_sample,
                                        const std::map<std::string, std::int64_t>& limits) {
  return [&plan, first_sample, limits](const std::string& input, std::int64_t microbatch,
                                       const backend::TensorView& host) -> absl::Status {
    const PhiloxKey key = MakePhiloxKey(99, input);
    const std::int64_t limit = limits.at(input);
    std::int32_t* out = host.as<std::int32_t>();
    const std::int64_t places = host.shape.elements(1, host.shape.rank());
    for (std::int64_t i = 0; i < host.shape.elements(); ++i) {
      std::int64_t index =
          first_sample + microbatch * plan.microbatch_samples + LogicalIndex(host.extent.dims[0], i / places);
      std::int64_t stride = places;
      std::int64_t rest = i % places;
      for (int dim = 1; dim < host.shape.rank(); ++dim) {
        stride /= host.shape[dim];
        index = index * host.logical[dim] +
                LogicalIndex(host.extent.dims[static_cast<size_t>(dim)], rest / stride);
        rest %= stride;
      }
      const std::uint32_t word = PhiloxWord(key, static_cast<std::uint64_t>(index));
      out[i] = static_cast<std::int32_t>(limit > 0 ? word % static_cast<std::uint32_t>(limit)
                                                   : index % host.logical[1]);
    }
    return absl::OkStatus();
  };
}

// What a few iterations of a recipe give, gathered to logical tensors.
struct Trained {
  std::vector<double> losses;                // plan::Plan::Objective; of the usual model the mean per token
  std::vector<std::vector<double>> metrics;  // by iteration, of Plan::metrics
  std::vector<double> grad_norms;
  std::vector<std::string> names;
  std::vector<std::vector<float>> initial;                 // weights at step 0
  std::vector<std::vector<std::vector<float>>> gradients;  // by iteration, then parameter
  std::vector<std::vector<float>> weights;                 // at the end
  std::vector<double> evaluations;
};

inline Trained TrainFor(
    const recipe::Recipe& recipe, const absl::StatusOr<plan::Plan>& plan, int iterations,
    const state::Device& device,
    const std::function<executor::Feed(const plan::Plan& plan, std::int64_t first_sample)>& feed_of =
        CounterFeed) {
  REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
  auto ranks = state::Ranks::Create(*plan, device, static_cast<std::uint64_t>(recipe.training.seed));
  REQUIRE_MESSAGE(ranks.ok(), Message(ranks.status()));
  for (const auto& executor : (*ranks)->executors()) {  // the plan's arena is what is allocated, to the byte
    const std::int64_t allocated = dynamic_cast<backend::cpu::CpuBackend&>(executor->backend()).arena_bytes();
    CHECK(allocated == plan->stages[static_cast<size_t>(executor->coordinates().pp)].memory.total());
  }
  const auto check = [](const absl::Status& status) { REQUIRE_MESSAGE(status.ok(), Message(status)); };
  check((*ranks)->Run([&](executor::RankExecutor& rank) {
    return state::InitializeParameters(*plan, static_cast<std::uint64_t>(recipe.training.seed), rank);
  }));
  Trained trained;
  const std::int32_t parameters = static_cast<std::int32_t>(plan->parameters.size());
  for (std::int32_t p = 0; p < parameters; ++p) {
    trained.names.push_back(plan->parameters[static_cast<size_t>(p)].name);
    check(state::GatherParameter(*plan, **ranks, p, &trained.initial.emplace_back()));
  }
  for (int i = 0; i < iterations; ++i) {
    std::vector<executor::IterationResult> results(static_cast<size_t>(plan->mesh.world()));
    const executor::Feed feed = feed_of(*plan, i * plan->global_batch);
    check((*ranks)->Run([&](executor::RankExecutor& rank) -> absl::Status {
      ASSIGN_OR_RETURN(results[static_cast<size_t>(rank.rank())],
                       rank.Train(i, i + 1, recipe.optimizer.learning_rate, feed));
      return absl::OkStatus();
    }));
    for (const executor::IterationResult& result : results) {
      // All ranks agree, bit by bit.
      CHECK(result.sums == results[0].sums);
      CHECK(result.grad_norm == results[0].grad_norm);
    }
    trained.losses.push_back(plan->Objective(results[0].sums, plan->global_batch));
    trained.metrics.push_back(results[0].sums);
    for (const plan::PlanMetric& metric : plan->metrics) {
      for (std::int64_t n = 0; n < metric.numbers(); ++n)
        trained.metrics.back()[static_cast<size_t>(metric.first + n)] /= metric.count;
    }
    trained.grad_norms.push_back(results[0].grad_norm);
    auto& gradients = trained.gradients.emplace_back();
    for (std::int32_t p = 0; p < parameters; ++p)
      check(state::GatherGradient(*plan, **ranks, p, &gradients.emplace_back()));
  }
  for (std::int32_t p = 0; p < parameters; ++p)
    check(state::GatherParameter(*plan, **ranks, p, &trained.weights.emplace_back()));
  std::vector<double> sums(static_cast<size_t>(plan->mesh.world()));
  const executor::Feed feed = feed_of(*plan, 1000);
  check((*ranks)->Run([&](executor::RankExecutor& rank) -> absl::Status {
    ASSIGN_OR_RETURN(const executor::IterationResult result, rank.Evaluate(feed));
    sums[static_cast<size_t>(rank.rank())] = plan->Objective(result.sums, plan->global_batch);
    return absl::OkStatus();
  }));
  trained.evaluations.push_back(sums[0]);
  return trained;
}
inline Trained TrainFor(const recipe::Recipe& recipe, int iterations, const state::Device& device) {
  return TrainFor(recipe, driver::CompileRecipe(recipe, {.profile = device.profile}), iterations, device);
}
inline Trained TrainFor(const recipe::Recipe& recipe, int iterations, int threads_per_rank = 1) {
  return TrainFor(recipe, iterations, CpuDevice(threads_per_rank));
}

}  // namespace engine::train::testing
