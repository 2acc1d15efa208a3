#include <cstring>

#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"
#include "engine/base/status.h"
#include "engine/plan/control.h"
#include "engine/plan/optimizer.h"

namespace engine::backend::cpu {
namespace {

std::int64_t Bytes(const TensorView& view) { return view.shape.elements() * SizeOf(view.dtype); }

// The update of a bucket has the bucket's own learning rate, where a group gives it one.
double LearningRate(const graph::Attributes& attributes, const double* control) {
  return control[plan::kLearningRate] * attributes.Float("learning_rate_scale", 1);
}

}  // namespace

std::int64_t SumSquaresScratch(Types inputs, Types, const graph::Attributes&) {
  return (inputs[0].shape.elements() + kElementBlock - 1) / kElementBlock *
         static_cast<std::int64_t>(sizeof(double));
}

template <typename T>
void SumSquares(const KernelArgs& args) {
  const T* x = args.inputs[0].as<T>();
  const std::int64_t count = args.inputs[0].shape.elements();
  auto* partial = reinterpret_cast<double*>(args.scratch.data());
  ForEachBlock(args, count, kElementBlock, [&](std::int64_t first, std::int64_t last) {
    partial[first / kElementBlock] = SumOf<double>(last - first, [&](std::int64_t i) {
      const auto value = static_cast<double>(x[first + i]);
      return value * value;
    });
  });
  double sum = 0;
  for (std::int64_t block = 0; block * kElementBlock < count; ++block) sum += partial[block];
  *args.outputs[0].as<double>() += sum;
}

// plan/optimizer.cpp has the formulas.
template <typename T>
struct AdamWStep {
  AdamWStep(const graph::Attributes& attributes, const double* control)
      : beta1(static_cast<T>(attributes.Float("beta1"))),
        beta2(static_cast<T>(attributes.Float("beta2"))),
        rest1(static_cast<T>(1 - attributes.Float("beta1"))),
        rest2(static_cast<T>(1 - attributes.Float("beta2"))),
        correct1(static_cast<T>(1 / (1 - std::pow(attributes.Float("beta1"), control[plan::kStep])))),
        correct2(static_cast<T>(1 / (1 - std::pow(attributes.Float("beta2"), control[plan::kStep])))),
        rate(static_cast<T>(LearningRate(attributes, control))),
        factor(static_cast<T>(control[plan::kGradientFactor])),
        epsilon(static_cast<T>(attributes.Float("epsilon"))),
        decay(static_cast<T>(attributes.Float("weight_decay"))) {}

  T beta1, beta2, rest1, rest2, correct1, correct2, rate, factor, epsilon, decay;
};

// `step` by value: read through a reference it could alias the stores, and the loop would not vectorise.
template <typename T>
void Update(const AdamWStep<T> step, std::int64_t count, const T* __restrict grad, T* __restrict param,
            T* __restrict m, T* __restrict v) {
  for (std::int64_t i = 0; i < count; ++i) {
    const T g = grad[i] * step.factor;
    const T first = step.beta1 * m[i] + step.rest1 * g;
    const T second = step.beta2 * v[i] + step.rest2 * g * g;
    const T direction = first * step.correct1 / (std::sqrt(second * step.correct2) + step.epsilon);
    m[i] = first;
    v[i] = second;
    param[i] -= step.rate * (direction + step.decay * param[i]);
  }
}

template <typename T>
void AdamW(const KernelArgs& args) {
  const AdamWStep<T> step(*args.attributes, args.inputs[4].as<double>());
  if (step.factor == 0) return;  // a skipped update
  const T* grad = args.inputs[1].as<T>();
  T* param = args.outputs[0].as<T>();
  T* m = args.outputs[1].as<T>();
  T* v = args.outputs[2].as<T>();
  ForEachBlock(args, args.inputs[0].shape.elements(), kElementBlock,
               [&](std::int64_t first, std::int64_t last) {
                 Update(step, last - first, grad + first, param + first, m + first, v + first);
               });
}

template <typename T>
struct SgdStep {
  SgdStep(const graph::Attributes& attributes, const double* control)
      : momentum(static_cast<T>(attributes.Float("momentum"))),
        rate(static_cast<T>(LearningRate(attributes, control))),
        factor(static_cast<T>(control[plan::kGradientFactor])),
        decay(static_cast<T>(attributes.Float("weight_decay"))) {}

