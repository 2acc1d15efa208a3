#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/backend/cpu/kernels/caches.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"
#include "engine/graph/alibi.h"

namespace engine::backend::cpu {
namespace {

// The problem of one query head.
template <typename T>
struct CachedHead {
  const T* q = nullptr;
  const T* k = nullptr;  // of row 0
  const T* v = nullptr;
  const T* biases = nullptr;  // of distance −M; null: none
  const T* sink = nullptr;    // null: none
  T* o = nullptr;
  double slope = 0;  // of the linear bias
};

// The sizes and attributes of the problem, which all heads share.
struct CachedProblem {
  explicit CachedProblem(const KernelArgs& args)
      : rows(args.inputs[3].shape[1]),
        width(args.inputs[0].shape[3]),
        value_width(args.inputs[2].shape[3]),
        key_stride(args.inputs[1].shape[2] * width),
        value_stride(args.inputs[2].shape[2] * value_width),
        window(args.attributes->Int("window", 0)),
        distance(args.attributes->Int("distance", 0)),
        scale(args.attributes->Float("scale")),
        softcap(args.attributes->Float("softcap", 0)) {}

  std::int64_t rows, width, value_width, key_stride, value_stride, window, distance;
  double scale, softcap;
};

template <typename T>
void AttendCached(const CachedProblem& p, const CachedHead<T>& head, std::int64_t position,
                  std::vector<T>* scores) {
  const std::int64_t first = p.window > 0 ? std::max<std::int64_t>(0, position - p.window + 1) : 0;
  const std::int64_t count = position + 1 - first;
  scores->resize(static_cast<std::size_t>(count));
  T* const score = scores->data();
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t j = first + i;
    T value = static_cast<T>(p.scale) * Dot(p.width, head.q, head.k + (j % p.rows) * p.key_stride);
    if (p.softcap > 0) value = static_cast<T>(p.softcap) * std::tanh(value / static_cast<T>(p.softcap));
    const std::int64_t distance = j - position;
    if (head.biases != nullptr)
      value += head.biases[std::clamp(distance, -p.distance, p.distance) + p.distance];
    score[i] = value + static_cast<T>(head.slope * static_cast<double>(distance));
  }
  T top = MaxOf(count, score);
  if (head.sink != nullptr) top = std::max(top, *head.sink);
  for (std::int64_t i = 0; i < count; ++i) score[i] = Exp(score[i] - top);
  T sum = SumOf<T>(count, [&](std::int64_t i) { return score[i]; });
  if (head.sink != nullptr) sum += Exp(*head.sink - top);
  std::fill_n(head.o, p.value_width, T(0));
  for (std::int64_t i = 0; i < count; ++i) {
    const T share = score[i] / sum;
    const T* v = head.v + ((first + i) % p.rows) * p.value_stride;
    for (std::int64_t e = 0; e < p.value_width; ++e) head.o[e] += share * v[e];
  }
}

}  // namespace

template <typename T>
void CacheUpdate(const KernelArgs& args) {
  Keep<T>(args.inputs[0], args.inputs[1], args.inputs[2].as<std::int32_t>(),
          args.inputs[3].as<std::int32_t>(), args.outputs[0]);
}

template <typename T>
void CachedAttention(const KernelArgs& args) {
  constexpr std::size_t kPositions = 5;
  const CachedProblem p(args);
  const TensorView& q = args.inputs[0];
  const TensorView& keys = args.outputs[1];
  const TensorView& values = args.outputs[2];
  const std::int32_t* positions = args.inputs[kPositions].as<std::int32_t>();
  const std::int32_t* slots = args.inputs[kPositions + 1].as<std::int32_t>();
  Keep<T>(args.inputs[1], args.inputs[3], positions, slots, keys);
  Keep<T>(args.inputs[2], args.inputs[4], positions, slots, values);
  std::size_t at = kPositions + 2;
  const TensorView* sinks =
      args.inputs.size() > at && args.inputs[at].shape.rank() == 1 ? &args.inputs[at++] : nullptr;
  const TensorView* biases = args.inputs.size() > at ? &args.inputs[at] : nullptr;
  const bool alibi = args.attributes->Int("alibi", 0) != 0;
  const std::int64_t heads = q.shape[2];
  const std::int64_t group = heads / keys.shape[2];
  ForEachBlock(args, q.shape.elements(0, 3), 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<T> scores;
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t h = row % heads;
      const std::int64_t sample = row / heads;
      const std::int64_t slot = slots[sample];
      T* const o = args.outputs[0].as<T>() + row * p.value_width;
      if (slot < 0) {
        std::fill_n(o, p.value_width, T(0));
        continue;
      }
      const std::int64_t logical = q.extent.dims.empty() ? h : LogicalIndex(q.extent.dims[2], h);
      const auto of_head = [&](const TensorView* weights) -> const T* {
        if (weights == nullptr) return nullptr;
        const std::int64_t width = weights->shape.elements() / weights->shape[0];
        return weights->as<T>() + (logical - OnePiece(*weights, 0).start) * width;
      };
      AttendCached<T>(p,
                      {.q = q.as<T>() + row * p.width,
                       .k = keys.as<T>() + slot * p.rows * p.key_stride + (h / group) * p.width,
                       .v = values.as<T>() + slot * p.rows * p.value_stride + (h / group) * p.value_width,
                       .biases = of_head(biases),
                       .sink = of_head(sinks),
                       .o = o,
                       .slope = alibi ? graph::AlibiSlope(logical, q.logical[2]) : 0},
                      positions[sample], &scores);
    }
  });
}

template <typename T>
void TakeTokens(const KernelArgs& args) {
  const TensorView& x = args.inputs[0];
  const std::int32_t* index = args.inputs[1].as<std::int32_t>();
  const std::int64_t rows = args.inputs[1].shape[1];
  const std::int64_t width = x.shape.elements(2, x.shape.rank());
  T* y = args.outputs[0].as<T>();
  for (std::int64_t r = 0; r < x.shape[0] * rows; ++r) {
    const std::int64_t token = (r / rows) * x.shape[1] + index[r];
    std::copy_n(x.as<T>() + token * width, width, y + r * width);
  }
}

template void CacheUpdate<float>(const KernelArgs&);
template void CacheUpdate<double>(const KernelArgs&);
template void CachedAttention<float>(const KernelArgs&);
template void CachedAttention<double>(const KernelArgs&);
template void TakeTokens<float>(const KernelArgs&);
template void TakeTokens<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
