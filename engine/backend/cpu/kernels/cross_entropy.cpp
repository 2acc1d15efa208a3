#include "engine/backend/cpu/kernels/classes.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"
#include "engine/backend/cpu/kernels/loss_scale.h"

namespace engine::backend::cpu {
namespace {

constexpr std::int64_t kRows = 8;  // tokens of a task

// The terms of a token's loss beside its cross entropy: label smoothing and z-loss (ops/cross_entropy.cpp).
template <typename T>
struct LossTerms {
  explicit LossTerms(const graph::Attributes& attributes)
      : hit(static_cast<T>(1 - attributes.Float("smoothing", 0))),
        share(static_cast<T>(attributes.Float("smoothing", 0) /
                             static_cast<double>(attributes.Int("classes")))),
        z_loss(static_cast<T>(attributes.Float("z_loss", 0))) {}

  T hit;    // that the label's class has of the wanted distribution, 1 − ε, beside
  T share;  // what each class has, ε / V
  T z_loss;
};

}  // namespace

template <typename T>
void CrossEntropy(const KernelArgs& args) {
  const TensorView& logits = args.inputs[0];
  const Piece classes = Classes(logits, *args.attributes);
  const std::int32_t* labels = args.inputs[1].as<std::int32_t>();
  T* lse = args.outputs[0].as<T>();
  T* target = args.outputs[1].as<T>();
  const LossTerms<T> terms(*args.attributes);
  const std::int64_t columns = logits.shape[logits.shape.rank() - 1];
  ForEachBlock(args, args.inputs[1].shape.elements(), kRows, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t token = first; token < last; ++token) {
      const T* z = logits.as<T>() + token * columns;
      const T top = MaxOf(classes.length, z);
      const T sum = SumExp(classes.length, z, top);
      lse[token] = classes.length > 0 ? top + std::log(sum) : top;
      const std::int64_t label = labels[token] - classes.start;
      target[token] =
          labels[token] >= 0 && label >= 0 && label < classes.length ? terms.hit * z[label] : T(0);
      if (terms.share == 0 || labels[token] < 0) continue;
      target[token] += terms.share * SumOf<T>(classes.length, [&](std::int64_t i) { return z[i]; });
    }
  });
}

template <typename T>
void CrossEntropyGrad(const KernelArgs& args) {
  const TensorView& logits = args.inputs[0];
  const Piece classes = Classes(logits, *args.attributes);
  const std::int64_t columns = logits.shape[logits.shape.rank() - 1];
  const std::int32_t* labels = args.inputs[1].as<std::int32_t>();
  const T* lse = args.inputs[2].as<T>();
  const T* weight = args.inputs[3].as<T>();
  T* d_logits = args.outputs[0].as<T>();
  const LossTerms<T> terms(*args.attributes);
  ForEachBlock(args, args.inputs[1].shape.elements(), kRows, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t token = first; token < last; ++token) {
      const T* z = logits.as<T>() + token * columns;
      T* d = d_logits + token * columns;
      const T w = weight[token];
      const T shift = lse[token];
      const T of_softmax = terms.z_loss == 0 ? w : w * (1 + 2 * terms.z_loss * shift);
      for (std::int64_t i = 0; i < classes.length; ++i) d[i] = of_softmax * Exp(z[i] - shift);
      if (terms.share != 0) {
        for (std::int64_t i = 0; i < classes.length; ++i) d[i] -= w * terms.share;
      }
      std::fill(d + classes.length, d + columns, T(0));
      const std::int64_t label = labels[token] - classes.start;
      if (labels[token] >= 0 && label >= 0 && label < classes.length) d[label] -= w * terms.hit;
    }
  });
}

template <typename T>
void LossWeight(const KernelArgs& args) {
  const T scale = static_cast<T>(args.attributes->Float("scale") * LabelScale(args));
  const std::int32_t* labels = args.inputs[0].as<std::int32_t>();
  T* weight = args.outputs[0].as<T>();
  for (std::int64_t i = 0; i < args.inputs[0].shape.elements(); ++i)
    weight[i] = labels[i] >= 0 ? scale : T(0);
}

template <typename T>
void LossSum(const KernelArgs& args) {
  const T* lse = args.inputs[0].as<T>();
  const T* target = args.inputs[1].as<T>();
  const std::int32_t* labels = args.inputs[2].as<std::int32_t>();
  const double z_loss = args.attributes->Float("z_loss", 0);
  double sum = 0;
  for (std::int64_t i = 0; i < args.inputs[2].shape.elements(); ++i) {
    if (labels[i] < 0) continue;
    const auto log_sum = static_cast<double>(lse[i]);
    sum += log_sum - static_cast<double>(target[i]);
    if (z_loss != 0) sum += z_loss * log_sum * log_sum;
  }
  double* loss = args.outputs[0].as<double>();
  *loss = (Accumulates(args, 0) ? *loss : 0.0) + sum;
}

template <typename T>
void TokenScore(const KernelArgs& args) {
  const TensorView& logits = args.inputs[0];
  const Piece classes = Classes(logits, *args.attributes);
  const std::int64_t columns = logits.shape[logits.shape.rank() - 1];
  const std::int32_t* labels = args.inputs[1].as<std::int32_t>();
  const T* lse = args.inputs[2].as<T>();
  const T* target = args.inputs[3].as<T>();
  T* log_probability = args.outputs[0].as<T>();
  T* rank = args.outputs[1].as<T>();
  ForEachBlock(args, args.inputs[1].shape.elements(), kRows, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t token = first; token < last; ++token) {
      const bool counts = labels[token] >= 0;
      log_probability[token] = counts ? target[token] - lse[token] : T(0);
      rank[token] = 0;
      if (!counts) continue;
      const T* z = logits.as<T>() + token * columns;
      const T own = target[token];
      const std::int64_t lower = std::clamp<std::int64_t>(labels[token] - classes.start, 0, classes.length);
      std::int64_t before = 0;
      for (std::int64_t i = 0; i < lower; ++i) before += z[i] >= own ? 1 : 0;
      for (std::int64_t i = lower; i < classes.length; ++i) before += z[i] > own ? 1 : 0;
      rank[token] = static_cast<T>(before);
    }
  });
}

template void CrossEntropy<float>(const KernelArgs&);
template void CrossEntropy<double>(const KernelArgs&);
template void CrossEntropyGrad<float>(const KernelArgs&);
template void CrossEntropyGrad<double>(const KernelArgs&);
template void LossWeight<float>(const KernelArgs&);
template void LossWeight<double>(const KernelArgs&);
template void LossSum<float>(const KernelArgs&);
template void LossSum<double>(const KernelArgs&);
template void TokenScore<float>(const KernelArgs&);
template void TokenScore<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
