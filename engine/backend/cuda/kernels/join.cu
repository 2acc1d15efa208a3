#include "engine/backend/cuda/kernels/elementwise.cuh"
#include "engine/backend/cuda/kernels/join.h"
#include "engine/backend/cuda/kernels/vector.cuh"

namespace engine::backend::cuda {
namespace {

constexpr int kThreads = 256;

unsigned BlocksFor(std::int64_t items) { return static_cast<unsigned>((items + kThreads - 1) / kThreads); }

// A thread a unit of a part's share of the joined rows; sizes are counted in units.
template <typename Unit, bool kIntoJoined>
__global__ void __launch_bounds__(kThreads) CopyPart(JoinPart at, const Unit* from, Unit* to) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= at.rows * at.count) return;
  const std::int64_t row = i / at.count;
  const std::int64_t e = i - row * at.count;
  const std::int64_t joined = row * at.width + at.first + e;
  if constexpr (kIntoJoined) {
    to[joined] = from[row / at.shared * at.count + e];
  } else {
    to[i] = from[joined];
  }
}

// A thread an element of a part that rows share.
template <typename T>
__global__ void __launch_bounds__(kThreads) SumPart(JoinPart at, const T* joined, T* part) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= at.rows / at.shared * at.count) return;
  const std::int64_t row = i / at.count;
  const T* from = joined + row * at.shared * at.width + at.first + (i - row * at.count);
  float sum = 0;
  for (std::int64_t h = 0; h < at.shared; ++h) sum += ToFloat(from[h * at.width]);
  part[i] = FromFloat<T>(sum);
}

template <bool kIntoJoined, typename Unit>
void Copy(JoinPart at, const void* from, void* to, cudaStream_t stream) {
  const std::int64_t each = static_cast<std::int64_t>(sizeof(Unit)) / SizeOf(at.dtype);
  at.width /= each;
  at.first /= each;
  at.count /= each;
  CopyPart<Unit, kIntoJoined><<<BlocksFor(at.rows * at.count), kThreads, 0, stream>>>(
      at, static_cast<const Unit*>(from), static_cast<Unit*>(to));
}

// In units of 16 bytes where all rows are made of them.
template <bool kIntoJoined>
void CopyInUnits(const JoinPart& at, const void* from, void* to, cudaStream_t stream) {
  if (at.rows * at.count == 0) return;
  const std::int64_t each = static_cast<std::int64_t>(sizeof(uint4)) / SizeOf(at.dtype);
  if (at.width % each == 0 && at.first % each == 0 && at.count % each == 0) {
    Copy<kIntoJoined, uint4>(at, from, to, stream);
  } else if (SizeOf(at.dtype) == 4) {
    Copy<kIntoJoined, std::uint32_t>(at, from, to, stream);
  } else {
    Copy<kIntoJoined, std::uint16_t>(at, from, to, stream);
  }
}

}  // namespace

void LaunchJoin(const JoinPart& at, const void* part, void* joined, cudaStream_t stream) {
  CopyInUnits<true>(at, part, joined, stream);
}

void LaunchJoinGrad(const JoinPart& at, const void* joined, void* part, cudaStream_t stream) {
  if (at.shared == 1) return CopyInUnits<false>(at, joined, part, stream);
  const std::int64_t elements = at.rows / at.shared * at.count;
  if (elements == 0) return;
  WithElementType(at.dtype, [&](auto element) {
    using T = decltype(element);
    SumPart<T><<<BlocksFor(elements), kThreads, 0, stream>>>(at, static_cast<const T*>(joined),
                                                             static_cast<T*>(part));
  });
}

}  // namespace engine::backend::cuda
