#include "engine/compile/fuse_attention.h"

#include <absl/container/flat_hash_map.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "engine/compile/fuse_rules.h"
#include "engine/ops/fusion.h"

namespace engine::compile {
namespace {

class InputSharer : public FusionRules {
 public:
  using FusionRules::FusionRules;
  void Run() { Apply<InputSharer>({&InputSharer::ShareInput}); }

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

  // By input, layout and chunk: what it was converted to first.
  absl::flat_hash_map<std::tuple<std::int32_t, std::string, std::int32_t>, std::int32_t> converted_inputs_;
};

class AttentionFuser : public FusionRules {
 public:
  AttentionFuser(const FuseOptions& options, const ops::PackedAttention& of, Rewriter* graph)
      : FusionRules(options, graph), forward_(of.forward), backward_(of.backward) {}

  void ExchangeWholes() { Apply<AttentionFuser>({&AttentionFuser::ExchangeWhole}); }
  void Pack() { Apply<AttentionFuser>({&AttentionFuser::Rotary, &AttentionFuser::PackedAttention}); }

 private:
  static constexpr std::size_t kPositions =
      3;  // input of attention and of its gradient, and of the merged cut

  bool HasPositions(const LocalNode& attention) const {
    return attention.inputs.size() > kPositions &&
           g_.value(attention.inputs[kPositions]).dtype == DType::kI32;
  }

  // Queries, keys and values that are exchanged one by one, from slices of the sequence to some of the heads:
  // what they are cut from is exchanged instead.
  void ExchangeWhole(int i) {
    if (!g_.Is(i, *forward_.cut)) return;
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
        if (!g_.Is(reader, *forward_.attention) && !g_.Is(reader, *backward_.attention)) return;
      }
    }
    const int attention = g_.Readers(split.outputs[0]).front();
    const std::int32_t packed = split.inputs[0];
    plan::LocalValue whole = g_.value(packed);
    if (!g_.Is(attention, *forward_.attention) || !whole.layout.Set(exchange.axis, graph::Placement::S(2)))
      return;
    const bool placed = split.inputs.size() > 1;  // whether the cut has positions, which are exchanged too
    if (placed && !HasPositions(g_.node(attention))) return;
    const Shape& keys = g_.value(split.outputs[1]).local;
    whole.local = {keys[0], keys[1], keys[2], whole.local[3], whole.local[4]};
    whole.name = fmt::format("{}@{}", whole.name, whole.layout.ToString());
    exchange.name = fmt::format("{}.{}", g_.value(packed).name, Name(exchange.collective));
    exchange.inputs = {packed};
    exchange.outputs = {g_.AddValue(std::move(whole))};
    const std::int32_t positions = placed ? g_.node(attention).inputs[kPositions] : -1;
    split.inputs[0] = exchange.outputs[0];
    if (placed) split.inputs[1] = positions;
    for (int part : parts) {
      if (part != last) g_.Remove(part);
    }
    g_.Replace(i, std::move(exchange));
    g_.Replace(last, std::move(split));
    if (!placed) return;
    const int producer = g_.Producer(positions);
    if (producer > last) g_.MoveAfter(last, producer);
  }

  // A cut that turns = turning, then a cut that does not; likewise the gradient.
  void Rotary(int i) {
    const bool forward = g_.Is(i, *forward_.cut);
    if (!forward && !g_.Is(i, *backward_.cut)) return;
    if (g_.node(i).attributes.Int("rotary", 0) == 0) return;
    LocalNode node = g_.node(i);
    const std::int32_t packed = forward ? node.inputs[0] : node.outputs[0];
    if (!Has(*forward_.turn, packed) || !PartOfPackedAttention(i)) return;
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
    if (g_.Is(i, *forward_.cut)) {
      for (size_t part = 0; part < 3; ++part) {
        for (int reader : g_.Readers(node.outputs[part])) {
          const LocalNode& user = g_.node(reader);
          if (user.op != forward_.attention && user.op != backward_.attention) return false;
          if (user.inputs.size() != (user.op == forward_.attention ? forward_ : backward_).inputs)
            return false;
          if (!std::equal(node.outputs.begin(), node.outputs.end(), user.inputs.begin())) return false;
          if (node.inputs.size() < 2 || user.inputs[kPositions] != node.inputs[1]) return false;
          if (user.op == backward_.attention && MergeOf(reader) < 0) return false;
        }
      }
      return !g_.Readers(node.outputs[0]).empty();
    }
    const int gradient = g_.Producer(node.inputs[0]);
    if (!g_.Is(gradient, *backward_.attention) || MergeOf(gradient) != i) return false;
    const int split = g_.Producer(g_.node(gradient).inputs[0]);
    return g_.Is(split, *forward_.cut) && PartOfPackedAttention(split);
  }

