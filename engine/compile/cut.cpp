#include "engine/compile/cut.h"

#include <absl/container/flat_hash_set.h>

#include <algorithm>

#include "engine/base/status.h"

namespace engine::compile {
namespace {

using graph::Graph;
using graph::Node;
using graph::ValueKind;

// Cost of each block, and of what stands behind the last one, in FLOPs: forward, over the whole microbatch. The backward
// pass costs twice as much in both. An entry is looked up, which costs nothing; an exit in the midst of the chain
// belongs to the block before it.
std::pair<std::vector<double>, double> BlockCosts(const Graph& graph, const plan::DeviceProfile& device) {
  std::vector<std::int64_t> block_of;  // by unit; −1 before the first
  std::int64_t blocks = 0;
  for (const graph::Unit& unit : graph.units()) {
    blocks += unit.kind == graph::Unit::Kind::kBlock ? 1 : 0;
    block_of.push_back(blocks - 1);
  }
  std::vector<double> costs(static_cast<size_t>(blocks), 0.0);
  double end = 0;
  for (const Node& node : graph.nodes()) {
    const size_t u = static_cast<size_t>(node.unit);
    const graph::Unit::Kind kind = graph.units()[u].kind;
    if (node.phase != graph::Phase::kForward || kind == graph::Unit::Kind::kEntry) continue;
    std::vector<graph::TensorType> inputs;
    std::vector<graph::TensorType> outputs;
    for (graph::ValueId v : node.inputs) inputs.push_back(graph.value(v).type);
    for (graph::ValueId v : node.outputs) outputs.push_back(graph.value(v).type);
    double flops = node.op->work(inputs, outputs, node.attributes).flops;
    if (node.op->family == graph::Family::kAttention) {
      const plan::SlowPath slow =
          device.slow ? device.slow(node.op->name, inputs, node.attributes) : plan::SlowPath{};
      flops = device.attention_slowdown * (slow.kind == plan::SlowPath::Kind::kMasked ? slow.flops : flops);
    }
    const bool behind = kind == graph::Unit::Kind::kExit && block_of[u] + 1 == blocks;
    (behind ? end : costs[static_cast<size_t>(block_of[u])]) += flops;
  }
  return {costs, end};
}

// A value's way from the chunk that makes it to one that reads it. It goes from neighbour to neighbour, so that every
// rank exchanges with two stages only: a chunk in between relays it. Forward it goes with the forward passes, backward
// with the backward passes; what a forward pass makes cannot go backward, as it would have to wait for a backward pass.
class Relays {
 public:
  explicit Relays(std::vector<plan::Transfer>* transfers) : transfers_(*transfers) {}

  absl::Status Carry(std::int32_t value, const plan::LocalValue& of, std::int32_t from, std::int32_t to,
                     bool made_backward) {
    if (made_backward != (to < from)) {
      return Internal("pipeline: {}, which a {} pass makes, goes from chunk {} to chunk {}", of.name,
                      made_backward ? "backward" : "forward", from, to);
    }
    const std::int32_t step = to < from ? -1 : 1;
    for (std::int32_t at = from; at != to; at += step) {
      if (!known_.insert({value, at + step}).second) continue;
      transfers_.push_back(
          {.value = value, .from_chunk = at, .to_chunk = at + step, .bytes = of.local_bytes()});
    }
    return absl::OkStatus();
  }

 private:
  std::vector<plan::Transfer>& transfers_;
  absl::flat_hash_set<std::pair<std::int32_t, std::int32_t>> known_;  // values, and chunks that receive them
};

}  // namespace

std::int32_t ChunkOfUnit(const ChunkUnits& chunks, std::int32_t unit) {
  const auto chunk =
      std::find_if(chunks.begin(), chunks.end(), [&](const auto& range) { return unit < range.second; });
  return static_cast<std::int32_t>(chunk - chunks.begin());
}

std::vector<std::int64_t> BalancedBlocks(std::int64_t chunks, const Graph& graph,
                                         const plan::DeviceProfile& device) {
  const auto [costs, end] = BlockCosts(graph, device);
  return plan::BalancedCut(costs, chunks, end);
}

ChunkUnits CutUnits(const std::vector<graph::Unit>& units, const std::vector<std::int64_t>& blocks) {
  ChunkUnits chunks;
  std::int32_t unit = 0;
  const auto is = [&](graph::Unit::Kind kind) {
    return static_cast<size_t>(unit) < units.size() && units[static_cast<size_t>(unit)].kind == kind;
  };
  for (std::int64_t left : blocks) {
    const std::int32_t first = unit;
    for (; left > 0 && static_cast<size_t>(unit) < units.size(); ++unit)
      left -= is(graph::Unit::Kind::kBlock) ? 1 : 0;
    while (is(graph::Unit::Kind::kExit)) ++unit;
    chunks.emplace_back(first, unit);
  }
  return chunks;
}

absl::StatusOr<CutGraph> CutIntoChunks(LocalGraph local, const ChunkUnits& chunks, plan::Plan* plan) {
  CutGraph cut;
  cut.base = static_cast<std::int32_t>(plan->values.size());
  cut.forward.resize(chunks.size());
  cut.backward.resize(chunks.size());
  cut.weights.resize(chunks.size());
  cut.prepare.resize(chunks.size());
  cut.producer_chunk.assign(local.values.size(), -1);
  cut.producer_pass.assign(local.values.size(), plan::Pass::kForward);
  Relays relays(&plan->transfers);
  for (size_t i = 0; i < local.nodes.size(); ++i) {
    const LocalNode& node = local.nodes[i];
    const bool backward = node.phase == graph::Phase::kBackward;
    const std::int32_t chunk = ChunkOfUnit(chunks, node.unit);
    auto& lists = backward ? cut.backward : node.phase == graph::Phase::kPrepare ? cut.prepare : cut.forward;
    lists[static_cast<size_t>(chunk)].push_back(static_cast<std::int32_t>(i));
    for (std::int32_t input : node.inputs) {
      const std::int32_t producer = cut.producer_chunk[static_cast<size_t>(input)];
      if (producer < 0 || producer == chunk) continue;
      RETURN_IF_ERROR(relays.Carry(cut.base + input, local.values[static_cast<size_t>(input)], producer,
                                   chunk,
                                   cut.producer_pass[static_cast<size_t>(input)] == plan::Pass::kBackward));
    }
    for (std::int32_t output : node.outputs) {
      if (local.values[static_cast<size_t>(output)].kind != ValueKind::kActivation) continue;
      cut.producer_chunk[static_cast<size_t>(output)] = chunk;
      cut.producer_pass[static_cast<size_t>(output)] =
          backward ? plan::Pass::kBackward : plan::Pass::kForward;
    }
  }
  plan->values.insert(plan->values.end(), local.values.begin(), local.values.end());
  cut.local = std::move(local);
  return cut;
}

}  // namespace engine::compile
