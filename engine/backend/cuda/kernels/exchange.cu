#include "engine/backend/cuda/kernels/exchange.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "engine/backend/box_walk.h"
#include "engine/backend/cuda/kernels/vector.cuh"

namespace engine::backend::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMostBlocks = 2048;
constexpr std::int64_t kMostElements = std::int64_t{1}
                                       << 31;  // that 32 bits count, a step of all blocks beyond

unsigned Blocks(std::int64_t items) {
  return static_cast<unsigned>(std::min((items + kThreads - 1) / kThreads, kMostBlocks));
}

// Several words of a thread are under way at once.
template <typename Word, int loops>
__global__ void Copy(const Word* __restrict__ from, Word* __restrict__ to, const BoxWalk<loops> walk,
                     std::uint32_t words) {
  constexpr int kAtOnce = 4;
  const std::uint64_t step = std::uint64_t{gridDim.x} * kThreads;
  for (std::uint64_t first = blockIdx.x * kThreads + threadIdx.x; first < words; first += kAtOnce * step) {
    Word word[kAtOnce];
    std::int64_t at[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (first + k * step >= words) continue;
      const auto places = walk(static_cast<std::uint32_t>(first + k * step));
      word[k] = from[places.from];
      at[k] = places.to;
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (first + k * step < words) to[at[k]] = word[k];
    }
  }
}

// The box in words of `factor` elements, if it is made of whole ones.
bool InWords(Box* box, std::int64_t factor) {
  constexpr int kInner = Box::kLoops - 1;
  if (factor == 1) return true;
  if (box->from_stride[kInner] != 1 || box->to_stride[kInner] != 1) return false;
  if (box->size[kInner] % factor != 0 || box->from % factor != 0 || box->to % factor != 0) return false;
  for (int loop = 0; loop < kInner; ++loop) {
    if (box->size[loop] == 1) continue;
    if (box->from_stride[loop] % factor != 0 || box->to_stride[loop] % factor != 0) return false;
  }
  box->size[kInner] /= factor;
  box->from /= factor;
  box->to /= factor;
  for (int loop = 0; loop < kInner; ++loop) {
    box->from_stride[loop] /= factor;
    box->to_stride[loop] /= factor;
  }
  return true;
}

// `loops`: at least the box's own.
template <typename Word, int loops = Box::kLoops>
void CopyWords(const void* from, void* to, const Box& box, cudaStream_t stream) {
  if constexpr (loops > 1) {
    if (LoopsOf(box) < loops) return CopyWords<Word, loops - 1>(from, to, box, stream);
  }
  const auto words = static_cast<std::uint32_t>(box.elements());
  Copy<<<Blocks(words), kThreads, 0, stream>>>(static_cast<const Word*>(from) + box.from,
                                               static_cast<Word*>(to) + box.to, BoxWalk<loops>(box), words);
}

template <typename Word>
bool CopyAs(const void* from, void* to, Box box, std::int64_t element_bytes, cudaStream_t stream) {
  constexpr std::int64_t kBytes = sizeof(Word);
  if (kBytes < element_bytes || reinterpret_cast<std::uintptr_t>(from) % kBytes != 0 ||
      reinterpret_cast<std::uintptr_t>(to) % kBytes != 0 || !InWords(&box, kBytes / element_bytes)) {
    return false;
  }
  CopyWords<Word>(from, to, box, stream);
  return true;
}

__global__ void LogSumExp(const float* __restrict__ parts, std::int64_t members, std::int64_t n,
                          float* __restrict__ out) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += step) {
    float most = parts[i];
    for (std::int64_t m = 1; m < members; ++m) {
      const float x = parts[m * n + i];
      most = most > x ? most : x;  // of a NaN, the sum below is one too
    }
    float sum = 0;
    for (std::int64_t m = 0; m < members; ++m) sum += expf(parts[m * n + i] - most);
    out[i] = isinf(most) ? most : most + logf(sum);
  }
}

// What elements of T are added up in.
template <typename T>
using Number = std::conditional_t<std::is_same_v<T, double>, double, float>;
template <typename T>
__device__ __forceinline__ Number<T> Wide(T x) {
  if constexpr (std::is_same_v<T, double>) {
    return x;
  } else {
    return ToFloat(x);
  }
}
template <typename T>
__device__ __forceinline__ T Narrow(Number<T> x) {
  if constexpr (std::is_same_v<T, double>) {
    return x;
  } else {
    return FromFloat<T>(x);
  }
}

