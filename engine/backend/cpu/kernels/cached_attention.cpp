#include <algorithm>
#include <vector>

#include "engine/backend/cpu/kernels/attend_row.h"
#include "engine/backend/cpu/kernels/caches.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"
#include "engine/graph/alibi.h"

namespace engine::backend::cpu {

namespace {

template <typename T, typename Stored>
void AttendCached(const KernelArgs& args) {
  constexpr std::size_t kPositions = 5;
  const TensorView& q = args.inputs[0];
  const RowsOfKeys p(args, args.inputs[3].shape[1]);
  const std::int64_t window = args.attributes->Int("window", 0);
  const TensorView& keys = args.outputs[1];
  const TensorView& values = args.outputs[2];
  const std::int32_t* positions = args.inputs[kPositions].as<std::int32_t>();
  const std::int32_t* slots = args.inputs[kPositions + 1].as<std::int32_t>();
  Keep<T, Stored>(args.inputs[1], args.inputs[3], positions, slots, keys);
  Keep<T, Stored>(args.inputs[2], args.inputs[4], positions, slots, values);
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
      const std::int64_t position = positions[sample];
      const std::int64_t first = window > 0 ? std::max<std::int64_t>(0, position - window + 1) : 0;
      AttendRow<T, Stored>(
          p,
          {.q = q.as<T>() + row * p.width,
           .k = keys.as<Stored>() + slot * p.rows * p.key_stride + (h / group) * p.width,
           .v = values.as<Stored>() + slot * p.rows * p.value_stride + (h / group) * p.value_width,
           .biases = of_head(biases),
           .sink = of_head(sinks),
           .o = o,
           .slope = alibi ? graph::AlibiSlope(logical, q.logical[2]) : 0},
          {first, position + 1, position}, &scores);
    }
  });
}

}  // namespace

template <typename T>
void CacheUpdate(const KernelArgs& args) {
  OfStored<T>(args.outputs[0], [&](auto stored) {
    Keep<T, decltype(stored)>(args.inputs[0], args.inputs[1], args.inputs[2].as<std::int32_t>(),
                              args.inputs[3].as<std::int32_t>(), args.outputs[0]);
  });
}

template <typename T>
void CachedAttention(const KernelArgs& args) {
  OfStored<T>(args.outputs[1], [&](auto stored) { AttendCached<T, decltype(stored)>(args); });
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
