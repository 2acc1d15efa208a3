// Broken plans: copies to and from the host's memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "tests/verify/mutations.h"

namespace engine::verify {
namespace {

// Eight layers, of which three wait in the host's memory.
const plan::Plan& Offloaded() {
  static const plan::Plan plan = plan::TinyPlan(true, {"offload.activation_layers=3"});
  return plan;
}

// Takes an instruction out, or puts one in, and moves the waits behind it.
void Shift(plan::Segment* segment, size_t at, std::int32_t by) {
  for (plan::Instruction& instruction : segment->instructions) {
    if (by < 0) std::erase(instruction.waits, static_cast<std::int32_t>(at));
    for (std::int32_t& wait : instruction.waits) wait += wait >= static_cast<std::int32_t>(at) ? by : 0;
  }
}
void Remove(plan::Segment* segment, size_t at) {
  segment->instructions.erase(segment->instructions.begin() + static_cast<std::ptrdiff_t>(at));
  Shift(segment, at, -1);
}

bool Waits(const plan::Instruction& instruction) { return !instruction.waits.empty(); }
bool Copies(const plan::Instruction& instruction) { return instruction.AsHostCopy() != nullptr; }

}  // namespace

TEST_CASE("mutation: the plan with layers in the host's memory is good") {
  CHECK_MESSAGE(Verify(Offloaded(), {}).ok(), Message(Verify(Offloaded(), {})));
  CHECK(Offloaded().stages[0].host_bytes > 0);
}

TEST_CASE("mutation: copies to and from the host") {
  for (const char* segment : {"forward.0", "backward.0"}) {
    CAPTURE(segment);
    Mutate(Offloaded(), "s", "it does not wait for that",
           Edit(segment, Waits, [](plan::Instruction& i) { i.waits.clear(); }));
    Mutate(Offloaded(), "s", "is on stream 0, not 7",
           Edit(segment, Copies, [](plan::Instruction& i) { i.stream = plan::kComputeStream; }));
    Mutate(Offloaded(), "s", "of the host's memory, which keeps",
           Edit(segment, Copies, [](plan::Instruction& i) { i.AsHostCopy()->host_offset = -256; }));
    Mutate(Offloaded(), "s", "of the host's memory, which keeps", [](plan::Plan& plan) {
      plan.stages[0].chunks[0].host_bytes -= 1;
      plan.stages[0].host_bytes = plan.stages[0].chunks[0].slots * plan.stages[0].chunks[0].host_bytes;
    });
  }
  Mutate(Offloaded(), "s", "values and gives",
         Edit("forward.0", Copies, [](plan::Instruction& i) { std::swap(i.inputs, i.outputs); }));
  // Chunks have places of their own there.
  Mutate(Offloaded(), "s", "bytes of the host's memory, of which its chunks use",
         [](plan::Plan& plan) { plan.stages[0].host_bytes /= 2; });
  const plan::Plan chunks = plan::TinyPlan(true, {"offload.activation_layers=1", "model.layers=12",
                                                  "parallelism.pp=2", "parallelism.virtual_stages=2"});
  REQUIRE(Verify(chunks, {}).ok());
  Mutate(chunks, "s", "but those before end at",
         [](plan::Plan& plan) { plan.stages[0].chunks[1].host_base = 0; });
  // What was not sent, or was overwritten there, cannot come back.
  Mutate(Offloaded(), "s", "which is not at", [](plan::Plan& plan) {
    plan::Segment& forward = SegmentOf(plan, 0, "forward.0");
    Remove(&forward, Find(forward, "to_host"));
  });
  Mutate(Offloaded(), "s", "which is not at", [](plan::Plan& plan) {
    At(plan, 0, "forward.0", "to_host").AsHostCopy()->host_offset =
        At(plan, 0, "forward.0", "to_host", 1).AsHostCopy()->host_offset;
  });
  // What does not come back is not there: its bytes are another layer's.
  Mutate(Offloaded(), "s", "whose bytes hold what", [](plan::Plan& plan) {
    plan::Segment& backward = SegmentOf(plan, 0, "backward.0");
    Remove(&backward, Find(backward, "from_host"));
  });
  // It comes back before the other layer has been read for the last time.
  Mutate(Offloaded(), "s", "whose bytes hold what", [](plan::Plan& plan) {
    plan::Segment& backward = SegmentOf(plan, 0, "backward.0");
    const size_t at = Find(backward, "from_host");
    REQUIRE(backward.instructions[at - 1].AsHostCopy() == nullptr);
    std::swap(backward.instructions[at], backward.instructions[at - 1]);
    for (plan::Instruction& instruction : backward.instructions) {
      for (std::int32_t& wait : instruction.waits) {
        if (wait == static_cast<std::int32_t>(at)) --wait;
      }
    }
  });
}

}  // namespace engine::verify
