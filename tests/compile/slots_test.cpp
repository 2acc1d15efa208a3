#include "engine/compile/slots.h"

#include <doctest/doctest.h>

#include <string>

#include "engine/backend/cuda/profile/profile.h"
#include "engine/compile/place.h"
#include "engine/compile/select.h"
#include "engine/ops/ops.h"
#include "tests/plan/plans.h"

namespace engine::compile {
namespace {

plan::Plan CudaPlan(const std::vector<std::string>& sets) {
  absl::StatusOr<plan::Plan> plan =
      driver::CompileUnverified(plan::TinyRecipe(false, sets), {.profile = backend::cuda::CudaProfile()});
  if (!plan.ok()) FAIL(Message(plan.status()));
  return *std::move(plan);
}

// One chunk by hand: values of this many elements, nodes that add two of them up.
struct Sketch {
  plan::Plan plan;
  CutGraph cut;

  Sketch() {
    for (auto* lists : {&cut.forward, &cut.backward, &cut.weights}) lists->resize(1);
  }

  std::int32_t Value(std::int64_t elements, plan::Pass made) {
    plan::LocalValue value;
    value.name = std::to_string(plan.values.size());
    value.shape = value.local = {elements};
    plan.values.push_back(value);
    cut.local.values.push_back(value);
    cut.producer_chunk.push_back(0);
    cut.producer_pass.push_back(made);
    return static_cast<std::int32_t>(plan.values.size() - 1);
  }

  void Add(plan::Pass pass, std::int32_t a, std::int32_t b, std::int32_t sum) {
    LocalNode node;
    node.op = &ops::kAdd;  // may work in place of `a`
    node.inputs = {a, b};
    node.outputs = {sum};
    auto& lists = pass == plan::Pass::kForward    ? cut.forward
                  : pass == plan::Pass::kBackward ? cut.backward
                                                  : cut.weights;
    lists[0].push_back(static_cast<std::int32_t>(cut.local.nodes.size()));
    cut.local.nodes.push_back(node);
  }

  SlotLayout LayOut() const { return LayOutSlot(plan, cut, 0, 0); }

