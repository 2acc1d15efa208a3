// What a chunk of a pipeline needs and takes, read off the plan of a few chunks, and what longer chunks do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/recipe/recipe.h"

namespace engine::search {

// Seconds of a pass of one microbatch: kernels, exchange that they wait for, and what is behind both.
struct PassTime {
  double compute_s = 0, exchange_s = 0, behind_s = 0;
  double seconds() const { return compute_s + exchange_s; }
  PassTime operator+(const PassTime& other) const {
    return {compute_s + other.compute_s, exchange_s + other.exchange_s, behind_s + other.behind_s};
  }
  PassTime operator-(const PassTime& other) const { return *this + other * -1; }
  PassTime operator*(double n) const { return {n * compute_s, n * exchange_s, n * behind_s}; }
};

// What a chunk needs and takes, alone on a stage.
struct ChunkFacts {
  // Grow by the same for each block.
  std::int64_t slot_bytes = 0;
  std::int64_t derived_bytes = 0;
  std::int64_t states = 0;
  PassTime begin, forward, backward, weights;
  // Stay.
  std::int64_t begin_bytes = 0;  // transients
  std::int64_t pass_bytes = 0;
  std::int64_t transfer_bytes = 0;  // buffers of the pipeline
  std::int64_t fed_elements = 0;    // of a microbatch
  struct Evaluation {
    std::int64_t bytes = 0;           // transients
    std::int64_t transfer_bytes = 0;  // buffers of the pipeline
    std::int64_t fed_bytes = 0;
  };
  Evaluation evaluation;  // of a plan that evaluates
};

// Facts of a layout's chunks.
struct Chunks {
  std::vector<std::unique_ptr<const ChunkFacts>> distinct;
  std::vector<const ChunkFacts*> facts;  // by chunk: chunks that are alike share them
  bool refused = false;                  // their microbatches cannot be cut into halves
  const ChunkFacts& operator[](std::size_t chunk) const { return *facts[chunk]; }
  std::size_t size() const { return facts.size(); }
};

// Evenly: one block more, and so many, as places of transients may move on for some blocks.
inline constexpr std::int64_t kFarther = 7;
inline constexpr std::int64_t kMore[] = {0, 1, kFarther};

// Whether chunks of which the second is one block longer and the third kFarther need bytes that grow
// evenly.
bool GrowsEvenly(const ChunkFacts& a, const ChunkFacts& b, const ChunkFacts& c);

// `of` with `blocks` more, of which each adds the difference of two chunks.
ChunkFacts Longer(ChunkFacts of, std::int64_t blocks, const ChunkFacts& less, const ChunkFacts& more);

// Of the one chunk of each stage of `probe`, a plan of two microbatches of the recipe.
std::vector<ChunkFacts> FactsOf(const plan::Plan& probe, const recipe::Cluster& cluster);

}  // namespace engine::search
