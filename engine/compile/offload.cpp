#include "engine/compile/offload.h"

#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "engine/graph/op.h"
#include "engine/plan/arena.h"

namespace engine::compile {
namespace {

using graph::ValueKind;

// A value of less than this fraction of its layer's largest stays on the device: its copy would take longer to start than to
// run.
constexpr std::int64_t kSmall = 100;
constexpr size_t kNotThere = std::numeric_limits<size_t>::max();

// When the passes of a chunk make and read values, by place in the pass. Values are the graph's.
class ValueTurns {
 public:
  ValueTurns(const CutGraph& graph, std::int32_t chunk, const std::vector<std::int32_t>& saved) {
    const absl::flat_hash_set<std::int32_t> places(saved.begin(), saved.end());
    const auto c = static_cast<size_t>(chunk);
    const auto node_at = [&](std::int32_t n) -> const LocalNode& {
      return graph.local.nodes[static_cast<size_t>(n)];
    };
    for (size_t i = 0; i < graph.forward[c].size(); ++i) {
      const LocalNode& node = node_at(graph.forward[c][i]);
      for (std::int32_t input : node.inputs) last_forward_[input] = i;
      for (std::int32_t output : node.outputs) unit_[output] = node.unit;
      for (std::int32_t output : node.outputs) made_[output] = written_[output] = i;
      // An op that works in place may have found its input at output 0's place already (DraftSegment::made_at): the place is
      // written to from then on.
      if (node.op == nullptr || node.op->in_place_input < 0) continue;
      const std::int32_t input = node.inputs[static_cast<size_t>(node.op->in_place_input)];
      if (!places.contains(input) && made_.contains(input)) written_[node.outputs[0]] = made_.at(input);
    }
    for (size_t i = 0; i < graph.backward[c].size(); ++i) {
      for (std::int32_t input : node_at(graph.backward[c][i]).inputs) {
        first_backward_.try_emplace(input, i);
        last_backward_[input] = i;
      }
    }
    for (std::int32_t n : graph.weights[c]) late_.insert(node_at(n).inputs.begin(), node_at(n).inputs.end());
  }

  // The unit whose forward pass makes the value; −1: another chunk's, or none.
  std::int32_t UnitOf(std::int32_t v) const {
    const auto it = unit_.find(v);
    return it == unit_.end() ? -1 : it->second;
  }
  bool ReadLate(std::int32_t v) const { return late_.contains(v); }
  // Whether the forward pass is through with `v` before anything is written where `successor` is made, and the backward
  // pass with `successor` before it first reads `v`.
  bool TakesTurns(std::int32_t v, std::int32_t successor) const {
    const auto at = [](const auto& map, std::int32_t value, size_t none) {
      const auto it = map.find(value);
      return it == map.end() ? none : it->second;
    };
    return std::max(at(last_forward_, v, 0), at(made_, v, kNotThere)) < at(written_, successor, 0) &&
           at(last_backward_, successor, kNotThere) < at(first_backward_, v, 0);
  }

 private:
  absl::flat_hash_map<std::int32_t, std::int32_t> unit_;
  absl::flat_hash_map<std::int32_t, size_t> made_, written_, last_forward_, first_backward_, last_backward_;
  absl::flat_hash_set<std::int32_t> late_;
};

plan::Instruction CopyOf(const HostedValue& hosted, const plan::Plan& plan,
                         plan::HostCopy::Direction direction) {
  plan::Instruction copy;
  copy.name = plan.values[static_cast<size_t>(hosted.value)].name;
  copy.stream = plan::kHostStream;
  copy.what = plan::HostCopy{.direction = direction, .host_offset = hosted.host_offset};
  (direction == plan::HostCopy::Direction::kToHost ? copy.inputs : copy.outputs)
      .push_back(Unplaced(plan, hosted.value));
  return copy;
}

// Puts each copy behind the instruction of its number; `waits`: the copies, by number, that an instruction waits for.
void Insert(std::vector<std::pair<size_t, plan::Instruction>> copies,
            const absl::flat_hash_map<size_t, std::vector<size_t>>& waits, DraftSegment* segment) {
  std::vector<size_t> order(copies.size());
  for (size_t c = 0; c < order.size(); ++c) order[c] = c;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return copies[a].first < copies[b].first; });
  std::vector<std::int32_t> place(copies.size());
  std::vector<Draft> drafts;
  drafts.reserve(segment->drafts.size() + copies.size());
  auto next = order.begin();
  for (size_t i = 0; i < segment->drafts.size(); ++i) {
    Draft& draft = segment->drafts[i];
    if (const auto it = waits.find(i); it != waits.end()) {
      for (size_t copy : it->second) draft.instruction.waits.push_back(place[copy]);
    }
    drafts.push_back(std::move(draft));
    for (; next != order.end() && copies[*next].first == i; ++next) {
      place[*next] = static_cast<std::int32_t>(drafts.size());
      drafts.push_back({.instruction = std::move(copies[*next].second)});
    }
  }
  segment->drafts = std::move(drafts);
}

