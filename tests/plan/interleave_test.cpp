// The order of two microbatches in a segment: what it hides, and what it must keep.
#include "engine/plan/interleave.h"

#include <doctest/doctest.h>

#include <string>

namespace engine::plan {
namespace {

constexpr Rates kRates = {.matmul_flops = 1e12, .memory_bandwidth = 1e15, .link_bandwidth = 1e9};

Instruction Compute(const std::string& name, double ms) {
  Instruction instruction;
  instruction.name = instruction.kernel = name;
  instruction.flops = ms * 1e9;
  return instruction;
}

Instruction Exchange(const std::string& name, double ms) {
  Instruction instruction;
  instruction.name = instruction.kernel = name;
  instruction.collective = Collective::kReduceScatter;
  instruction.stream = kExchangeStream;
  instruction.wire_bytes = static_cast<std::int64_t>(ms * 1e6);
  return instruction;
}

// Layers of sequence parallelism: products, a sum, the norm between two exchanges, a gather.
Segment Layers(int layers, double exchange_ms) {
  Segment segment;
  for (int i = 0; i < layers; ++i) {
    segment.instructions.push_back(Compute("first", 2));
    segment.instructions.push_back(Compute("second", 3));
    segment.instructions.push_back(Exchange("scatter", exchange_ms));
    segment.instructions.push_back(Compute("norm", 0.25));
    segment.instructions.push_back(Exchange("gather", exchange_ms));
  }
  return segment;
}

}  // namespace

TEST_CASE("interleave: exchange shorter than products is hidden, but for the ends") {
  const double once = 1e-3;
  const Interleaving short_one = Interleave(Layers(20, 1), kRates);
  CHECK(short_one.compute_s == doctest::Approx(2 * 20 * 5.25e-3).epsilon(0.01));
  CHECK(short_one.exposed_s < 4 * once);
  // Longer than all that there is to compute beside it: at least what is left over is exposed.
  const Interleaving long_one = Interleave(Layers(20, 10), kRates);
  CHECK(long_one.exposed_s > 2 * 20 * (2 * 10e-3 - 5.25e-3));
}

TEST_CASE("interleave: a norm between two exchanges goes into the midst of the other half's products") {
  const Segment segment = Layers(20, 1);
  const Interleaving interleaving = Interleave(segment, kRates);
  size_t next[2] = {0, 0};
  int inside = 0;
  for (const std::uint8_t lane : interleaving.order) {
    const size_t other = next[1 - lane];
    const bool halfway = other < segment.instructions.size() && segment.instructions[other].name == "second";
    inside += segment.instructions[next[lane]].name == "norm" && halfway ? 1 : 0;
    ++next[lane];
  }
  CHECK(inside >= 2 * 20 - 4);
}

TEST_CASE("interleave: the second lane is never ahead, and both run all") {
  const Segment segment = Layers(7, 3);
  size_t next[2] = {0, 0};
  for (const std::uint8_t lane : Interleave(segment, kRates).order) {
    ++next[lane];
    CHECK(next[1] <= next[0]);
  }
  CHECK(next[0] == segment.instructions.size());
  CHECK(next[1] == segment.instructions.size());
}

}  // namespace engine::plan
