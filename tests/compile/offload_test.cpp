// Which values wait in the host's memory, and whose places are handed on: of a chunk of four layers by hand.
#include "engine/compile/offload.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/compile/slots.h"
#include "engine/ops/ops.h"

namespace engine::compile {
namespace {

// Layer u makes the value Large(u), of the layer before's, and from that Small(u), which has less than a hundredth of its bytes.
// The backward pass reads both, from the last layer to the first.
struct LayersSaved {
  static constexpr std::int32_t kLayers = 4;
  static constexpr std::int64_t kElements = 1000;
  plan::Plan plan;
  CutGraph cut;

  explicit LayersSaved(std::vector<std::int64_t> elements = std::vector<std::int64_t>(kLayers, kElements)) {
    for (auto* lists : {&cut.forward, &cut.backward, &cut.weights}) lists->resize(1);
    plan.units.resize(kLayers);
    for (std::int32_t u = 0; u < kLayers; ++u) {
      Value(elements[static_cast<size_t>(u)]);
      Value(4);
    }
    for (std::int32_t u = 0; u < kLayers; ++u) {
      Node(&cut.forward, u, u > 0 ? std::vector{Large(u - 1)} : std::vector<std::int32_t>(), {Large(u)});
      Node(&cut.forward, u, {Large(u)}, {Small(u)});
    }
    for (std::int32_t u = kLayers - 1; u >= 0; --u) Node(&cut.backward, u, {Large(u), Small(u)}, {});
  }

  static std::int32_t Large(std::int32_t u) { return 2 * u; }
  static std::int32_t Small(std::int32_t u) { return 2 * u + 1; }

  void Value(std::int64_t elements) {
    plan::LocalValue value;
    value.name = std::to_string(plan.values.size());
    value.shape = value.local = {elements};
    plan.values.push_back(value);
    cut.local.values.push_back(value);
    cut.producer_chunk.push_back(0);
    cut.producer_pass.push_back(plan::Pass::kForward);
  }

  // At the end of the pass, or where `at` says.
  void Node(std::vector<std::vector<std::int32_t>>* pass, std::int32_t unit, std::vector<std::int32_t> inputs,
            std::vector<std::int32_t> outputs, std::int64_t at = -1) {
    LocalNode node;
    node.unit = unit;
    node.inputs = std::move(inputs);
    node.outputs = std::move(outputs);
    std::vector<std::int32_t>& list = (*pass)[0];
    list.insert(at < 0 ? list.end() : list.begin() + at, static_cast<std::int32_t>(cut.local.nodes.size()));
    cut.local.nodes.push_back(node);
  }

  // "0 for 4": values and their successors.
  std::string Hosted(std::int64_t layers) const {
    std::string text;
    for (const HostedValue& hosted : FindHosted(plan, cut, 0, SavedValues(cut, 0), layers).values)
      text += (text.empty() ? "" : ", ") + std::to_string(hosted.value) + " for " +
              std::to_string(hosted.successor);
    return text;
  }
};

}  // namespace

TEST_CASE("offload: a layer's large values wait for those of the layer so many later") {
  const LayersSaved layers;
  CHECK(layers.Hosted(0).empty());
  CHECK(layers.Hosted(1) == "0 for 6");
  CHECK(layers.Hosted(2) == "0 for 4, 2 for 6");
  const HostedValues two = FindHosted(layers.plan, layers.cut, 0, SavedValues(layers.cut, 0), 2);
  CHECK(two.bytes == 2 * 4096);  // places are multiples of 256 bytes
  CHECK(two.values[1].host_offset == 4096);
  // The next layer is made of the one before it: that is still read when its place would be written to.
  CHECK(layers.Hosted(3).empty());
  CHECK(layers.Hosted(4).empty());
}

TEST_CASE("offload: what is read outside of its turn stays") {
  LayersSaved forward;  // the last layer reads the first one's as well
  forward.Node(&forward.cut.forward, 3, {LayersSaved::Large(0)}, {});
  CHECK(forward.Hosted(2) == "2 for 6");
  LayersSaved early;  // the backward pass begins with it
  early.Node(&early.cut.backward, 0, {LayersSaved::Large(0)}, {}, 0);
  CHECK(early.Hosted(2) == "2 for 6");
  LayersSaved late;  // it ends with the successor
  late.Node(&late.cut.backward, 2, {LayersSaved::Large(2)}, {});
  CHECK(late.Hosted(2) == "2 for 6");
  LayersSaved weights;  // a pass behind it reads it
  weights.Node(&weights.cut.weights, 0, {LayersSaved::Large(0)}, {});
  CHECK(weights.Hosted(2) == "2 for 6");
}

TEST_CASE("offload: what another chunk takes, or has no like, stays") {
  LayersSaved sent;
  sent.plan.transfers.push_back({.value = LayersSaved::Large(3), .from_chunk = 0, .to_chunk = 1});
  CHECK(sent.Hosted(2) == "0 for 4");
  CHECK(LayersSaved({1000, 1000, 900, 1000}).Hosted(2) == "2 for 6");
}

}  // namespace engine::compile
