#include "engine/plan/fuse.h"

#include <absl/container/flat_hash_map.h>
#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <tuple>

#include "engine/base/units.h"
#include "engine/ops/fp8.h"
#include "engine/ops/fused.h"
#include "engine/ops/ops.h"
#include "engine/plan/quantize.h"

namespace engine::plan {
namespace {

using graph::OpDef;
using graph::Phase;

// A local graph under rewriting: who makes and who reads each value, kept true while nodes come and go.
class Rewriter {
 public:
  explicit Rewriter(LocalGraph* graph) : graph_(*graph), removed_(graph->nodes.size(), false) {
    readers_.resize(graph_.values.size());
    producer_.assign(graph_.values.size(), -1);
    for (int i = 0; i < size(); ++i) Link(i);
  }

  int size() const { return static_cast<int>(graph_.nodes.size()); }
  bool alive(int i) const { return !removed_[static_cast<size_t>(i)]; }
  LocalNode& node(int i) { return graph_.nodes[static_cast<size_t>(i)]; }
  const LocalValue& value(std::int32_t v) const { return graph_.values[static_cast<size_t>(v)]; }
  bool Is(int i, const OpDef& op) { return i >= 0 && alive(i) && node(i).op == &op; }
  int Producer(std::int32_t v) const { return producer_[static_cast<size_t>(v)]; }
  const std::vector<int>& Readers(std::int32_t v) const { return readers_[static_cast<size_t>(v)]; }
  int OnlyReader(std::int32_t v) const { return Readers(v).size() == 1 ? Readers(v)[0] : -1; }

  std::int32_t AddValue(LocalValue value) {
    graph_.values.push_back(std::move(value));
    readers_.emplace_back();
    producer_.push_back(-1);
    return static_cast<std::int32_t>(graph_.values.size() - 1);
  }

  void Remove(int i) {
    Unlink(i);
    removed_[static_cast<size_t>(i)] = true;
  }

  // Node i becomes another node, at its place in the order.
  void Replace(int i, LocalNode by) {
    Unlink(i);
    node(i) = std::move(by);
    Link(i);
  }

  // Node i is to run right after node `after` instead.
  void MoveAfter(int i, int after) { moved_[after].push_back(i); }

  // Drops removed nodes and moves those that are to be moved; indices are void after.
  void Finish() {
    std::vector<bool> elsewhere = removed_;
    for (const auto& [after, nodes] : moved_) {
      for (int i : nodes) elsewhere[static_cast<size_t>(i)] = true;
    }
    std::vector<LocalNode> nodes;
    nodes.reserve(graph_.nodes.size());
    for (int i = 0; i < size(); ++i) {
      if (!elsewhere[static_cast<size_t>(i)]) nodes.push_back(std::move(node(i)));
      const auto moved = moved_.find(i);
      if (moved == moved_.end()) continue;
      for (int m : moved->second) {
        if (alive(m)) nodes.push_back(std::move(node(m)));
      }
    }
    graph_.nodes = std::move(nodes);
  }

 private:
  void Link(int i) {
    for (std::int32_t input : node(i).inputs) readers_[static_cast<size_t>(input)].push_back(i);
    for (std::int32_t output : node(i).outputs) producer_[static_cast<size_t>(output)] = i;
  }
  void Unlink(int i) {
    for (std::int32_t input : node(i).inputs) std::erase(readers_[static_cast<size_t>(input)], i);
    for (std::int32_t output : node(i).outputs) {
      int& producer = producer_[static_cast<size_t>(output)];
      if (producer == i) producer = -1;
    }
  }

  LocalGraph& graph_;
  std::vector<bool> removed_;
  absl::flat_hash_map<int, std::vector<int>> moved_;  // by the node that they follow
  std::vector<std::vector<int>> readers_;
  std::vector<int> producer_;
};

class Fuser {
 public:
  Fuser(const FuseOptions& options, LocalGraph* graph)
      : options_(options), profile_(*options.profile), logits_bytes_(options.logits_bytes), g_(graph) {}