  T momentum, rate, factor, decay;
};

template <typename T>
void Update(const SgdStep<T> step, std::int64_t count, const T* __restrict grad, T* __restrict param,
            T* __restrict momentum) {
  for (std::int64_t i = 0; i < count; ++i) {
    const T direction = grad[i] * step.factor + step.decay * param[i];
    momentum[i] = step.momentum * momentum[i] + direction;
    param[i] -= step.rate * momentum[i];
  }
}

template <typename T>
void Sgd(const KernelArgs& args) {
  const SgdStep<T> step(*args.attributes, args.inputs[3].as<double>());
  if (step.factor == 0) return;  // a skipped update
  const T* grad = args.inputs[1].as<T>();
  T* param = args.outputs[0].as<T>();
  T* momentum = args.outputs[1].as<T>();
  ForEachBlock(args, args.inputs[0].shape.elements(), kElementBlock,
               [&](std::int64_t first, std::int64_t last) {
                 Update(step, last - first, grad + first, param + first, momentum + first);
               });
}

template <typename T>
void SignStep(const KernelArgs& args) {
  if (args.inputs[2].as<double>()[plan::kGradientFactor] == 0) return;  // a skipped update
  const T step = static_cast<T>(args.attributes->Float(plan::kSignStep));
  const T* grad = args.inputs[1].as<T>();
  T* param = args.outputs[0].as<T>();
  for (std::int64_t i = 0; i < args.inputs[0].shape.elements(); ++i)
    param[i] -= step * (static_cast<T>(grad[i] > T(0)) - static_cast<T>(grad[i] < T(0)));
}

// The coefficient of Megatron-LM's clip_grad: clip / (norm + 1e-6), where it is below 1. The attributes
// `constant` and `dynamic` choose its ConstantGradScaler or DynamicGradScaler.
void ClipFactor(const KernelArgs& args) {
  double* control = args.outputs[0].as<double>();
  plan::PickLearningRate(control);
  const double scale = control[plan::kLossScale];
  const double factor = control[plan::kGradientFactor];  // of the program
  const double norm = std::sqrt(args.inputs[0].as<double>()[1]) * factor / scale;
  const double clip = args.attributes->Float("clip");
  const bool dynamic = args.attributes->Int("dynamic", 0) != 0;
  const bool skips = dynamic || args.attributes->Int("constant", 0) != 0;
  control[plan::kGradientNorm] = norm;
  if (skips && !std::isfinite(norm)) {
    control[plan::kGradientFactor] = 0;
    control[plan::kSkipped] += 1;
    if (!dynamic) return;
    control[plan::kCleanIterations] = 0;
    control[plan::kHysteresis] -= 1;
    if (control[plan::kHysteresis] <= 0) {
      control[plan::kLossScale] = std::max(scale * 0.5, args.attributes->Float("min_scale"));
    }
    return;
  }
  control[plan::kStep] += 1;
  control[plan::kGradientFactor] = (clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0) * factor / scale;
  if (!dynamic) return;
  control[plan::kCleanIterations] += 1;
  if (control[plan::kCleanIterations] >= static_cast<double>(args.attributes->Int("window"))) {
    control[plan::kCleanIterations] = 0;
    control[plan::kHysteresis] = static_cast<double>(args.attributes->Int("hysteresis"));
    control[plan::kLossScale] = scale * 2;
  }
}

template <typename T>
void AddShard(const KernelArgs& args) {
  const T* x = args.inputs[0].as<T>();
  T* out = args.outputs[0].as<T>();
  const std::int64_t elements = args.outputs[0].shape.elements();
  ENGINE_CHECK(args.inputs[0].shape.elements() == elements, "add_shard of {} elements into {}",
               args.inputs[0].shape.elements(), elements);
  const bool accumulate = (args.accumulate & 1U) != 0;
  ForEachBlock(args, elements, kElementBlock, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) out[i] = accumulate ? out[i] + x[i] : x[i];
  });
}

void Zero(const KernelArgs& args) {
  auto* out = args.outputs[0].as<std::byte>();
  ForEachBlock(args, Bytes(args.outputs[0]), kElementBlock * 16, [&](std::int64_t first, std::int64_t last) {
    std::memset(out + first, 0, static_cast<std::size_t>(last - first));
  });
}

void Copy(const KernelArgs& args) {
  const auto* in = args.inputs[0].as<std::byte>();
  auto* out = args.outputs[0].as<std::byte>();
  ForEachBlock(args, Bytes(args.outputs[0]), kElementBlock * 16, [&](std::int64_t first, std::int64_t last) {
    std::memcpy(out + first, in + first, static_cast<std::size_t>(last - first));
  });
}

template void SumSquares<float>(const KernelArgs&);
template void SumSquares<double>(const KernelArgs&);
template void AddShard<float>(const KernelArgs&);
template void AddShard<double>(const KernelArgs&);
template void AdamW<float>(const KernelArgs&);
template void AdamW<double>(const KernelArgs&);
template void SignStep<float>(const KernelArgs&);
template void SignStep<double>(const KernelArgs&);
template void Sgd<float>(const KernelArgs&);
template void Sgd<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
