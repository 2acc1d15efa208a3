#include "engine/compile/fuse.h"

#include <algorithm>
#include <tuple>

#include "engine/base/units.h"
#include "engine/compile/fuse_attention.h"
#include "engine/compile/fuse_rules.h"
#include "engine/compile/quantize.h"
#include "engine/ops/fp8.h"
#include "engine/ops/fused.h"
#include "engine/ops/ops.h"

namespace engine::compile {
namespace {

using graph::OpDef;
using graph::Phase;

class Fuser : public FusionRules {
 public:
  using FusionRules::FusionRules;

  void Run() {
    if (profile_.fuses) {
      Apply<Fuser>({&Fuser::ActivationAgain, &Fuser::DgradGelu, &Fuser::Gelu, &Fuser::AddNorm,
                    &Fuser::NormGradAdd, &Fuser::BranchBias, &Fuser::NormAgain, &Fuser::QuantizeWithProducer,
                    &Fuser::Head});
    }
    g_.Finish();
  }

 private:
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
    if (linear.inputs.size() != 3 || linear.phase != gelu.phase || linear.unit != gelu.unit) return;
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
  std::int64_t Chunk(const plan::LocalValue& logits) const {
    const std::int64_t tokens = logits.local.elements(0, logits.local.rank() - 1);
    const std::int64_t chunks = (logits.local_bytes() + options_.logits_bytes - 1) / options_.logits_bytes;
    return std::min(tokens, RoundUp((tokens + chunks - 1) / chunks, 128));
  }
};

}  // namespace

void Fuse(const FuseOptions& options, LocalGraph* graph) {
  FuseAttention(options, graph);
  const bool fp8 = !options.fp8.gradients.empty();
  if (fp8) QuantizeLinears(options.fp8, options.units, graph);
  Fuser(options, graph).Run();
  if (fp8 && options.fp8.head) QuantizeHead(options.fp8, graph);
}

}  // namespace engine::compile