  // What does not depend on the format of products.
  void Before() {
    ForEach(&Fuser::ShareInput);
    ForEach(&Fuser::ExchangeWhole);
    ForEach(&Fuser::Bias);
    if (profile_.fuses) {
      ForEach(&Fuser::Rotary);
      ForEach(&Fuser::PackedAttention);
    }
    g_.Finish();
  }

  void After() {
    if (profile_.fuses) {
      ForEach(&Fuser::ActivationAgain);
      ForEach(&Fuser::DgradGelu);
      ForEach(&Fuser::Gelu);
      ForEach(&Fuser::AddNorm);
      ForEach(&Fuser::NormGradAdd);
      ForEach(&Fuser::BranchBias);
      ForEach(&Fuser::NormAgain);
      ForEach(&Fuser::QuantizeWithProducer);
      ForEach(&Fuser::Head);
    }
    g_.Finish();
  }

 private:
  void ForEach(void (Fuser::*rule)(int)) {
    for (int i = 0; i < g_.size(); ++i) {
      if (g_.alive(i)) (this->*rule)(i);
    }
  }

  bool SameChunk(const LocalNode& a, const LocalNode& b) const {
    return options_.chunk_of(a.layer) == options_.chunk_of(b.layer);
  }

  bool Has(const OpDef& op, std::int32_t value) const {
    return profile_.fuses(op, {g_.value(value).local, g_.value(value).dtype});
  }

