#include "engine/compile/fuse_attention.h"

#include <absl/container/flat_hash_map.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "engine/compile/fuse_rules.h"
#include "engine/graph/attention_inputs.h"
#include "engine/ops/fusion.h"

namespace engine::compile {
namespace {

using graph::AttentionInputs;

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
  static constexpr std::size_t kParts = 3;  // queries, keys and values

  AttentionInputs InputsOf(const LocalNode& attention) const {
    std::vector<graph::TensorType> types;
    for (const std::int32_t input : attention.inputs) types.push_back(g_.type(input));
    return graph::InputsOfAttention(types, {.backward = attention.op == backward_.attention});
  }

  // Positions `of` an input, in the layout of those that attention reads: attention's own, where they are of the same input;
  // else those that node `spare`, which is not needed any more, or one before it in the chunk converts. −1: neither.
  std::int32_t WholePositions(std::int32_t of, std::int32_t of_attention, int spare) {
    const int producer = g_.Producer(of_attention);
    if (producer < 0 || g_.node(producer).op != nullptr) return of == of_attention ? of : -1;
    LocalNode convert = g_.node(producer);
    const std::int32_t source = convert.inputs[0];
    if (source == of) return of_attention;
    if (g_.value(of).kind != graph::ValueKind::kInput ||
        g_.value(of).layout.ToString() != g_.value(source).layout.ToString()) {
      return -1;
    }
    const auto key =
        std::make_tuple(of, g_.value(of_attention).layout.ToString(), options_.chunk_of(convert.unit));
    const auto [found, is_first] = whole_positions_.try_emplace(key, -1);
    if (!is_first) return found->second;
    plan::LocalValue whole = g_.value(of_attention);
    whole.name = fmt::format("{}@{}", g_.value(of).name, whole.layout.ToString());
    convert.name = fmt::format("{}.{}", g_.value(of).name, Name(convert.collective));
    convert.inputs = {of};
    found->second = g_.AddValue(std::move(whole));
    convert.outputs = {found->second};
    g_.Replace(spare, std::move(convert));
    return found->second;
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
    const AttentionInputs at = InputsOf(g_.node(attention));
    if (placed && !at.has_positions()) return;
    const int spare = parts[0] == last ? parts[1] : parts[0];
    const std::int32_t positions =
        placed ? WholePositions(split.inputs[1], g_.node(attention).inputs[at.positions], spare) : -1;
    if (placed && positions < 0) return;
    const Shape& keys = g_.value(split.outputs[1]).local;
    whole.local = {keys[0], keys[1], keys[2], whole.local[3], whole.local[4]};
    whole.name = fmt::format("{}@{}", whole.name, whole.layout.ToString());
    exchange.name = fmt::format("{}.{}", g_.value(packed).name, Name(exchange.collective));
    exchange.inputs = {packed};
    exchange.outputs = {g_.AddValue(std::move(whole))};
    for (int part : parts) {
      if (part != last && (positions < 0 || g_.Producer(positions) != part)) g_.Remove(part);
    }
    split.inputs[0] = exchange.outputs[0];
    if (placed) split.inputs[1] = positions;
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
          const AttentionInputs at = InputsOf(user);
          if (node.inputs.size() < 2 || !at.has_positions() || at.has_sinks() || at.has_biases())
            return false;
          if (!std::equal(node.outputs.begin(), node.outputs.end(), user.inputs.begin())) return false;
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
      attention.inputs = Packed(RotatedOr(i, qkv), attention);
      g_.Replace(user, std::move(attention));
    }
    const auto rotary = rotary_.find(i);
    if (rotary == rotary_.end()) return g_.Remove(i);
    LocalNode turn = split;
    turn.op = forward_.turn;
    turn.outputs = {rotary->second.value};
    g_.Replace(i, std::move(turn));
  }

  // The inputs of attention on parts as that on the packed tensor has them.
  static std::vector<std::int32_t> Packed(std::int32_t qkv, const LocalNode& attention) {
    std::vector<std::int32_t> inputs = {qkv};
    inputs.insert(inputs.end(), attention.inputs.begin() + kParts, attention.inputs.end());
    return inputs;
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
    packed.inputs = Packed(qkv, packed);
    const auto rotary = rotary_.find(merge);
    packed.outputs = rotary == rotary_.end() ? turn.outputs : std::vector<std::int32_t>{rotary->second.value};
    if (rotary == rotary_.end()) {
      g_.Remove(merge);
      g_.Replace(gradient, std::move(packed));
      return;
    }
    const std::int32_t positions = turn.inputs[kParts];
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
  // By input, layout and chunk: what WholePositions converted.
  absl::flat_hash_map<std::tuple<std::int32_t, std::string, std::int32_t>, std::int32_t> whole_positions_;
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
