// The keys under which a Folder (search/fold.h) keeps what it has found out: each names all that it depends on, of what
// layouts of one model, precision, optimizer and cluster differ in. Two layouts with equal keys share the finding, so a
// key that lacks an influence gives one layout the numbers of another.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/compile/flat_exchange.h"
#include "engine/recipe/recipe.h"
#include "engine/search/stage_states.h"

namespace engine::search {

// Of what tells apart the parameters of a model's local graphs.
struct ParameterKey {
  std::int64_t tp = 1, cp = 1, ep = 1;
  bool whole_experts = false;  // on each rank of tp
  bool sequence_parallel = false;
  bool pipeline = false;  // more than one stage

  static ParameterKey Of(const recipe::Recipe& recipe);
  bool operator==(const ParameterKey&) const = default;
  template <typename H>
  friend H AbslHashValue(H hash, const ParameterKey& key) {
    return H::combine(std::move(hash), key.tp, key.cp, key.ep, key.whole_experts, key.sequence_parallel,
                      key.pipeline);
  }
};

// Of what is computed again.
struct RecomputeKey {
  std::string granularity;
  std::vector<std::string> modules;  // where it is selective; else empty

  static RecomputeKey Of(const recipe::Recompute& recompute);
  bool operator==(const RecomputeKey&) const = default;
  template <typename H>
  friend H AbslHashValue(H hash, const RecomputeKey& key) {
    return H::combine(std::move(hash), key.granularity, key.modules);
  }
};

// Of a probe: a plan of few blocks, microbatches and stages.
struct ProbeKey {
  ParameterKey parameters;
  RecomputeKey recompute;
  std::int64_t micro_batch = 1, halves = 1;
  bool deferred = false;   // passes of weights
  std::int64_t world = 1;  // ranks
  std::int64_t blocks = 0;

  static ProbeKey Of(const recipe::Recipe& recipe, std::int64_t halves, std::int64_t blocks);
  bool operator==(const ProbeKey&) const = default;
  template <typename H>
  friend H AbslHashValue(H hash, const ProbeKey& key) {
    return H::combine(std::move(hash), key.parameters, key.recompute, key.micro_batch, key.halves,
                      key.deferred, key.world, key.blocks);
  }
};

// Of what evaluation takes, which depends neither on what is computed again nor on the schedule.
struct EvaluationKey {
  ParameterKey parameters;
  std::int64_t samples = 1;  // of what runs at once: a microbatch or half of one
  std::int64_t world = 1;
  std::vector<std::int64_t> blocks;  // by stage of the probe

  static EvaluationKey Of(const recipe::Recipe& recipe, std::int64_t halves,
                          std::vector<std::int64_t> blocks);
  bool operator==(const EvaluationKey&) const = default;
  template <typename H>
  friend H AbslHashValue(H hash, const EvaluationKey& key) {
    return H::combine(std::move(hash), key.parameters, key.samples, key.world, key.blocks);
  }
};

// Of layouts in which a block takes equally long for a sample, if the micro-batch and the cut into halves are the same,
// too.
struct BlockKey {
  ParameterKey parameters;
  RecomputeKey recompute;
  std::int64_t world = 1;

  static BlockKey Of(const recipe::Recipe& recipe);
  bool operator==(const BlockKey&) const = default;
  template <typename H>
  friend H AbslHashValue(H hash, const BlockKey& key) {
    return H::combine(std::move(hash), key.parameters, key.recompute, key.world);
  }
};

// Of what a stage keeps, exchanges and updates.
struct StatesKey {
  ParameterKey parameters;
  std::int64_t dp = 1, pp = 1;
  std::int64_t zero_stage = 0;  // that the compiler takes: the schedule may forbid the recipe's
  // As FlatExchange has them; `pushed`: bits of its axes.
  bool behind = false, at_begin = false;
  std::int32_t stream = 0;
  unsigned pushed = 0;
  StageShape shape;

  static StatesKey Of(const recipe::Recipe& recipe, const compile::FlatExchange& exchange,
                      const StageShape& shape);
  bool operator==(const StatesKey&) const = default;
  template <typename H>
  friend H AbslHashValue(H hash, const StatesKey& key) {
    return H::combine(std::move(hash), key.parameters, key.dp, key.pp, key.zero_stage, key.behind,
                      key.at_begin, key.stream, key.pushed, key.shape.blocks, key.shape.embedding,
                      key.shape.head);
  }
};

// Of the blocks of a layout's chunks.
struct BlocksKey {
  std::int64_t tp = 1;  // pads the vocabulary, which the head's cost depends on
  bool whole_experts = false;
  std::int64_t chunks = 1;
  std::vector<std::int64_t> said;  // by the recipe; empty: it leaves the cut to the compiler

  static BlocksKey Of(const recipe::Parallelism& parallelism);
  bool operator==(const BlocksKey&) const = default;
  template <typename H>
  friend H AbslHashValue(H hash, const BlocksKey& key) {
    return H::combine(std::move(hash), key.tp, key.whole_experts, key.chunks, key.said);
  }
};

// Of a layout's schedule.
struct ScheduleKey {
  std::int64_t pp = 1, virtual_stages = 1;
  bool deferred = false;
  std::int64_t microbatches = 1;

  static ScheduleKey Of(const recipe::Recipe& recipe);
  bool operator==(const ScheduleKey&) const = default;
  template <typename H>
  friend H AbslHashValue(H hash, const ScheduleKey& key) {
    return H::combine(std::move(hash), key.pp, key.virtual_stages, key.deferred, key.microbatches);
  }
};

}  // namespace engine::search
