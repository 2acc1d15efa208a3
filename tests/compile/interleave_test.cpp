// The order of two microbatches in a segment: what it hides, and what it must keep.
#include "engine/compile/interleave.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "engine/backend/cuda/profile/profile.h"
#include "engine/verify/order.h"
#include "tests/plan/plans.h"

namespace engine::compile {
namespace {

constexpr Rates kRates = {.matmul_flops = 1e12, .memory_bandwidth = 1e15, .link_bandwidth = 1e9};

plan::Instruction Compute(const std::string& name, double ms) {
  plan::Instruction instruction;
  instruction.name = instruction.kernel = name;
  instruction.work.flops = ms * 1e9;
  return instruction;
}

plan::Instruction Exchange(const std::string& name, double ms) {
  plan::Instruction instruction;
  instruction.name = instruction.kernel = name;
  instruction.collective = plan::Collective::kReduceScatter;
  instruction.stream = plan::kExchangeStream;
  instruction.wire_bytes = static_cast<std::int64_t>(ms * 1e6);
  return instruction;
}

// A place of `ms` bytes a lane behind `offset`, side by side with the other lane's.
plan::BufferRef Beside(std::int64_t offset, std::int64_t bytes) {
  return {.offset = offset, .elements = bytes, .dtype = DType::kU8, .in_lane = true, .lane_stride = bytes};
}

// A backward pass with tensor parallelism: what goes on to the layer before, its sum, and the gradient of the
// weights of both lanes, of what was made in `places` places in turn.
plan::Segment WithJoint(int layers, int places, double exchange_ms) {
  plan::Segment segment;
  for (int i = 0; i < layers; ++i) {
    const plan::BufferRef made = Beside(512 * (i % places), 256);
    segment.instructions.push_back(Compute("dgrad", 3));
    segment.instructions.back().outputs = {made};
    segment.instructions.push_back(Compute("wgrad", 6));
    segment.instructions.back().inputs = {made};
    segment.instructions.back().joint = true;
    segment.instructions.push_back(Exchange("sum", exchange_ms));
    segment.instructions.back().inputs = segment.instructions.back().outputs = {plan::BufferRef()};
    segment.instructions.push_back(Compute("norm", 0.25));
  }
  return segment;
}

// Layers of sequence parallelism: products, a sum, the norm between two exchanges, a gather.
plan::Segment Layers(int layers, double exchange_ms) {
  plan::Segment segment;
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

TEST_CASE("interleave: neither lane reads what is gathered for both before it is there") {
  plan::Segment segment;
  segment.instructions = {Compute("before", 1), Exchange("gather", 5), Compute("reads", 1)};
  plan::Instruction& gather = segment.instructions[1];
  gather.collective = plan::Collective::kAllGather;
  gather.joint = gather.detached = true;
  segment.instructions[2].joins = gather.name;
  CHECK(Interleave(segment, kRates).order == std::vector<std::uint8_t>{0, 1, plan::kJointLane, 0, 1});
}

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
  const plan::Segment segment = Layers(20, 1);
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

TEST_CASE("interleave: what is made of both lanes fills the gaps, once both have come to it") {
  const int layers = 20;
  const plan::Segment segment = WithJoint(layers, layers, 4);
  const Interleaving interleaving = Interleave(segment, kRates);
  // Without it 1 ms of each sum would be left over.
  CHECK(interleaving.compute_s == doctest::Approx(layers * (2 * 3.25e-3 + 6e-3)).epsilon(0.01));
  CHECK(interleaving.exposed_s < 5e-3);
  std::vector<size_t> own, joint;
  for (size_t i = 0; i < segment.instructions.size(); ++i)
    (segment.instructions[i].joint ? joint : own).push_back(i);
  size_t taken[3] = {0, 0, 0};
  for (const std::uint8_t lane : interleaving.order) {
    if (lane == plan::kJointLane) {
      for (size_t other : {0, 1}) CHECK((taken[other] == own.size() || own[taken[other]] > joint[taken[2]]));
    }
    ++taken[lane];
  }
  CHECK(taken[0] == own.size());
  CHECK(taken[1] == own.size());
  CHECK(taken[2] == joint.size());
}

TEST_CASE("interleave: no lane overwrites what is still to be read of both") {
  for (const int places : {1, 2, 3}) {
    // Short exchange leaves no gaps: only the places make joint instructions run.
    const plan::Segment segment = WithJoint(20, places, 0.01);
    int made[2] = {0, 0};
    int joint = 0;
    size_t next[3] = {0, 1, 1};
    next[1] = 0;
    for (const std::uint8_t lane : Interleave(segment, kRates).order) {
      while (segment.instructions[next[lane]].joint != (lane == plan::kJointLane)) ++next[lane];
      const std::string& name = segment.instructions[next[lane]++].name;
      if (name == "wgrad") ++joint;
      if (name != "dgrad") continue;
      CHECK(made[lane] - joint < places);
      ++made[lane];
    }
    CHECK(joint == 20);
  }
}

TEST_CASE("interleave: sums are added to in the order of instructions, and reductions are not held up") {
  // Nothing but the sum makes the lanes wait for "head"; behind it the reductions of 8 layers.
  plan::Segment segment;
  const plan::BufferRef sum{.value = 7, .elements = 1};
  segment.instructions.push_back(Compute("head", 5));
  segment.instructions.back().joint = true;
  segment.instructions.back().outputs = {sum};
  for (int i = 0; i < 8; ++i) {
    segment.instructions.push_back(Compute("layer", 3));
    segment.instructions.push_back(Exchange("reduce", 1));
    segment.instructions.back().joint = segment.instructions.back().detached = true;
  }
  segment.instructions.push_back(Compute("lookup", 1));
  segment.instructions.back().outputs = {sum};
  int layers = 0;  // of lane 1, which is behind
  bool head = false;
  size_t next[3] = {1, 1, 0};
  for (const std::uint8_t lane : Interleave(segment, kRates).order) {
    while (segment.instructions[next[lane]].joint != (lane == plan::kJointLane)) ++next[lane];
    const std::string& name = segment.instructions[next[lane]++].name;
    layers += name == "layer" && lane == 1 ? 1 : 0;
    if (name == "head") CHECK(layers <= 3);
    head = head || name == "head";
    if (name == "lookup") CHECK(head);
  }
  CHECK(head);
  segment.instructions.erase(segment.instructions.begin() + 1, segment.instructions.end() - 1);
  CHECK(Interleave(segment, kRates).order == std::vector<std::uint8_t>{plan::kJointLane, 0, 1});
}

TEST_CASE("interleave: a place of another size is the other lane's until that has finished its exchange") {
  // "first" of lane 1 lies where the second half of "second" of lane 0 does.
  plan::Plan plan;
  for (const char* name : {"first", "second", "sent"}) plan.values.emplace_back().name = name;
  const auto place = [](std::int32_t value, std::int64_t offset, std::int64_t bytes) {
    plan::BufferRef ref = Beside(offset, bytes);
    ref.value = value;
    return ref;
  };
  plan::Segment segment;
  segment.instructions.push_back(Compute("make", 1));
  segment.instructions.back().outputs = {place(0, 0, 512)};
  segment.instructions.push_back(Exchange("send", 50));
  segment.instructions.back().inputs = {place(0, 0, 512)};
  segment.instructions.back().outputs = {place(2, 1 << 20, 512)};
  segment.instructions.push_back(Compute("waits", 1));
  segment.instructions.push_back(Compute("overwrite", 1));
  segment.instructions.back().outputs = {place(1, 0, 1024)};
  segment.instructions.push_back(Compute("joint", 1));
  segment.instructions.back().inputs = {place(1, 0, 1024)};
  segment.instructions.back().joint = true;
  segment.order = Interleave(segment, kRates).order;
  CHECK(verify::VerifyOrder(plan, 0, segment, true).ok());
  size_t next[3] = {0, 0, 4};
  for (const std::uint8_t lane : segment.order) {
    if (lane == 0 && next[0] == 3) CHECK(next[1] == 3);
    ++next[lane];
  }
  CHECK(next[1] == 4);
  CHECK(next[2] == 5);
  // The exchange has begun, and nothing has waited for it.
  segment.order = {0, 0, 0, 1, 1, 0, 1, 1, plan::kJointLane};
  const std::string found = Message(verify::VerifyOrder(plan, 0, segment, true));
  CHECK_MESSAGE(found.find("#3 overwrite in lane 0 writes at 0 before") != std::string::npos, found);
  CHECK_MESSAGE(found.find("#1 send has run, which needs first") != std::string::npos, found);
}

TEST_CASE("exchange is finished before the lane's next one that would overwrite what is left to compute") {
  const auto at = [](std::int64_t offset) {
    return plan::BufferRef{.offset = offset, .elements = 256, .dtype = DType::kU8, .in_lane = true};
  };
  plan::Instruction first = Exchange("first", 1);
  first.inputs = {at(0)};
  first.outputs = {at(256)};
  first.scratch = at(512);
  plan::Instruction next = Exchange("next", 1);
  const auto finishes = [&](const plan::BufferRef& input, const plan::BufferRef& output,
                            const plan::BufferRef& scratch) {
    next.inputs = {input};
    next.outputs = {output};
    next.scratch = scratch;
    return plan::FinishesFirst(first, next);
  };
  CHECK_FALSE(finishes(at(1024), at(1280), at(1536)));
  CHECK_FALSE(finishes(at(0), at(1280), {}));  // both only read it
  CHECK(finishes(at(256 + 128), at(1280), {}));
  CHECK(finishes(at(1024), at(128), {}));
  CHECK(finishes(at(1024), at(512), {}));
  CHECK(finishes(at(1024), at(1280), at(128)));
  CHECK(finishes(at(1024), at(1280), at(640)));
  next.flat = true;
  CHECK_FALSE(finishes(at(1024), at(128), at(512)));
}

TEST_CASE("exchange of a lane never waits for its own: what it takes is kept until computation waits") {
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
      CHECK(plan.lanes == 2);
      int behind = 0;
      for (const plan::Segment& segment : plan.stages[0].segments) {
        std::vector<const plan::Instruction*> under_way;
        for (const plan::Instruction& instruction : segment.instructions) {
          const bool exchanges = instruction.stream == plan::kExchangeStream;
          if (instruction.joint || instruction.flat) continue;
          if (!exchanges) under_way.clear();
          for (const plan::Instruction* before : under_way) {
            ++behind;
            CHECK_FALSE(plan::FinishesFirst(*before, instruction));
          }
          if (exchanges) under_way.push_back(&instruction);
        }
      }
      if (layout == std::string("parallelism.tp=2")) CHECK(behind > 0);
    }
  }
}

TEST_CASE("interleave: the second lane is never ahead, and both run all") {
  const plan::Segment segment = Layers(7, 3);
  size_t next[2] = {0, 0};
  for (const std::uint8_t lane : Interleave(segment, kRates).order) {
    ++next[lane];
    CHECK(next[1] <= next[0]);
  }
  CHECK(next[0] == segment.instructions.size());
  CHECK(next[1] == segment.instructions.size());
}

}  // namespace engine::compile