// n: words of elements of T.
template <typename T, typename Word>
__global__ void Sum(const Word* own, const std::byte* __restrict__ received, std::int64_t slot,
                    std::int64_t members, std::int64_t index, std::int64_t n, Word* out) {
  constexpr int kElements = sizeof(Word) / sizeof(T);
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += step) {
    Number<T> sum[kElements];  // begins with −0, to which every term adds up to itself
#pragma unroll
    for (int e = 0; e < kElements; ++e) sum[e] = -0.0F;
    for (std::int64_t m = 0; m < members; ++m) {
      const std::int64_t before = m < index ? m : m - 1;
      const Word word =
          m == index ? own[i] : __ldcs(reinterpret_cast<const Word*>(received + before * slot) + i);
      T part[kElements];
      std::memcpy(part, &word, sizeof(word));
#pragma unroll
      for (int e = 0; e < kElements; ++e) sum[e] += Wide<T>(part[e]);
    }
    T rounded[kElements];
#pragma unroll
    for (int e = 0; e < kElements; ++e) rounded[e] = Narrow<T>(sum[e]);
    Word word;
    std::memcpy(&word, rounded, sizeof(word));
    out[i] = word;
  }
}

template <typename T, typename Word>
void LaunchSum(const void* own, const void* received, std::int64_t slot, std::int64_t members,
               std::int64_t index, std::int64_t first, std::int64_t words, void* out, cudaStream_t stream) {
  if (words == 0) return;
  const std::int64_t skip = first * static_cast<std::int64_t>(sizeof(T));
  Sum<T, Word><<<Blocks(words), kThreads, 0, stream>>>(
      reinterpret_cast<const Word*>(static_cast<const std::byte*>(own) + skip),
      static_cast<const std::byte*>(received) + skip, slot, members, index, words,
      reinterpret_cast<Word*>(static_cast<std::byte*>(out) + skip));
}

// In words of 16 bytes, then element by element.
template <typename T, typename Bits>
void SumAs(const void* own, const void* received, std::int64_t slot, std::int64_t members, std::int64_t index,
           std::int64_t n, void* out, cudaStream_t stream) {
  constexpr std::int64_t kElements = 16 / sizeof(T);
  const auto at = [](const void* data) { return reinterpret_cast<std::uintptr_t>(data); };
  const bool aligned = (at(own) | at(received) | at(out) | static_cast<std::uintptr_t>(slot)) % 16 == 0;
  const std::int64_t words = aligned ? n / kElements : 0;
  const std::int64_t done = words * kElements;
  LaunchSum<T, uint4>(own, received, slot, members, index, 0, words, out, stream);
  LaunchSum<T, Bits>(own, received, slot, members, index, done, n - done, out, stream);
}

}  // namespace

bool SumParts(const void* own, const void* received, std::int64_t slot, std::int64_t members,
              std::int64_t index, DType dtype, std::int64_t n, void* out, cudaStream_t stream) {
  switch (dtype) {
    case DType::kBF16:
      SumAs<__nv_bfloat16, std::uint16_t>(own, received, slot, members, index, n, out, stream);
      return true;
    case DType::kF16:
      SumAs<__half, std::uint16_t>(own, received, slot, members, index, n, out, stream);
      return true;
    case DType::kF32:
      SumAs<float, std::uint32_t>(own, received, slot, members, index, n, out, stream);
      return true;
    case DType::kF64:
      SumAs<double, std::uint64_t>(own, received, slot, members, index, n, out, stream);
      return true;
    default:
      return false;
  }
}

void CopyBox(const void* from, void* to, const Box& box, std::int64_t element_bytes, cudaStream_t stream) {
  if (box.elements() == 0) return;
  if (box.elements() > kMostElements) {
    const auto loop = static_cast<std::size_t>(
        std::find_if(box.size.begin(), box.size.end(), [](std::int64_t n) { return n > 1; }) -
        box.size.begin());
    Box first = box;
    Box second = box;
    first.size[loop] /= 2;
    second.size[loop] -= first.size[loop];
    second.from += first.size[loop] * box.from_stride[loop];
    second.to += first.size[loop] * box.to_stride[loop];
    CopyBox(from, to, first, element_bytes, stream);
    return CopyBox(from, to, second, element_bytes, stream);
  }
  CopyAs<uint4>(from, to, box, element_bytes, stream) ||
      CopyAs<std::uint64_t>(from, to, box, element_bytes, stream) ||
      CopyAs<std::uint32_t>(from, to, box, element_bytes, stream) ||
      CopyAs<std::uint16_t>(from, to, box, element_bytes, stream) ||
      CopyAs<std::uint8_t>(from, to, box, element_bytes, stream);
}

void CombineLogSumExp(const float* parts, std::int64_t members, std::int64_t n, float* out,
                      cudaStream_t stream) {
  LogSumExp<<<Blocks(n), kThreads, 0, stream>>>(parts, members, n, out);
}

}  // namespace engine::backend::cuda
