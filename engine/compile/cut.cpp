#include "engine/compile/cut.h"

#include <absl/container/flat_hash_set.h>

#include "engine/base/status.h"

namespace engine::compile {
namespace {

using graph::Graph;
using graph::Node;
using graph::ValueKind;

// Cost of each block, and of the final norm and head, in FLOPs of matrix products: forward, over the whole
// microbatch. The backward pass costs twice as much in both.
std::pair<std::vector<double>, double> LayerCosts(const Graph& graph, const plan::DeviceProfile& device) {
  std::vector<double> costs(static_cast<size_t>(graph.layers()), 0.0);
  double head = 0;
  for (const Node& node : graph.nodes()) {
    if (node.phase != graph::Phase::kForward || node.layer < 0) continue;
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
    (node.layer < graph.layers() ? costs[static_cast<size_t>(node.layer)] : head) += flops;
  }
  return {costs, head};
}

absl::Status CheckTransfers(const plan::Plan& plan, size_t first) {
  for (size_t t = first; t < plan.transfers.size(); ++t) {
    const plan::Transfer& transfer = plan.transfers[t];
    const std::int32_t step = transfer.to_chunk - transfer.from_chunk;
    if (step == 1 || step == -1) continue;
    return Internal("pipeline: {} goes from chunk {} to chunk {}",
                    plan.values[static_cast<size_t>(transfer.value)].name, transfer.from_chunk,
                    transfer.to_chunk);
  }
  return absl::OkStatus();
}

}  // namespace

std::int32_t ChunkOfLayer(const ChunkLayers& chunks, std::int32_t layer) {
  if (layer < 0) return 0;
  for (size_t c = 0; c < chunks.size(); ++c) {
    if (layer < chunks[c].second) return static_cast<std::int32_t>(c);
  }
  return static_cast<std::int32_t>(chunks.size() - 1);
}

ChunkLayers CutLayers(const std::vector<std::int64_t>& layers_per_chunk, std::int64_t chunks,
                      const Graph& graph, const plan::DeviceProfile& device) {
  std::vector<std::int64_t> counts = layers_per_chunk;
  if (counts.empty()) {
    const auto [costs, head] = LayerCosts(graph, device);
    counts = plan::BalancedCut(costs, chunks, head);
  }
  ChunkLayers layers;
  std::int64_t first = 0;
  for (std::int64_t count : counts) {
    layers.emplace_back(first, first + count);
    first += count;
  }
  return layers;
}

absl::StatusOr<CutGraph> CutIntoChunks(LocalGraph local, const ChunkLayers& chunks, plan::Plan* plan) {
  const size_t known_transfers = plan->transfers.size();
  CutGraph cut;
  cut.base = static_cast<std::int32_t>(plan->values.size());
  cut.forward.resize(chunks.size());
  cut.backward.resize(chunks.size());
  cut.weights.resize(chunks.size());
  cut.prepare.resize(chunks.size());
  cut.producer_chunk.assign(local.values.size(), -1);
  cut.producer_pass.assign(local.values.size(), plan::Pass::kForward);
  absl::flat_hash_set<std::pair<std::int32_t, std::int32_t>> known;
  for (size_t i = 0; i < local.nodes.size(); ++i) {
    const LocalNode& node = local.nodes[i];
    const bool backward = node.phase == graph::Phase::kBackward;
    const std::int32_t chunk = ChunkOfLayer(chunks, node.layer);
    auto& lists = backward ? cut.backward : node.phase == graph::Phase::kPrepare ? cut.prepare : cut.forward;
    lists[static_cast<size_t>(chunk)].push_back(static_cast<std::int32_t>(i));
    for (std::int32_t input : node.inputs) {
      const std::int32_t producer = cut.producer_chunk[static_cast<size_t>(input)];
      if (producer < 0 || producer == chunk || !known.insert({input, chunk}).second) continue;
      plan->transfers.push_back({.value = cut.base + input,
                                 .from_chunk = producer,
                                 .to_chunk = chunk,
                                 .bytes = local.values[static_cast<size_t>(input)].local_bytes()});
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
  RETURN_IF_ERROR(CheckTransfers(*plan, known_transfers));
  return cut;
}

}  // namespace engine::compile
