#include "engine/compile/fuse_attention.h"

#include <absl/container/flat_hash_map.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "engine/compile/fuse_rules.h"
#include "engine/ops/fused.h"
#include "engine/ops/ops.h"

namespace engine::compile {
namespace {

class AttentionFuser : public FusionRules {
 public:
  using FusionRules::FusionRules;

  void Run() {
    using Self = AttentionFuser;
    Apply<Self>({&Self::ShareInput, &Self::ExchangeWhole, &Self::Bias});
    if (profile_.fuses) Apply<Self>({&Self::Rotary, &Self::PackedAttention});
    g_.Finish();
  }

 private:
  // An input of the iteration (positions) that is converted for each layer anew: once in a chunk.
  void ShareInput(int i) {
    const LocalNode again = g_.node(i);
    if (again.op != nullptr || g_.value(again.inputs[0]).kind != graph::ValueKind::kInput) return;
    const auto key = std::make_tuple(again.inputs[0], g_.value(again.outputs[0]).layout.ToString(),
                                     options_.chunk_of(again.unit));
    const auto [first, is_first] = converted_inputs_.try_emplace(key, again.outputs[0]);
    if (is_first) return;
    for (int reader : std::vector<int>(g_.Readers(again.outputs[0]))) {
      LocalNode user = g_.node(reader);
      std::replace(user.inputs.begin(), user.inputs.end(), again.outputs[0], first->second);
      g_.Replace(reader, std::move(user));
    }
    g_.Remove(i);
  }

  // Queries, keys and values that are exchanged one by one, from slices of the sequence to some of the heads:
  // what they are cut from is exchanged instead.
  void ExchangeWhole(int i) {
    if (!g_.Is(i, ops::kQkvSplit)) return;
    LocalNode split = g_.node(i);
    const int first = g_.OnlyReader(split.outputs[0]);
    if (first < 0) return;
    LocalNode exchange = g_.node(first);
    int last = first;
    std::vector<int> parts;
    for (std::int32_t& output : split.outputs) {
      const int part = g_.OnlyReader(output);
      if (part < 0 || g_.node(part).collective != plan::Collective::kAllToAll ||
          g_.node(part).phase != split.phase || g_.node(part).axis != exchange.axis) {
        return;
      }
      output = g_.node(part).outputs[0];
      last = std::max(last, part);
      parts.push_back(part);
    }
    for (const std::int32_t part : split.outputs) {
      for (int reader : g_.Readers(part)) {
        if (!g_.Is(reader, ops::kAttention) && !g_.Is(reader, ops::kAttentionGrad)) return;
      }
    }
    const int attention = g_.Readers(split.outputs[0]).front();
    const std::int32_t packed = split.inputs[0];
    plan::LocalValue whole = g_.value(packed);
    if (!g_.Is(attention, ops::kAttention) || !whole.layout.Set(exchange.axis, graph::Placement::S(2)))
      return;
    const Shape& keys = g_.value(split.outputs[1]).local;
    whole.local = {keys[0], keys[1], keys[2], whole.local[3], whole.local[4]};
    whole.name = fmt::format("{}@{}", whole.name, whole.layout.ToString());
    exchange.name = fmt::format("{}.{}", g_.value(packed).name, Name(exchange.collective));
    exchange.inputs = {packed};
    exchange.outputs = {g_.AddValue(std::move(whole))};
    split.inputs = {exchange.outputs[0], g_.node(attention).inputs[3]};
    for (int part : parts) {
      if (part != last) g_.Remove(part);
    }
    const int positions = g_.Producer(split.inputs[1]);
    g_.Replace(i, std::move(exchange));
    g_.Replace(last, std::move(split));
    if (positions > last) g_.MoveAfter(last, positions);
  }

  void Bias(int i) {
    if (!g_.Is(i, ops::kBiasAdd)) return;
    const LocalNode bias = g_.node(i);
    const int producer = g_.Producer(bias.inputs[0]);
    if (!g_.Is(producer, ops::kLinear) || g_.OnlyReader(bias.inputs[0]) != i) return;
    LocalNode linear = g_.node(producer);
    if (linear.inputs.size() != 2 || linear.phase != bias.phase) return;
    linear.inputs.push_back(bias.inputs[1]);
    linear.outputs = bias.outputs;
    g_.Remove(i);
    g_.Replace(producer, std::move(linear));
  }

  // qkv_split with rotation = rotary, then a split without; likewise the gradient.
  void Rotary(int i) {
    const bool forward = g_.Is(i, ops::kQkvSplit);
    if (!forward && !g_.Is(i, ops::kQkvMerge)) return;
    if (g_.node(i).attributes.Int("rotary", 0) == 0) return;
    LocalNode node = g_.node(i);
    const std::int32_t packed = forward ? node.inputs[0] : node.outputs[0];
    if (!Has(ops::kRotary, packed) || !PartOfPackedAttention(i)) return;
    plan::LocalValue turned = g_.value(packed);
    turned.name += forward ? ".turned" : ".unturned";
    turned.source = graph::kNoValue;
    turned.kind = graph::ValueKind::kActivation;
    rotary_[i] = {g_.AddValue(std::move(turned)), node.attributes};
  }

