// Drop: an expert takes at most so many tokens of a sample (GShard, arXiv:2006.16668; Switch Transformer, arXiv:2101.03961)
//
//   drop(choice[b, …, k] i32, weight[b, …, k]) → kept[b, …, k] i32
//     kept: the choice, or −1 where its expert has more than attribute cap choices of a group of samples and this is not one of
//     those that stay: by attribute by "weight" the cap of largest weight, of equals the earlier; "position" the earliest
//   drop_count(kept) → how many choices are −1, float64; accumulates over microbatches
//
// Attributes experts: how many there are; samples: how many a group has, 1 unless given. Whole samples are counted, so that every layout drops the same tokens. A token keeps its other choices, and their
// weights as they are. No gradient: a choice without a row has none.
#include "engine/ops/common.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

Types InferDrop(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 2, 2, "drop"));
  if (inputs[0].shape != inputs[1].shape || inputs[0].shape.rank() < 2)
    return Internal("drop of {} by {}", inputs[0].shape.ToString(), inputs[1].shape.ToString());
  const std::string& by = attributes.String("by");
  if (attributes.Int("cap") < 1 || (by != "weight" && by != "position"))
    return Internal("drop by {} beyond {}", by, attributes.Int("cap"));
  const std::int64_t samples = attributes.Int("samples", 1);
  if (samples < 1 || inputs[0].shape[0] % samples != 0)
    return Internal("drop of {} in groups of {} samples", inputs[0].shape.ToString(), samples);
  return std::vector<TensorType>{inputs[0]};
}
Types InferCount(TypeSpan inputs, const Attributes&) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 1, 1, "drop_count"));
  return std::vector<TensorType>{{.shape = {}, .dtype = DType::kF64}};
}

Work DropWork(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {.flops = 0, .bytes = Bytes(inputs) + Bytes(outputs)};
}

// A rank has whole groups. Who makes them sees to it that they are whole where the batch is cut over ranks
// (model/modules/experts.cpp); ranks that share a sequence share samples in any number.
std::vector<Signature> DropSignatures(TypeSpan inputs, const Attributes& attributes, const AxisRule& rule) {
  const Placement r = Placement::R();
  const Placement samples = Placement::S(0);
  const std::int64_t of_group = attributes.Int("samples", 1);
  // Along tp samples are never split where ep splits them, and along cp not at all.
  if ((of_group > 1 && of_group == inputs[0].shape[0]) || rule.activations.Has(Dim::kSequence))
    return {{{r, r}, {r}}};
  return {{{r, r}, {r}}, {{samples, samples}, {samples}}};
}
std::vector<Signature> CountSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  std::vector<Signature> signatures = {{{Placement::R()}, {Placement::R()}}};
  for (int dim = 0; dim < inputs[0].shape.rank(); ++dim)
    signatures.push_back({{Placement::S(dim)}, {Placement::P()}});
  return signatures;
}

}  // namespace

const OpDef kDrop{.name = "drop", .infer = InferDrop, .work = DropWork, .signatures = DropSignatures};
const OpDef kDropCount{.name = "drop_count",
                       .infer = InferCount,
                       .work = DropWork,
                       .signatures = CountSignatures,
                       .accumulates = 1};

}  // namespace engine::ops
