#include "engine/compile/fuse_norm.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/compile/fuse_rules.h"
#include "engine/ops/fp8.h"
#include "engine/ops/fusion.h"

namespace engine::compile {
namespace {

class RepeatedNormFuser : public FusionRules {
 public:
  RepeatedNormFuser(const FuseOptions& options, const ops::RepeatedNorm& of, Rewriter* graph)
      : FusionRules(options, graph), of_(of) {}

  void Run() { Apply<RepeatedNormFuser>({&RepeatedNormFuser::Norm}); }

 private:
  void Norm(int i) {
    if (!g_.Is(i, *of_.norm) || g_.node(i).phase != graph::Phase::kBackward) return;
    const LocalNode again = g_.node(i);
    const int forward = g_.Producer(again.inputs[0]);
    if (!g_.Is(forward, *of_.forward) || g_.node(forward).phase != graph::Phase::kForward ||
        g_.node(forward).outputs[0] != again.inputs[0]) {
      return;
    }
    const int at = GradientOf(again);
    if (at < 0) return;
    const std::vector<std::int32_t> statistics(g_.node(forward).outputs.begin() + 2,
                                               g_.node(forward).outputs.end());
    LocalNode gradient = g_.node(at);
    for (size_t k = 0; k < statistics.size(); ++k)
      std::replace(gradient.inputs.begin(), gradient.inputs.end(), again.outputs[k + 1], statistics[k]);
    const int quantize = g_.OnlyReader(again.outputs[0]);
    const bool merged = g_.Is(quantize, ops::kQuantize) ? Quantize(again, statistics, quantize)
                                                        : MakeOnTheWay(again, at, &gradient);
    if (!merged) return;
    g_.Remove(i);
    g_.Replace(at, std::move(gradient));
  }

  // The norm is made quantised, by the node that would have quantised it.
  bool Quantize(const LocalNode& again, const std::vector<std::int32_t>& statistics, int quantize) {
    LocalNode made = g_.node(quantize);
    if (!g_.Readers(made.outputs[0]).empty() || made.outputs.size() != 2 || made.phase != again.phase ||
        made.attributes.Int("dims") != 1) {
      return false;
    }
    made.op = of_.quantize;
    if (again.attributes.Has(of_.gain_offset))
      made.attributes.Set(of_.gain_offset, again.attributes.Float(of_.gain_offset));
    std::vector<std::int32_t> inputs = again.inputs;
    inputs.insert(inputs.end(), statistics.begin(), statistics.end());
    inputs.push_back(made.inputs[1]);
    made.inputs = std::move(inputs);
    made.outputs.erase(made.outputs.begin());
    g_.Replace(quantize, std::move(made));
    return true;
  }

  // The gradient makes the norm, of what else than x and gamma that takes.
  bool MakeOnTheWay(const LocalNode& again, int at, LocalNode* gradient) {
    const std::vector<int> late = WeightGradients(again.outputs[0], at);
    if (late.empty()) return false;
    gradient->inputs.insert(gradient->inputs.end(), again.inputs.begin() + 2, again.inputs.end());
    gradient->outputs.push_back(again.outputs[0]);
    gradient->attributes.Set("again", std::int64_t{1});
    for (int node : late) g_.MoveAfter(node, at);
    return true;
  }

  // The weight gradients before node `at` that alone read a value, and what quantises it for them; none if
  // anything else reads it.
  std::vector<int> WeightGradients(std::int32_t value, int at) const {
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
      const bool late = OnlyAdds(g_.node(i)) || g_.Is(i, ops::kQuantizeCurrent);
      return late && i < at && SameChunk(g_.node(i), g_.node(at));
    });
    return all ? found : std::vector<int>();
  }

  // Into accumulators, which are read when the iteration's backward passes have ended: nothing waits for it.
  static bool OnlyAdds(const LocalNode& node) {
    return node.accumulate != 0 && node.accumulate == (1U << node.outputs.size()) - 1;
  }

  // The fused gradient of this norm that alone reads its statistics, or −1.
  int GradientOf(const LocalNode& norm) const {
    int gradient = -1;
    for (size_t output = 1; output < norm.outputs.size(); ++output) {
      const int reader = g_.OnlyReader(norm.outputs[output]);
      if (gradient >= 0 && reader != gradient) return -1;
      gradient = reader;
    }
    return g_.Is(gradient, *of_.gradient) ? gradient : -1;
  }

  const ops::RepeatedNorm& of_;
};

}  // namespace

void FuseRepeatedNorms(const FuseOptions& options, Rewriter* graph) {
  for (const ops::RepeatedNorm& norm : ops::RepeatedNorms()) RepeatedNormFuser(options, norm, graph).Run();
}

}  // namespace engine::compile
