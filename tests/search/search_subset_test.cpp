// A part of a search's space holds nothing that is faster than what the search of the whole finds.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/backend/cuda/profile/profile.h"
#include "engine/base/core_limit.h"
#include "engine/recipe/load.h"
#include "engine/search/search.h"

namespace engine::search {
namespace {

struct SubsetCase {
  const char* name;
  std::int64_t world;
  const char* file;  // of recipes/
  std::vector<std::string> sets;
  std::vector<std::string> fixed = {"parallelism.cp"};  // in all searches, for less time
};

// Models, precisions, lengths, links and memory of many kinds, small enough to be searched in a second.
// Layouts of their own are lawful, and none is the best. Larger ones: tools/check-search.
const std::vector<SubsetCase> kSubsetCases = {
    {"Llama",
     4,
     "scale/llama-7b-8gpu.toml",
     {"model.layers=8", "training.global_batch=16", "parallelism.dp=2"}},
    {"GPT that repeats activations behind exchange",
     16,
     "scale/gpt-175b-256gpu.toml",
     {"model.layers=8", "parallelism.pp=2", "parallelism.virtual_stages=2", "parallelism.dp=1",
      "training.global_batch=64", "training.micro_batch=32", "parallelism.zero_stage=1",
      "cluster.memory_bytes=\"160 GB\""},
     {"parallelism.cp", "parallelism.zero_stage"}},
    {"ZeRO-3 in little memory",
     4,
     "scale/llama-7b-8gpu.toml",
     {"model.layers=12", "training.global_batch=16", "parallelism.dp=4", "parallelism.tp=1",
      "parallelism.sequence_parallel=false", "parallelism.zero_stage=3", "training.micro_batch=1",
      "cluster.memory_bytes=\"24 GB\""}},
    {"long context",
     8,
     "scale/llama-7b-8gpu.toml",
     {"model.layers=4", "model.max_positions=65536", "data.sequence_length=65536", "parallelism.cp=2",
      "parallelism.dp=2", "training.global_batch=8", "training.micro_batch=1"},
     {"parallelism.sequence_parallel", "parallelism.schedule"}},
    {"FP8",
     4,
     "scale/llama-7b-8gpu.toml",
     {"model.layers=8", "precision.compute=fp8", "training.global_batch=16", "parallelism.pp=2",
      "parallelism.dp=1"}},
    {"a head in FP8, which tp 1 alone has",
     4,
     "scale/llama-7b-8gpu.toml",
     {"model.layers=8", "precision.compute=fp8", "precision.fp8_head=true", "training.global_batch=16",
      "parallelism.tp=1", "parallelism.sequence_parallel=false", "parallelism.dp=4"}},
    {"pipeline over slow links",
     8,
     "scale/llama-7b-8gpu.toml",
     {"model.layers=8", "training.global_batch=16", "parallelism.pp=2", "parallelism.virtual_stages=2",
      "parallelism.dp=2", "cluster.devices_per_node=2", "cluster.inter_node_bandwidth=12.5e9"}},
    {"uneven stages of a small batch",
     4,
     "scale/llama-13b-16gpu.toml",
     {"model.layers=14", "training.global_batch=24", "training.micro_batch=3", "parallelism.tp=2",
      "parallelism.pp=2", "parallelism.dp=1", "parallelism.layers_per_stage=[8, 6]"}},
    {"full recomputation by NCCL",
     8,
     "scale/llama-13b-16gpu.toml",
     {"model.layers=8", "training.global_batch=16", "recompute.granularity=full", "parallelism.exchange=nccl",
      "cluster.memory_bytes=\"32 GB\"", "training.micro_batch=2", "parallelism.dp=2"}},
};

const std::vector<std::string> kSubsetKeys = {
    "parallelism.dp",
    "parallelism.tp",
    "parallelism.pp",
    "parallelism.cp",
    "parallelism.schedule",
    "parallelism.sequence_parallel",
    "parallelism.zero_stage",
    "training.micro_batch",
    "parallelism.virtual_stages",
    "recompute.granularity",
    "parallelism.layers_per_stage",
};

TEST_CASE("fixing a key finds nothing faster than the free search") {
  constexpr double kHardly = 1e-3;
  for (const SubsetCase& of : kSubsetCases) {
    CAPTURE(std::string(of.name));
    recipe::LoadOptions load;
    load.sets = of.sets;
    const recipe::LoadResult loaded =
        recipe::Load(std::string(ENGINE_SOURCE_DIR) + "/recipes/" + of.file, load);
    for (const Diagnostic& diagnostic : loaded.diagnostics) {
      if (diagnostic.severity == Severity::kError) FAIL(Format(diagnostic));
    }
    const compile::CompileOptions compile{.profile = backend::cuda::CudaProfile()};
    SearchOptions options;
    options.world = of.world;
    options.fixed = of.fixed;
    options.threads = CoresOfProcess();
    options.finalists = 1;  // as many plans as the estimates' errors ask for, no more
    options.shown = 1;
    const absl::StatusOr<SearchResult> free = Search(loaded.recipe, compile, options);
    REQUIRE_MESSAGE(free.ok(), Message(free.status()));
    REQUIRE(!free->best.empty());
    const double best = free->best.front().time.iteration_s;
    MESSAGE(fmt::format("{}: {:.4f} s, {}; {} layouts, {} plans compared", of.name, best,
                        free->best.front().layout.ToString(), free->layouts, free->compiled));
    int parts = 0;
    for (const std::string& key : kSubsetKeys) {
      CAPTURE(key);
      if (std::find(of.fixed.begin(), of.fixed.end(), key) != of.fixed.end()) continue;
      options.fixed = of.fixed;
      options.fixed.push_back(key);
      const absl::StatusOr<SearchResult> part = Search(loaded.recipe, compile, options);
      if (!part.ok() || part->best.empty()) continue;  // nothing of this part is lawful, or fits
      ++parts;
      const Found& found = part->best.front();
      CHECK_MESSAGE(
          found.time.iteration_s >= best * (1 - kHardly),
          fmt::format("{:.4f} s by fixing {}: {}", found.time.iteration_s, key, found.layout.ToString()));
    }
    CHECK(parts > 4);
  }
}

}  // namespace
}  // namespace engine::search
