// The order of two microbatches in a segment: what it hides, and what it must keep.
#include "engine/compile/interleave.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend/cuda/profile/profile.h"
#include "tests/plan/plans.h"

namespace engine::compile {
namespace {

constexpr Rates kRates = {.matmul_flops = 1e12, .memory_bandwidth = 1e15, .link_bandwidth = 1e9};

plan::Instruction Compute(const std::string& name, double ms) {
  plan::Instruction instruction;
  instruction.name = instruction.AsKernel()->name = name;
  instruction.AsKernel()->work.flops = ms * 1e9;
  return instruction;
}

plan::Instruction Exchange(const std::string& name, double ms) {
  plan::Instruction instruction;
  instruction.name = name;
  instruction.stream = plan::kExchangeStream;
  plan::Conversion conversion;
  conversion.collective = plan::Collective::kReduceScatter;
  conversion.wire_bytes = static_cast<std::int64_t>(ms * 1e6);
  instruction.what = conversion;
  return instruction;
}

// Of what both halves share.
plan::Instruction ExchangeOfBucket(const std::string& name, double ms, plan::Collective collective) {
  plan::Instruction instruction = Exchange(name, ms);
  plan::BucketExchange exchange;
  exchange.collective = collective;
  exchange.wire_bytes = instruction.wire_bytes();
  exchange.bucket = 0;
  instruction.what = exchange;
  return instruction;
}

// What one microbatch runs.
struct Items {
  std::vector<std::unique_ptr<plan::Instruction>> instructions;
  std::vector<TurnItem> items;