  plan::Segment Backward(const SlotLayout& slot) const {
    const plan::DeviceProfile profile;
    const SelectInputs select{.plan = &plan,
                              .graph = &cut.local,
                              .nodes = &cut.backward[0],
                              .storage = &slot.values.first,
                              .profile = &profile,
                              .values_die = true};
    const PlaceInputs place{.plan = &plan, .storage = &slot.values, .dying = &slot.dying};
    std::int64_t bytes = 0;
    return Place(place, Select(select, "backward.0", 0), &bytes);
  }
};

}  // namespace

TEST_CASE("slots: bytes pass from what dies to what waits, in place too") {
  Sketch sketch;
  const std::int32_t a = sketch.Value(1024, plan::Pass::kForward);  // dies in the first node
  const std::int32_t b = sketch.Value(1024, plan::Pass::kForward);  // the weights pass reads it
  const std::int32_t c =
      sketch.Value(512, plan::Pass::kForward);  // dies in the third node; nothing takes its bytes
  const std::int32_t t = sketch.Value(1024, plan::Pass::kBackward);
  const std::int32_t u = sketch.Value(1024, plan::Pass::kBackward);
  const std::int32_t w = sketch.Value(1024, plan::Pass::kBackward);
  const std::int32_t in_place = sketch.Value(512, plan::Pass::kBackward);
  const std::int32_t made = sketch.Value(1024, plan::Pass::kWeights);
  sketch.Add(plan::Pass::kBackward, b, a, t);
  sketch.Add(plan::Pass::kBackward, t, b, w);
  sketch.Add(plan::Pass::kWeights, w, b, made);
  SUBCASE("the bytes of another") {
    sketch.Add(plan::Pass::kBackward, c, c, u);
    const SlotLayout slot = sketch.LayOut();
    CHECK(slot.values.first.size() == 4);
    CHECK(slot.values.first.at(w).offset == slot.values.first.at(a).offset);
    CHECK(slot.bytes == (1024 + 1024 + 512) * 4);
    // What lay there is not to be overwritten by anything else; what the weights pass reads is not at all.
    CHECK(slot.dying.size() == 1);
    CHECK(slot.dying.contains(c));
    // t, which is turned into w, is made while a is still read there.
    const plan::Segment backward = sketch.Backward(slot);
    CHECK(backward.instructions[0].inputs[1].in_slot);
    CHECK(!backward.instructions[0].outputs[0].in_slot);
    CHECK(backward.instructions[1].outputs[0].in_slot);
  }
  SUBCASE("the bytes of what it is made of") {
    sketch.Add(plan::Pass::kBackward, c, b, in_place);
    sketch.Add(plan::Pass::kWeights, in_place, in_place, made);
    const SlotLayout slot = sketch.LayOut();
    CHECK(slot.values.first.at(in_place).offset == slot.values.first.at(c).offset);
    CHECK(slot.values.first.at(w).offset == slot.values.first.at(a).offset);
    CHECK(slot.bytes == (1024 + 1024 + 512) * 4);
    CHECK(slot.dying.empty());
  }
  SUBCASE("of its own, where nothing has died") {
    const std::int32_t early = sketch.Value(1024, plan::Pass::kBackward);
    sketch.cut.backward[0].insert(sketch.cut.backward[0].begin(), 3);
    sketch.cut.local.nodes.push_back(sketch.cut.local.nodes[0]);
    sketch.cut.local.nodes[3].outputs = {early};
    sketch.Add(plan::Pass::kWeights, early, b, made);
    const SlotLayout slot = sketch.LayOut();
    CHECK(slot.values.first.at(early).offset == 2 * 1024 * 4);
    CHECK(slot.values.first.at(w).offset == slot.values.first.at(a).offset);
  }
}

TEST_CASE("slots: what waits for the weights pass lies where saved values have died") {
  // Sizes at which 256 bytes are nothing.
  const std::vector<std::string> sets = {"parallelism.pp=4", "precision.compute=bf16",
                                         "model.dropout.hidden=0", "model.dropout.embedding=0",
                                         "training.micro_batch=4"};
  std::vector<std::string> zero_bubble = sets;
  zero_bubble.emplace_back("parallelism.schedule=zero_bubble");
  const plan::Plan plain = CudaPlan(sets);
  const plan::Plan deferred = CudaPlan(zero_bubble);
  for (size_t s = 0; s < 4; ++s) {
    const plan::Chunk& a = plain.stages[s].chunks[0];
    const plan::Chunk& b = deferred.stages[s].chunks[0];
    CHECK(a.slots == 4 - static_cast<std::int64_t>(s));
    CHECK(b.slots == 4);
    // In a layer of width D (the MLP's is 2 D), the gradients of the outputs of fc2, fc1, proj and qkv take
    // 1 + 2 + 1 + 3 of D a token, and what dies there as much: gelu's input 2, q k v 3, norms' inputs 1 + 1.
    // So two layers cost no more than one: the slot grows by the first gradient of each kind, made while what
    // will have its size still lives, but for proj's, which takes of gelu's input.
    const std::int64_t d_bytes = 4 * 32 * 32 * 2;  // samples, tokens, D, bf16
    CHECK(plain.BlocksIn(a) == 2);
    CHECK(b.slot_bytes > a.slot_bytes);
    CHECK(b.slot_bytes <= a.slot_bytes + (1 + 2 + 3) * d_bytes);
  }
}

TEST_CASE("slots: a value that the weights pass reads is no other's meanwhile") {
  // VerifySegments shows it of each plan; here of many.
  for (const bool llama : {false, true}) {
    for (const char* recompute : {"none", "cheap", "full"}) {
      for (const char* layout : {"parallelism.tp=1", "parallelism.tp=2", "parallelism.cp=2"}) {
        const recipe::Recipe recipe = plan::TinyRecipe(
            llama, {"parallelism.pp=2", "parallelism.schedule=zero_bubble", "precision.compute=bf16",
                    std::string("recompute.granularity=") + recompute, layout, "training.micro_batch=2"});
        for (const plan::DeviceProfile& profile : {plan::DeviceProfile{}, backend::cuda::CudaProfile()}) {
          const absl::StatusOr<plan::Plan> plan = driver::CompileRecipe(recipe, {.profile = profile});
          INFO(recompute << " " << layout << " " << profile.name);
          CHECK_MESSAGE(plan.ok(), Message(plan.status()));
        }
      }
    }
  }
}

}  // namespace engine::compile