bool Has(const std::vector<plan::BufferRef>& refs, std::int32_t value) {
  return std::any_of(refs.begin(), refs.end(),
                     [&](const plan::BufferRef& ref) { return ref.value == value; });
}

}  // namespace

HostedValues FindHosted(const plan::Plan& plan, const CutGraph& graph, std::int32_t chunk,
                        const std::vector<std::int32_t>& saved, std::int64_t layers) {
  HostedValues hosted;
  if (layers == 0) return hosted;
  const ValueTurns turns(graph, chunk, saved);
  absl::flat_hash_set<std::int32_t> sent;
  for (const plan::Transfer& transfer : plan.transfers) sent.insert(transfer.value);
  const auto bytes = [&](std::int32_t v) { return graph.local.values[static_cast<size_t>(v)].local_bytes(); };
  struct Layer {
    std::int64_t most = 0;               // bytes of the largest value
    std::vector<std::int32_t> may_wait;  // values
  };
  std::map<std::int32_t, Layer> of_unit;
  for (std::int32_t v : saved) {
    const std::int32_t unit = turns.UnitOf(v);
    if (unit < 0 || plan.units[static_cast<size_t>(unit)].kind != graph::Unit::Kind::kBlock) continue;
    Layer& layer = of_unit[unit];
    layer.most = std::max(layer.most, bytes(v));
    const bool stays = graph.local.values[static_cast<size_t>(v)].kind != ValueKind::kActivation ||
                       turns.ReadLate(v) || sent.contains(graph.base + v);
    if (!stays) layer.may_wait.push_back(v);
  }
  std::vector<Layer> blocks;
  blocks.reserve(of_unit.size());
  for (auto& [unit, layer] : of_unit) blocks.push_back(std::move(layer));
  const size_t distance = blocks.size() - std::min(blocks.size(), static_cast<size_t>(layers));
  for (size_t b = 0; b + distance < blocks.size() && distance > 0; ++b) {
    std::vector<std::int32_t> free = blocks[b + distance].may_wait;
    for (std::int32_t v : blocks[b].may_wait) {
      if (bytes(v) < blocks[b].most / kSmall) continue;
      const auto like = std::find_if(free.begin(), free.end(), [&](std::int32_t other) {
        return bytes(other) == bytes(v) && turns.TakesTurns(v, other);
      });
      if (like == free.end()) continue;
      hosted.values.push_back(
          {.value = graph.base + v, .successor = graph.base + *like, .host_offset = hosted.bytes});
      hosted.bytes += plan::Aligned(bytes(v));
      free.erase(like);
    }
  }
  return hosted;
}

void CopyToHost(const HostedValues& hosted, const plan::Plan& plan, DraftSegment* forward) {
  std::vector<std::pair<size_t, plan::Instruction>> copies;
  absl::flat_hash_map<size_t, std::vector<size_t>> waits;
  for (const HostedValue& one : hosted.values) {
    size_t made = kNotThere, overwritten = kNotThere;
    for (size_t i = 0; i < forward->drafts.size(); ++i) {
      for (const plan::BufferRef& output : forward->drafts[i].instruction.outputs) {
        const auto alias = forward->made_at.find(output.value);
        const std::int32_t place = alias == forward->made_at.end() ? output.value : alias->second;
        if (output.value == one.value) made = i;
        if (place == one.successor) overwritten = std::min(overwritten, i);
      }
    }
    ENGINE_CHECK(made < overwritten && overwritten != kNotThere, "{} is overwritten before it is made",
                 plan.values[static_cast<size_t>(one.value)].name);
    waits[overwritten].push_back(copies.size());
    copies.emplace_back(made, CopyOf(one, plan, plan::HostCopy::Direction::kToHost));
  }
  Insert(std::move(copies), waits, forward);
}

void CopyFromHost(const HostedValues& hosted, const plan::Plan& plan, DraftSegment* backward) {
  std::vector<std::pair<size_t, plan::Instruction>> copies;
  absl::flat_hash_map<size_t, std::vector<size_t>> waits;
  // The layers come back in the order in which the backward pass reads them.
  for (auto one = hosted.values.rbegin(); one != hosted.values.rend(); ++one) {
    size_t left = kNotThere, read = kNotThere;
    for (size_t i = 0; i < backward->drafts.size(); ++i) {
      const std::vector<plan::BufferRef>& inputs = backward->drafts[i].instruction.inputs;
      if (Has(inputs, one->successor)) left = i;
      if (read == kNotThere && Has(inputs, one->value)) read = i;
    }
    ENGINE_CHECK(left < read && read != kNotThere, "{} is read before its place is free",
                 plan.values[static_cast<size_t>(one->value)].name);
    waits[read].push_back(copies.size());
    copies.emplace_back(left, CopyOf(*one, plan, plan::HostCopy::Direction::kFromHost));
  }
  Insert(std::move(copies), waits, backward);
}

}  // namespace engine::compile