  // The cut of the backward pass that alone reads what an attention's gradient makes, or −1.
  int MergeOf(int gradient) {
    const LocalNode& node = g_.node(gradient);
    const int merge = g_.OnlyReader(node.outputs[0]);
    if (!g_.Is(merge, *backward_.cut)) return -1;
    const bool whole = std::equal(node.outputs.begin(), node.outputs.end(), g_.node(merge).inputs.begin());
    return whole && g_.OnlyReader(node.outputs[1]) == merge && g_.OnlyReader(node.outputs[2]) == merge ? merge
                                                                                                       : -1;
  }

  void PackedAttention(int i) {
    if (!g_.Is(i, *forward_.cut) || !Has(*forward_.packed, g_.node(i).inputs[0])) return;
    if (!PartOfPackedAttention(i)) return;
    const LocalNode split = g_.node(i);
    std::int32_t qkv = split.inputs[0];
    const std::vector<int> users = g_.Readers(split.outputs[0]);
    for (int user : users) {
      if (!g_.Is(user, *backward_.attention)) continue;
      Rewire(user, MergeOf(user), RotatedOr(i, qkv));
    }
    for (int user : users) {
      if (!g_.Is(user, *forward_.attention)) continue;
      LocalNode attention = g_.node(user);
      attention.op = forward_.packed;
      attention.inputs = {RotatedOr(i, qkv), split.inputs[1]};
      g_.Replace(user, std::move(attention));
    }
    const auto rotary = rotary_.find(i);
    if (rotary == rotary_.end()) return g_.Remove(i);
    LocalNode turn = split;
    turn.op = forward_.turn;
    turn.outputs = {rotary->second.value};
    g_.Replace(i, std::move(turn));
  }

  std::int32_t RotatedOr(int split, std::int32_t qkv) const {
    const auto it = rotary_.find(split);
    return it == rotary_.end() ? qkv : it->second.value;
  }

  // The gradient of attention and the cut behind it, on packed tensors.
  void Rewire(int gradient, int merge, std::int32_t qkv) {
    LocalNode packed = g_.node(gradient);
    LocalNode turn = g_.node(merge);
    packed.op = backward_.packed;
    packed.inputs = {qkv, packed.inputs[3], packed.inputs[4], packed.inputs[5], packed.inputs[6]};
    const auto rotary = rotary_.find(merge);
    packed.outputs = rotary == rotary_.end() ? turn.outputs : std::vector<std::int32_t>{rotary->second.value};
    const std::int32_t positions = turn.inputs[3];
    if (rotary == rotary_.end()) {
      g_.Remove(merge);
      g_.Replace(gradient, std::move(packed));
      return;
    }
    turn.op = backward_.turn;
    turn.inputs = {rotary->second.value, positions};
    g_.Replace(merge, std::move(turn));
    g_.Replace(gradient, std::move(packed));
  }

  struct Turned {
    std::int32_t value = -1;
    graph::Attributes attributes;
  };

  const ops::PackedAttention::Way& forward_;
  const ops::PackedAttention::Way& backward_;
  absl::flat_hash_map<int, Turned> rotary_;  // by the cut: what is turned in its place
};

}  // namespace

void FuseAttention(const FuseOptions& options, Rewriter* graph) {
  InputSharer(options, graph).Run();
  for (const ops::PackedAttention& attention : ops::PackedAttentions()) {
    AttentionFuser fuser(options, attention, graph);
    fuser.ExchangeWholes();
    if (options.profile->fuses) fuser.Pack();
  }
}

}  // namespace engine::compile