  TurnItem& Add(plan::Instruction instruction, bool both = false) {
    instructions.push_back(std::make_unique<plan::Instruction>(std::move(instruction)));
    const plan::Instruction* added = instructions.back().get();
    items.push_back({.instruction = added, .both = both, .seconds = EstimateSeconds(*added, kRates)});
    return items.back();
  }
  const std::string& NameOf(const HalfTurn& turn) const { return items[turn.item].instruction->name; }
};

constexpr plan::Half kFirst = plan::Half::kFirst;
constexpr plan::Half kSecond = plan::Half::kSecond;
constexpr plan::Half kBoth = plan::Half::kBoth;

// A place of so many bytes a half behind `offset`, the second half's behind the first's.
BesidePlace Beside(std::int64_t offset, std::int64_t bytes) {
  return {.offset = offset, .stride = bytes, .bytes = bytes};
}

// A backward pass with tensor parallelism: what goes on to the layer before, its sum, and the gradient of the
// weights of both halves, of what was made in `places` places in turn.
Items WithBoth(int layers, int places, double exchange_ms) {
  Items items;
  for (int i = 0; i < layers; ++i) {
    const BesidePlace made = Beside(512 * (i % places), 256);
    items.Add(Compute("dgrad", 3)).writes = {made};
    items.Add(Compute("wgrad", 6), true).reads = {made};
    items.Add(Exchange("sum", exchange_ms));
    items.Add(Compute("norm", 0.25));
  }
  return items;
}

// Layers of sequence parallelism: products, a sum, the norm between two exchanges, a gather.
Items Layers(int layers, double exchange_ms) {
  Items items;
  for (int i = 0; i < layers; ++i) {
    items.Add(Compute("first", 2));
    items.Add(Compute("second", 3));
    items.Add(Exchange("scatter", exchange_ms));
    items.Add(Compute("norm", 0.25));
    items.Add(Exchange("gather", exchange_ms));
  }
  return items;
}

}  // namespace

TEST_CASE("interleave: neither half reads what is gathered for both before it is there") {
  Items items;
  items.Add(Compute("before", 1));
  items.Add(ExchangeOfBucket("gather", 5, plan::Collective::kAllGather), true);
  plan::Instruction reads = Compute("reads", 1);
  reads.waits_for_bucket = 0;
  items.Add(reads);
  CHECK(Interleave(items.items).order ==
        std::vector<HalfTurn>{{kFirst, 0}, {kSecond, 0}, {kBoth, 1}, {kFirst, 2}, {kSecond, 2}});
}

TEST_CASE("interleave: exchange shorter than products is hidden, but for the ends") {
  const double once = 1e-3;
  const Interleaving short_one = Interleave(Layers(20, 1).items);
  CHECK(short_one.compute_s == doctest::Approx(2 * 20 * 5.25e-3).epsilon(0.01));
  CHECK(short_one.exposed_s < 4 * once);
  // Longer than all that there is to compute beside it: at least what is left over is exposed.
  const Interleaving long_one = Interleave(Layers(20, 10).items);
  CHECK(long_one.exposed_s > 2 * 20 * (2 * 10e-3 - 5.25e-3));
}

TEST_CASE("interleave: a norm between two exchanges goes into the midst of the other half's products") {
  const Items items = Layers(20, 1);
  size_t next[2] = {0, 0};
  int inside = 0;
  for (const HalfTurn& turn : Interleave(items.items).order) {
    const size_t other = next[turn.half == kFirst ? 1 : 0];
    const bool halfway = other < items.items.size() && items.items[other].instruction->name == "second";
    inside += items.NameOf(turn) == "norm" && halfway ? 1 : 0;
    next[turn.half == kFirst ? 0 : 1] = turn.item + 1;
  }
  CHECK(inside >= 2 * 20 - 4);
}

TEST_CASE("interleave: what is made of both halves fills the gaps, once both have come to it") {
  const int layers = 20;
  const Items items = WithBoth(layers, layers, 4);
  const Interleaving interleaving = Interleave(items.items);
  // Without it 1 ms of each sum would be left over.
  CHECK(interleaving.compute_s == doctest::Approx(layers * (2 * 3.25e-3 + 6e-3)).epsilon(0.01));
  CHECK(interleaving.exposed_s < 5e-3);
  // Each runs all that it has to in its order, and what is made of both is behind both.
  std::vector<size_t> taken[3];
  for (const HalfTurn& turn : interleaving.order) {
    if (turn.half == kBoth) {
      for (size_t other : {0, 1}) {
        const auto passed = std::count_if(taken[other].begin(), taken[other].end(),
                                          [&](size_t item) { return item < turn.item; });
        CHECK(passed == static_cast<std::ptrdiff_t>(turn.item / 4 * 3 + 1));
      }
    }
    taken[static_cast<size_t>(turn.half)].push_back(turn.item);
  }
  for (const std::vector<size_t>& of : taken) CHECK(std::is_sorted(of.begin(), of.end()));
  CHECK(taken[0].size() == 3 * layers);
  CHECK(taken[1] == taken[0]);
  CHECK(taken[2].size() == layers);
}

TEST_CASE("interleave: no half overwrites what is still to be read of both") {
  for (const int places : {1, 2, 3}) {
    // Short exchange leaves no gaps: only the places make what is made of both run.
    const Items items = WithBoth(20, places, 0.01);
    int made[2] = {0, 0};
    int both = 0;
    for (const HalfTurn& turn : Interleave(items.items).order) {
      if (items.NameOf(turn) == "wgrad") ++both;
      if (items.NameOf(turn) != "dgrad") continue;
      int& of = made[turn.half == kFirst ? 0 : 1];
      CHECK(of - both < places);
      ++of;
    }
    CHECK(both == 20);
  }
}

TEST_CASE("interleave: sums are added to in the order of instructions, and reductions are not held up") {
  // Nothing but the sum makes the halves wait for "head"; behind it the reductions of 8 layers.
  const auto build = [](int layers) {
    const plan::BufferRef sum{.value = 7, .elements = 1};
    Items items;
    plan::Instruction head = Compute("head", 5);
    head.outputs = {sum};
    items.Add(head, true);
    for (int i = 0; i < layers; ++i) {
      items.Add(Compute("layer", 3));
      items.Add(ExchangeOfBucket("reduce", 1, plan::Collective::kReduceScatter), true);
    }
    plan::Instruction lookup = Compute("lookup", 1);
    lookup.outputs = {sum};
    items.Add(lookup);
    return items;
  };
  const Items items = build(8);
  int layers = 0;  // of the second half, which is behind
  bool head = false;
  for (const HalfTurn& turn : Interleave(items.items).order) {
    const std::string& name = items.NameOf(turn);
    layers += name == "layer" && turn.half == kSecond ? 1 : 0;
    if (name == "head") CHECK(layers <= 3);
    head = head || name == "head";
    if (name == "lookup") CHECK(head);
  }
  CHECK(head);
  CHECK(Interleave(build(0).items).order == std::vector<HalfTurn>{{kBoth, 0}, {kFirst, 1}, {kSecond, 1}});
}

TEST_CASE("interleave: a place of another size is the other half's until that has finished its exchange") {
  // "first" of the second half lies where "second" of the first half does.
  Items items;
  items.Add(Compute("make", 1)).writes = {Beside(0, 512)};
  TurnItem& send = items.Add(Exchange("send", 50));
  send.reads = {Beside(0, 512)};
  send.writes = {Beside(1 << 20, 512)};
  items.Add(Compute("waits", 1));
  items.Add(Compute("overwrite", 1)).writes = {Beside(0, 1024)};
  items.Add(Compute("both", 1), true).reads = {Beside(0, 1024)};
  size_t next[3] = {0, 0, 4};
  const Interleaving interleaving = Interleave(items.items);
  for (const HalfTurn& turn : interleaving.order) {
    if (turn.half == kFirst && turn.item == 3) CHECK(next[1] == 3);
    next[static_cast<size_t>(turn.half)] = turn.item + 1;
  }
  CHECK(next[0] == 4);
  CHECK(next[1] == 4);
  CHECK(next[2] == 5);
}

TEST_CASE("exchange of a half never waits for its own: what it uses is kept until computation waits") {
  for (const char* layout : {"parallelism.tp=2", "parallelism.cp=2"}) {
    for (const char* again : {"recompute.granularity=none", "recompute.granularity=full"}) {
      CAPTURE(layout);
      CAPTURE(again);
      std::vector<std::string> sets = {layout, again, "parallelism.overlap=on", "training.micro_batch=4"};
      if (layout == std::string("parallelism.tp=2")) sets.emplace_back("parallelism.sequence_parallel=true");
      const auto compiled = driver::CompileUnverified(plan::TinyRecipe(true, sets),
                                                      {.profile = backend::cuda::CudaProfile(true)});
      REQUIRE_MESSAGE(compiled.ok(), Message(compiled.status()));
      const plan::Plan& plan = *compiled;
      CHECK(plan.halves == 2);
      int behind = 0;
      for (const plan::Segment& segment : plan.stages[0].segments) {
        int under_way[2] = {0, 0};
        for (const plan::Instruction& instruction : segment.instructions) {
          if (instruction.half == kBoth || instruction.IsBucketExchange()) continue;
          int& of = under_way[static_cast<size_t>(instruction.half)];
          if (instruction.stream != plan::kExchangeStream) {
            of = 0;
            continue;
          }
          behind += of > 0 ? 1 : 0;
          CHECK(instruction.waits.empty());
          ++of;
        }
      }
      if (layout == std::string("parallelism.tp=2")) CHECK(behind > 0);
    }
  }
}

TEST_CASE("interleave: the second half is never ahead, and both run all") {
  const Items items = Layers(7, 3);
  size_t next[2] = {0, 0};
  for (const HalfTurn& turn : Interleave(items.items).order) {
    CHECK(turn.item == next[turn.half == kFirst ? 0 : 1]++);
    CHECK(next[1] <= next[0]);
  }
  CHECK(next[0] == items.items.size());
  CHECK(next[1] == items.items.size());
}

}  // namespace engine::compile