  // An input of the iteration (positions) that is converted for each layer anew: once in a chunk.
  void ShareInput(int i) {
    const LocalNode again = g_.node(i);
    if (again.op != nullptr || g_.value(again.inputs[0]).kind != graph::ValueKind::kInput) return;
    const auto key = std::make_tuple(again.inputs[0], g_.value(again.outputs[0]).layout.ToString(),
                                     options_.chunk_of(again.layer));
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
      if (part < 0 || g_.node(part).collective != Collective::kAllToAll ||
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
    LocalValue whole = g_.value(packed);
    if (!g_.Is(attention, ops::kAttention) || !whole.layout.Set(exchange.axis, Placement::S(2))) return;
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
    LocalValue turned = g_.value(packed);
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

  // An activation that is run again for the weight gradient, and its own gradient: both read the same input.
  // Not where each is quantised as it is made.
  void ActivationAgain(int i) {
    const bool gelu = g_.Is(i, ops::kGelu);
    if ((!gelu && !g_.Is(i, ops::kSwiglu)) || g_.node(i).phase != Phase::kBackward) return;
    const OpDef& gradient_op = gelu ? ops::kGeluGrad : ops::kSwigluGrad;
    const OpDef& fused = gelu ? ops::kGeluGradAgain : ops::kSwigluGradAgain;
    LocalNode again = g_.node(i);
    if (!Has(fused, again.inputs[0]) || g_.Is(g_.OnlyReader(again.outputs[0]), ops::kQuantize)) return;
    for (int reader : std::vector<int>(g_.Readers(again.inputs[0]))) {
      if (!g_.Is(reader, gradient_op)) continue;
      const std::int32_t dy = g_.node(reader).inputs[1];
      if (g_.Producer(dy) > i) continue;
      again.op = &fused;
      again.inputs = {again.inputs[0], dy};
      again.outputs = {g_.node(reader).outputs[0], again.outputs[0]};
      g_.Remove(reader);
      g_.Replace(i, std::move(again));
      return;
    }
  }

  void DgradGelu(int i) {
    if (!g_.Is(i, ops::kGeluGrad) || g_.node(i).attributes.Int("tanh") == 0) return;
    LocalNode gelu = g_.node(i);
    const int producer = g_.Producer(gelu.inputs[1]);
    if (!g_.Is(producer, ops::kLinearDgrad) || g_.OnlyReader(gelu.inputs[1]) != i) return;
    if (!Has(ops::kLinearDgradGelu, gelu.inputs[0])) return;
    const LocalNode dgrad = g_.node(producer);
    gelu.op = &ops::kLinearDgradGelu;
    gelu.inputs = {dgrad.inputs[0], dgrad.inputs[1], gelu.inputs[0]};
    for (const auto& [name, item] : dgrad.attributes.items()) gelu.attributes.Set(name, item);
    g_.Remove(producer);
    g_.Replace(i, std::move(gelu));
  }

  void Gelu(int i) {
    if (!g_.Is(i, ops::kGelu) || g_.node(i).attributes.Int("tanh") == 0) return;
    const LocalNode gelu = g_.node(i);
    const int producer = g_.Producer(gelu.inputs[0]);
    if (!g_.Is(producer, ops::kLinear) || !Has(ops::kLinearGelu, gelu.inputs[0])) return;
    LocalNode linear = g_.node(producer);
    if (linear.inputs.size() != 3 || linear.phase != gelu.phase || linear.layer != gelu.layer) return;
    linear.op = &ops::kLinearGelu;
    linear.outputs = {gelu.outputs[0], gelu.inputs[0]};
    linear.attributes.Set("tanh", std::int64_t{1});
    g_.Remove(i);
    g_.Replace(producer, std::move(linear));
  }

  void AddNorm(int i) {
    const bool layer = g_.Is(i, ops::kLayerNorm);
    if (!layer && !g_.Is(i, ops::kRmsNorm)) return;
    const OpDef& fused = layer ? ops::kAddLayerNorm : ops::kAddRmsNorm;
    LocalNode norm = g_.node(i);
    const std::int32_t sum = norm.inputs[0];
    const int producer = g_.Producer(sum);
    if (!g_.Is(producer, ops::kAdd) || !Has(fused, sum) || g_.node(producer).phase != norm.phase ||
        !SameChunk(g_.node(producer), norm)) {
      return;
    }
    // The sum is then made where the norm is: nothing may read it before.
    for (int reader : g_.Readers(sum)) {
      if (reader < i) return;
    }
    const LocalNode add = g_.node(producer);
    norm.op = &fused;
    norm.inputs.insert(norm.inputs.begin() + 1, add.inputs[1]);
    norm.inputs[0] = add.inputs[0];
    norm.outputs.insert(norm.outputs.begin(), sum);
    // The bias of a row-parallel product, which was kept apart from it by the sum over the ranks.
    const int bias = g_.Producer(add.inputs[1]);
    const bool takes_bias = layer && g_.Is(bias, ops::kBiasAdd) && g_.OnlyReader(add.inputs[1]) == producer &&
                            g_.node(bias).phase == norm.phase && SameChunk(g_.node(bias), norm);
    if (takes_bias) {
      norm.inputs[1] = g_.node(bias).inputs[0];
      norm.inputs.push_back(g_.node(bias).inputs[1]);
      g_.Remove(bias);
    }
    g_.Remove(producer);
    g_.Replace(i, std::move(norm));
  }

  void NormGradAdd(int i) {
    if (!g_.Is(i, ops::kAdd)) return;
    const LocalNode add = g_.node(i);
    for (size_t side : {1, 0}) {
      const int producer = g_.Producer(add.inputs[side]);
      const bool layer = g_.Is(producer, ops::kLayerNormGrad);
      if (!layer && !g_.Is(producer, ops::kRmsNormGrad)) continue;
      const OpDef& fused = layer ? ops::kLayerNormGradAdd : ops::kRmsNormGradAdd;
      if (!Has(fused, add.inputs[side]) || g_.OnlyReader(add.inputs[side]) != i) continue;
      LocalNode norm = g_.node(producer);
      norm.op = &fused;
      norm.inputs.push_back(add.inputs[1 - side]);
      norm.outputs[0] = add.outputs[0];
      g_.Remove(producer);
      g_.Replace(i, std::move(norm));
      return;
    }
  }

  // A norm that is run again for weight gradients alone: its own gradient reads the same x, and makes the
  // norm's output on the way. The weight gradients, which nothing waits for, follow it. What is quantised by
  // the last iteration's scale is made by itself, of x and the statistics that are there.
  void NormAgain(int i) {
    const bool layer = g_.Is(i, ops::kLayerNorm);
    if ((!layer && !g_.Is(i, ops::kRmsNorm)) || g_.node(i).phase != Phase::kBackward) return;
    const LocalNode again = g_.node(i);
    const int forward = g_.Producer(again.inputs[0]);
    if (!g_.Is(forward, layer ? ops::kAddLayerNorm : ops::kAddRmsNorm)) return;
    if (g_.node(forward).phase != Phase::kForward || g_.node(forward).outputs[0] != again.inputs[0]) return;
    const int at = GradientOf(again, layer);
    if (at < 0) return;
    const std::vector<std::int32_t> statistics(g_.node(forward).outputs.begin() + 2,
                                               g_.node(forward).outputs.end());
    LocalNode gradient = g_.node(at);
    std::copy(statistics.begin(), statistics.end(), gradient.inputs.begin() + 3);
    const int quantize = g_.OnlyReader(again.outputs[0]);
    if (g_.Is(quantize, ops::kQuantize)) {
      LocalNode made = g_.node(quantize);
      if (!g_.Readers(made.outputs[0]).empty() || made.outputs.size() != 2 || made.phase != again.phase ||
          made.attributes.Int("dims") != 1) {
        return;
      }
      made.op = layer ? &ops::kLayerNormQuantizeAgain : &ops::kRmsNormQuantizeAgain;
      std::vector<std::int32_t> inputs = again.inputs;
      inputs.insert(inputs.end(), statistics.begin(), statistics.end());
      inputs.push_back(made.inputs[1]);
      made.inputs = std::move(inputs);
      made.outputs.erase(made.outputs.begin());
      g_.Replace(quantize, std::move(made));
    } else {
      const std::vector<int> late = WeightGradients(again.outputs[0], at);
      if (late.empty()) return;
      if (layer) gradient.inputs.push_back(again.inputs[2]);
      gradient.outputs.push_back(again.outputs[0]);
      gradient.attributes.Set("again", std::int64_t{1});
      for (int node : late) g_.MoveAfter(node, at);
    }
    g_.Remove(i);
    g_.Replace(at, std::move(gradient));
  }

  // The weight gradients before node `at` that alone read a value, and what quantises it for them; none if
  // anything else reads it.
  std::vector<int> WeightGradients(std::int32_t value, int at) {
    std::vector<int> found;
    for (int reader : g_.Readers(value)) {
      found.push_back(reader);
      if (!g_.Is(reader, ops::kQuantizeCurrent)) continue;
      for (std::int32_t made : g_.node(reader).outputs) {
        for (int user : g_.Readers(made)) {
          if (std::find(found.begin(), found.end(), user) == found.end()) found.push_back(user);
        }
      }
    }
    const bool all = std::all_of(found.begin(), found.end(), [&](int i) {
      const bool late =
          g_.Is(i, ops::kLinearWgrad) || g_.Is(i, ops::kLinearWgradFp8) || g_.Is(i, ops::kQuantizeCurrent);
      return late && i < at && SameChunk(g_.node(i), g_.node(at));
    });
    return all ? found : std::vector<int>();
  }

  // The fused gradient of this norm that alone reads its statistics, or −1.
  int GradientOf(const LocalNode& norm, bool layer) {
    int gradient = -1;
    for (size_t output = 1; output < norm.outputs.size(); ++output) {
      const int reader = g_.OnlyReader(norm.outputs[output]);
      if (gradient >= 0 && reader != gradient) return -1;
      gradient = reader;
    }
    return g_.Is(gradient, layer ? ops::kLayerNormGradAdd : ops::kRmsNormGradAdd) ? gradient : -1;
  }

  // The gradient of a bias whose column sums another op can take on the way: that of the branch that ended in
  // the residual stream, and that of an activation's input.
  void BranchBias(int i) {
    if (!g_.Is(i, ops::kBiasGrad) || g_.node(i).attributes.Int("dims") != 1) return;
    const LocalNode bias = g_.node(i);
    const int producer = g_.Producer(bias.inputs[0]);
    const bool layer = g_.Is(producer, ops::kLayerNormGradAdd);
    const bool gelu = g_.Is(producer, ops::kGeluGradAgain);
    if (!layer && !gelu && !g_.Is(producer, ops::kRmsNormGradAdd)) return;
    LocalNode norm = g_.node(producer);
    if (bias.inputs[0] != norm.outputs[0]) return;
    const size_t outputs = layer ? 3 : 2;
    if (norm.outputs.size() != outputs || (bias.accumulate & 1U) == 0 || !SameChunk(norm, bias)) return;
    norm.outputs.push_back(bias.outputs[0]);
    norm.accumulate |= 1U << outputs;
    norm.attributes.Set("bias", std::int64_t{1});
    g_.Remove(i);
    g_.Replace(producer, std::move(norm));
  }

  // Quantisation where the value is made; what nobody else reads is then not written in 16 bits at all.
  void QuantizeWithProducer(int i) {
    if (!g_.Is(i, ops::kQuantize)) return;
    const LocalNode quantize = g_.node(i);
    const std::int32_t x = quantize.inputs[0];
    const int producer = g_.Producer(x);
    if (producer < 0 || !g_.alive(producer) || g_.node(producer).phase != quantize.phase ||
        !SameChunk(g_.node(producer), quantize)) {
      return;
    }
    LocalNode made = g_.node(producer);
    const bool alone = g_.OnlyReader(x) == i;
    const bool bias = quantize.outputs.size() > 2;
    const bool rows = quantize.attributes.Int("dims") == 1;
    const std::vector<std::int32_t> before = made.outputs;
    if (made.op == &ops::kAddLayerNorm && made.inputs.size() == 4 && x == before[1] && alone && rows) {
      made.op = &ops::kAddLayerNormQuantize;
      made.outputs = {before[0], quantize.outputs[0], quantize.outputs[1], before[2], before[3]};
    } else if (made.op == &ops::kAddRmsNorm && x == before[1] && alone && rows) {
      made.op = &ops::kAddRmsNormQuantize;
      made.outputs = {before[0], quantize.outputs[0], quantize.outputs[1], before[2]};
    } else if (made.op == &ops::kGelu && alone && made.attributes.Int("tanh") != 0) {
      made.op = &ops::kGeluQuantize;
      made.outputs = quantize.outputs;
    } else if (made.op == &ops::kSwiglu && alone) {
      made.op = &ops::kSwigluQuantize;
      made.outputs = quantize.outputs;
    } else if (made.op == &ops::kGeluGrad && alone && made.attributes.Int("tanh") != 0) {
      made.op = &ops::kGeluGradQuantize;
      made.outputs = quantize.outputs;
      made.accumulate = quantize.accumulate;
    } else if (made.op == &ops::kSwigluGrad && alone && !bias) {
      made.op = &ops::kSwigluGradQuantize;
      made.outputs = quantize.outputs;
    } else if (made.op == &ops::kLayerNormGradAdd && x == before[0] && before.size() == 3 && rows) {
      made.op = &ops::kLayerNormGradAddQuantize;
      made.outputs = {before[0], quantize.outputs[0], quantize.outputs[1], before[1], before[2]};
      made.accumulate = (made.accumulate << 2) | (quantize.accumulate << 3);
      if (bias) made.outputs.push_back(quantize.outputs[2]);
    } else if (made.op == &ops::kRmsNormGradAdd && x == before[0] && before.size() == 2 && rows) {
      made.op = &ops::kRmsNormGradAddQuantize;
      made.outputs = {before[0], quantize.outputs[0], quantize.outputs[1], before[1]};
      made.accumulate = (made.accumulate << 2) | (quantize.accumulate << 2);
      if (bias) made.outputs.push_back(quantize.outputs[2]);
    } else {
      return;
    }
    made.inputs.push_back(quantize.inputs[1]);
    for (const auto& [name, item] : quantize.attributes.items()) made.attributes.Set(name, item);
    g_.Remove(i);
    g_.Replace(producer, std::move(made));
  }

  // Head, loss and their gradients in one, at the place of the last of the gradients.
  void Head(int i) {
    if (!g_.Is(i, ops::kCrossEntropyGrad)) return;
    const LocalNode gradient = g_.node(i);
    const std::int32_t logits = gradient.inputs[0];
    const int linear = g_.Producer(logits);
    const int statistics = g_.Producer(gradient.inputs[2]);
    const int weight = g_.Producer(gradient.inputs[3]);
    if (!g_.Is(linear, ops::kLinear) || g_.node(linear).inputs.size() != 2 ||
        !Has(ops::kLinearCrossEntropy, logits) || !g_.Is(statistics, ops::kCrossEntropy) ||
        g_.node(statistics).inputs[0] != logits || !g_.Is(weight, ops::kLossWeight) ||
        g_.Readers(logits).size() != 2 || g_.OnlyReader(gradient.inputs[3]) != i) {
      return;
    }
    const int loss = LossOf(statistics, i);
    const auto [dgrad, wgrad] = HeadGradients(gradient.outputs[0]);
    if (loss < 0 || dgrad < 0 || wgrad < 0) return;
    LocalNode fused = g_.node(std::max(dgrad, wgrad));
    const LocalNode& head = g_.node(linear);
    fused.op = &ops::kLinearCrossEntropy;
    fused.name = head.name + ".loss";
    fused.inputs = {head.inputs[0], head.inputs[1], gradient.inputs[1]};
    fused.outputs = {g_.node(dgrad).outputs[0], g_.node(wgrad).outputs[0], g_.node(loss).outputs[0]};
    fused.accumulate = 0b110;
    fused.attributes = head.attributes;
    fused.attributes.Set("classes", gradient.attributes.Int("classes"));
    fused.attributes.Set("scale", g_.node(weight).attributes.Float("scale"));
    fused.attributes.Set("chunk", Chunk(g_.value(logits)));
    const int at = std::max(dgrad, wgrad);
    for (int gone : {linear, statistics, weight, loss, i, std::min(dgrad, wgrad)}) g_.Remove(gone);
    g_.Replace(at, std::move(fused));
  }

  // The loss_sum that alone, beside the gradient, reads a cross_entropy's statistics, or −1.
  int LossOf(int statistics, int gradient) {
    const LocalNode& node = g_.node(statistics);
    const int loss = g_.OnlyReader(node.outputs[1]);
    if (!g_.Is(loss, ops::kLossSum)) return -1;
    for (int reader : g_.Readers(node.outputs[0])) {
      if (reader != loss && reader != gradient) return -1;
    }
    return loss;
  }

  std::pair<int, int> HeadGradients(std::int32_t d_logits) {
    int dgrad = -1;
    int wgrad = -1;
    for (int reader : g_.Readers(d_logits)) {
      if (g_.Is(reader, ops::kLinearDgrad)) dgrad = reader;
      if (g_.Is(reader, ops::kLinearWgrad)) wgrad = reader;
    }
    return g_.Readers(d_logits).size() == 2 ? std::pair(dgrad, wgrad) : std::pair(-1, -1);
  }

  // Tokens of a chunk: equal chunks, a multiple of 128 tokens where there are so many.
  std::int64_t Chunk(const LocalValue& logits) const {
    const std::int64_t tokens = logits.local[0] * logits.local[1];
    const std::int64_t chunks = (logits.local_bytes() + logits_bytes_ - 1) / logits_bytes_;
    return std::min(tokens, RoundUp((tokens + chunks - 1) / chunks, 128));
  }

  struct Turned {
    std::int32_t value = -1;
    graph::Attributes attributes;
  };

  const FuseOptions& options_;
  const DeviceProfile& profile_;
  const std::int64_t logits_bytes_;
  Rewriter g_;
  // By input, layout and chunk: what it was converted to first.
  absl::flat_hash_map<std::tuple<std::int32_t, std::string, std::int32_t>, std::int32_t> converted_inputs_;
  absl::flat_hash_map<int, Turned> rotary_;  // by qkv_split or qkv_merge: what is turned in its place
};

}  // namespace

void Fuse(const FuseOptions& options, LocalGraph* graph) {
  Fuser(options, graph).Before();
  const bool fp8 = !options.fp8.gradients.empty();
  if (fp8) QuantizeLinears(options.fp8, options.layers, graph);
  Fuser(options, graph).After();
  if (fp8 && options.fp8.head) QuantizeHead(options.fp8, graph);
}

}  // namespace engine::plan
