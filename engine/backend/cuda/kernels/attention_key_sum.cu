// A thread eight elements of a head, as they lie in memory.
#include "engine/backend/cuda/kernels/attention_key_sum.h"
#include "engine/backend/cuda/kernels/vector.cuh"

namespace engine::backend::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kThreads) AddKernel(AttentionKeySum p) {
  const std::int64_t index = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 8;
  if (index >= p.samples * p.keys * p.kv_heads * p.head) return;
  const std::int64_t row = p.kv_heads * p.head;
  const std::int64_t sample = index / (p.keys * row);
  const std::int64_t key = index / row % p.keys;
  const bool seen = key < p.part_keys;
  if (!seen && !p.first && !p.last) return;
  float x[8] = {};
  if (!p.first) Unpack8(LoadPack8(p.sum + index), x);
  if (seen) {
    float part[8];
    Unpack8(LoadPack8(static_cast<const T*>(p.part) + (sample * p.part_keys + key) * row + index % row),
            part);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] += part[i];
  }
  if (!p.last) {
    StorePack8(p.sum + index, ToPack8<float>(x));
    return;
  }
  const std::int64_t kv_head = index / p.head % p.kv_heads;
  T* const out = static_cast<T*>(p.out.data) + sample * p.out.sample + key * p.out.token +
                 kv_head * p.out.kv_head + index % p.head;
  StorePack8(out, ToPack8<T>(x));
}

}  // namespace

void AddKeyGradients(const AttentionKeySum& problem, cudaStream_t stream) {
  const std::int64_t threads = problem.samples * problem.keys * problem.kv_heads * problem.head / 8;
  const auto blocks = static_cast<unsigned>((threads + kThreads - 1) / kThreads);
  if (problem.dtype == DType::kBF16) {
    AddKernel<__nv_bfloat16><<<blocks, kThreads, 0, stream>>>(problem);
  } else {
    AddKernel<__half><<<blocks, kThreads, 0, stream>>>(problem);
  }
}

}  // namespace engine::backend::cuda
