#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"
#include "engine/graph/distance_buckets.h"

namespace engine::backend::cpu {

template <typename T>
void RelativeBias(const KernelArgs& args) {
  const graph::DistanceBuckets buckets = graph::DistanceBuckets::FromAttributes(*args.attributes);
  const std::int64_t heads = args.outputs[0].shape[0];
  const std::int64_t distances = args.outputs[0].shape[1];
  const T* table = args.inputs[0].as<T>();
  T* biases = args.outputs[0].as<T>();
  for (std::int64_t i = 0; i < distances; ++i) {
    const T* row = table + buckets.Of(i - buckets.distance) * heads;
    for (std::int64_t h = 0; h < heads; ++h) biases[h * distances + i] = row[h];
  }
}

template <typename T>
void RelativeBiasGrad(const KernelArgs& args) {
  const graph::DistanceBuckets buckets = graph::DistanceBuckets::FromAttributes(*args.attributes);
  const std::int64_t heads = args.inputs[0].shape[0];
  const std::int64_t distances = args.inputs[0].shape[1];
  const T* d_biases = args.inputs[0].as<T>();
  T* d_table = args.outputs[0].as<T>();
  if (!Accumulates(args, 0)) std::fill_n(d_table, buckets.buckets * heads, T(0));
  for (std::int64_t i = 0; i < distances; ++i) {
    T* row = d_table + buckets.Of(i - buckets.distance) * heads;
    for (std::int64_t h = 0; h < heads; ++h) row[h] += d_biases[h * distances + i];
  }
}

template void RelativeBias<float>(const KernelArgs&);
template void RelativeBias<double>(const KernelArgs&);
template void RelativeBiasGrad<float>(const KernelArgs&);
template void RelativeBiasGrad<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