  // Whether queries, keys and values go nowhere but into attention and its gradient, or come from there
  // alone.
  bool PartOfPackedAttention(int i) {
    const LocalNode& node = g_.node(i);
    if (g_.Is(i, ops::kQkvSplit)) {
      for (size_t part = 0; part < 3; ++part) {
        for (int reader : g_.Readers(node.outputs[part])) {
          const LocalNode& user = g_.node(reader);
          if (user.op != &ops::kAttention && user.op != &ops::kAttentionGrad) return false;
          if (!std::equal(node.outputs.begin(), node.outputs.end(), user.inputs.begin())) return false;
          if (user.inputs[3] != node.inputs[1]) return false;
          if (user.op == &ops::kAttentionGrad && MergeOf(reader) < 0) return false;
        }
      }
      return !g_.Readers(node.outputs[0]).empty();
    }
    const int gradient = g_.Producer(node.inputs[0]);
    if (!g_.Is(gradient, ops::kAttentionGrad) || MergeOf(gradient) != i) return false;
    const int split = g_.Producer(g_.node(gradient).inputs[0]);
    return g_.Is(split, ops::kQkvSplit) && PartOfPackedAttention(split);
  }

  // The qkv_merge that alone reads what an attention_grad makes, or −1.
  int MergeOf(int gradient) {
    const LocalNode& node = g_.node(gradient);
    const int merge = g_.OnlyReader(node.outputs[0]);
    if (!g_.Is(merge, ops::kQkvMerge)) return -1;
    const bool whole = std::equal(node.outputs.begin(), node.outputs.end(), g_.node(merge).inputs.begin());
    return whole && g_.OnlyReader(node.outputs[1]) == merge && g_.OnlyReader(node.outputs[2]) == merge ? merge
                                                                                                       : -1;
  }

  void PackedAttention(int i) {
    if (!g_.Is(i, ops::kQkvSplit) || !Has(ops::kAttentionPacked, g_.node(i).inputs[0])) return;
    if (!PartOfPackedAttention(i)) return;
    const LocalNode split = g_.node(i);
    std::int32_t qkv = split.inputs[0];
    const std::vector<int> users = g_.Readers(split.outputs[0]);
    for (int user : users) {
      if (!g_.Is(user, ops::kAttentionGrad)) continue;
      Rewire(user, MergeOf(user), RotatedOr(i, qkv));
    }
    for (int user : users) {
      if (!g_.Is(user, ops::kAttention)) continue;
      LocalNode attention = g_.node(user);
      attention.op = &ops::kAttentionPacked;
      attention.inputs = {RotatedOr(i, qkv), split.inputs[1]};
      g_.Replace(user, std::move(attention));
    }
    const auto rotary = rotary_.find(i);
    if (rotary == rotary_.end()) return g_.Remove(i);
    LocalNode turn = split;
    turn.op = &ops::kRotary;
    turn.outputs = {rotary->second.value};
    g_.Replace(i, std::move(turn));
  }

  std::int32_t RotatedOr(int split, std::int32_t qkv) const {
    const auto it = rotary_.find(split);
    return it == rotary_.end() ? qkv : it->second.value;
  }

  // attention_grad and the merge behind it, on packed tensors.
  void Rewire(int gradient, int merge, std::int32_t qkv) {
    LocalNode packed = g_.node(gradient);
    LocalNode turn = g_.node(merge);
    packed.op = &ops::kAttentionPackedGrad;
    packed.inputs = {qkv, packed.inputs[3], packed.inputs[4], packed.inputs[5], packed.inputs[6]};
    const auto rotary = rotary_.find(merge);
    packed.outputs = rotary == rotary_.end() ? turn.outputs : std::vector<std::int32_t>{rotary->second.value};
    const std::int32_t positions = turn.inputs[3];
    if (rotary == rotary_.end()) {
      g_.Remove(merge);
      g_.Replace(gradient, std::move(packed));
      return;
    }
    turn.op = &ops::kRotaryGrad;
    turn.inputs = {rotary->second.value, positions};
    g_.Replace(merge, std::move(turn));
    g_.Replace(gradient, std::move(packed));
  }

  struct Turned {
    std::int32_t value = -1;
    graph::Attributes attributes;
  };

  // By input, layout and chunk: what it was converted to first.
  absl::flat_hash_map<std::tuple<std::int32_t, std::string, std::int32_t>, std::int32_t> converted_inputs_;
  absl::flat_hash_map<int, Turned> rotary_;  // by qkv_split or qkv_merge: what is turned in its place
};

}  // namespace

void FuseAttention(const FuseOptions& options, LocalGraph* graph) { AttentionFuser(options, graph).Run(); }

}  // namespace engine::compile
