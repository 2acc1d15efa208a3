// Attention of single queries over caches where each query head has keys of its own. Nothing is shared then that tensor cores could
// multiply, and memory sets the time alone: a lane reads 8 elements of a key and of its value into registers, as many lanes as a
// head needs read one key, and each such group of lanes has a running softmax of its own (FlashAttention-2's order, Dao,
// arXiv:2307.08691). At the end groups add up in pairs, and warps in their order.
#include <type_traits>

#include "engine/backend/cuda/kernels/cached_attention.cuh"
#include "engine/backend/cuda/kernels/early.cuh"
#include "engine/backend/cuda/profile/cached_attention_tiles.h"

namespace engine::backend::cuda {
namespace {

constexpr int kOfLane = 8;  // elements of a head
constexpr int kLoads = 4;   // keys that a group of lanes reads at a time

// Eight elements of a cache as they lie there.
template <typename Stored>
using Raw8 = std::conditional_t<sizeof(Stored) == 1, uint2, uint4>;

template <typename Stored>
__device__ __forceinline__ void Widen8(const uint4& raw, float (&x)[kOfLane]) {
  Unpack8(Pack8<Stored>{{raw}}, x);
}
template <typename Stored>
__device__ __forceinline__ void Widen8(const uint2& raw, float (&x)[kOfLane]) {
  const std::uint32_t pairs[4] = {raw.x & 0xFFFFU, raw.x >> 16, raw.y & 0xFFFFU, raw.y >> 16};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = PairToFloat(__half(), WidenedPair<__half>(pairs[i]));
    x[2 * i] = pair.x;
    x[2 * i + 1] = pair.y;
  }
}

// The running softmax of a group of lanes, each of which has the same top and sum and its own elements of o.
struct Running {
  float top = kNone;
  float sum = 0;
  float o[kOfLane] = {};

  // To the larger of both tops; returns it.
  __device__ __forceinline__ void Raise(float higher) {
    const float shrink = exp2f(top - higher);
    top = higher;
    sum *= shrink;
#pragma unroll
    for (int e = 0; e < kOfLane; ++e) o[e] *= shrink;
  }
  __device__ __forceinline__ void Add(float share, const float (&value)[kOfLane]) {
    sum += share;
#pragma unroll
    for (int e = 0; e < kOfLane; ++e) o[e] = fmaf(share, value[e], o[e]);
  }
};

// kLanes: that one key takes, 8·kLanes elements at most. grid: chunks, heads, samples.
template <typename T, typename Stored, int kLanes>
__global__ void __launch_bounds__(kThreads, kOwnKeysBlocks) AttendOwnKeys(CachedAttention p, int chunks) {
  constexpr int kKeys = kWarp / kLanes;           // that a warp reads at once
  constexpr int kStep = kWarps * kLoads * kKeys;  // that a block takes at a time
  constexpr int kRow = kLanes * kOfLane + 2;
  __shared__ float sums[kWarps * kRow];  // values, top, sum
  using Raw = Raw8<Stored>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int group = lane / kLanes;
  const int width = static_cast<int>(p.width);
  const int element = lane % kLanes * kOfLane;  // the lane's first
  const bool has_elements = element < width;
  const std::int64_t token = blockIdx.z;
  const std::int64_t head = blockIdx.y;
  const std::int64_t slot = p.slots[token];
  const std::int64_t position = p.positions[token];
  const Seen seen = SeenBy(p.window, position);
  const std::int64_t first = seen.first + static_cast<std::int64_t>(blockIdx.x) * p.chunk;
  const bool idle = slot < 0 || first >= seen.end;
  LetNextBegin();
  if (idle && chunks > 1) {  // the sum leaves it out
    AwaitEarlier();
    return;
  }
  const std::int64_t end = idle ? first : min(seen.end, first + p.chunk);
  const bool has_new = !idle && end == seen.end;  // the new token, which comes from k and v
  const int count = static_cast<int>(end - first) - (has_new ? 1 : 0);  // keys in the cache
  const int rows = static_cast<int>(p.rows);
  const int first_row = static_cast<int>(first % p.rows);
  const std::int64_t stride = p.heads * width;
  const std::int64_t at_slot = (max(slot, std::int64_t{0}) * p.rows * p.heads + head) * width + element;
  const Stored* const keys = static_cast<const Stored*>(p.keys) + at_slot;
  const Stored* const values = static_cast<const Stored*>(p.values) + at_slot;
  // Load i of the block's step that begins at the chunk's key `begin` brings this lane that key.
  const auto key_of = [&](int begin, int i) { return begin + (warp * kLoads + i) * kKeys + group; };
  const auto load = [&](const Stored* from, int begin, Raw(&to)[kLoads]) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int key = key_of(begin, i);
      const int row = first_row + key < rows ? first_row + key : first_row + key - rows;
      to[i] = key < count && has_elements ? *reinterpret_cast<const Raw*>(from + row * stride) : Raw{};
    }
  };
  Raw k[kLoads];
  Raw v[kLoads];
  load(keys, 0, k);  // what steps before this one have kept
  load(values, 0, v);
  AwaitEarlier();
  if (has_new)
    KeepToken<T, Stored>(p, token, head, slot, position);  // no other block reads the row that it goes to
  const std::int64_t of_head = (token * p.heads + head) * width + element;
  float q[kOfLane] = {};
  if (has_elements) Load8(static_cast<const T*>(p.q) + of_head, q);
  const float slope = SlopeOf(p, head);
  const bool bends = p.softcap > 0 || p.biases != nullptr || p.alibi;
  const float scale_log2 = p.scale * kLog2E;
  // The score of the chunk's key `key`, the same in all lanes of a group.
  const auto score_of = [&](const float(&x)[kOfLane], int key) {
    float dot = 0;
#pragma unroll
    for (int e = 0; e < kOfLane; ++e) dot = fmaf(q[e], x[e], dot);
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) dot += __shfl_xor_sync(kAllLanes, dot, step);
    if (!bends) return dot * scale_log2;
    return Bent<T>(p, dot * p.scale, slope, head, position, first + key - position);
  };
  Running running;
  for (int begin = 0; begin < count; begin += kStep) {
    float scores[kLoads];
    float top = running.top;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      float x[kOfLane];
      Widen8<Stored>(k[i], x);
      const int key = key_of(begin, i);
      const float score = score_of(x, min(key, count - 1));
      scores[i] = key < count ? score : kNone;
      top = fmaxf(top, scores[i]);
    }
    load(keys, begin + kStep, k);
    running.Raise(top);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      float x[kOfLane];
      Widen8<Stored>(v[i], x);
      running.Add(scores[i] > kNone ? exp2f(scores[i] - top) : 0.0F, x);
    }
    load(values, begin + kStep, v);
  }
  if (has_new && warp == 0) {
    // As the cache will have it. Its key and value are one group's.
    const auto kept = [&](const void* from, float(&x)[kOfLane]) {
      if (has_elements) Load8(static_cast<const T*>(from) + of_head, x);
#pragma unroll
      for (int e = 0; e < kOfLane; ++e) x[e] = ToFloat(ToKeep<Stored>(FromFloat<T>(x[e])));
    };
    float key[kOfLane] = {};
    float value[kOfLane] = {};
    kept(p.k, key);
    kept(p.v, value);
    const float score = score_of(key, count);
    if (group == 0) {
      running.Raise(fmaxf(running.top, score));
      running.Add(exp2f(score - running.top), value);
    }
  }
#pragma unroll
  for (int step = kLanes; step < kWarp; step *= 2) {
    const float other_top = __shfl_xor_sync(kAllLanes, running.top, step);
    const float other_sum = __shfl_xor_sync(kAllLanes, running.sum, step);
    float other[kOfLane];
#pragma unroll
    for (int e = 0; e < kOfLane; ++e) other[e] = __shfl_xor_sync(kAllLanes, running.o[e], step);
    const float higher = fmaxf(running.top, other_top);
    running.Raise(higher);
    const float share = exp2f(other_top - higher);
    running.sum = fmaf(share, other_sum, running.sum);
#pragma unroll
    for (int e = 0; e < kOfLane; ++e) running.o[e] = fmaf(share, other[e], running.o[e]);
  }
  if (group == 0) {
    float* const to = sums + warp * kRow;
#pragma unroll
    for (int e = 0; e < kOfLane; ++e) to[element + e] = running.o[e];
    to[kRow - 2] = running.top;
    to[kRow - 1] = running.sum;
  }
  __syncthreads();
  float top = kNone;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) top = fmaxf(top, sums[w * kRow + kRow - 2]);
  for (int e = static_cast<int>(threadIdx.x); e < width; e += kThreads) {
    float sum = 0;
    float value = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float share = exp2f(sums[w * kRow + kRow - 2] - top);
      sum = fmaf(share, sums[w * kRow + kRow - 1], sum);
      value = fmaf(share, sums[w * kRow + e], value);
    }
    PutElement<T>(p, {.row = token * p.heads + head, .head = head, .chunks = chunks, .idle = idle}, e, top,
                  sum, value);
  }
}

template <typename T, typename Stored, int kLanes>
void AttendOf(const CachedAttention& p, cudaStream_t stream) {
  const int chunks = static_cast<int>((p.rows + p.chunk - 1) / p.chunk);
  const dim3 grid(static_cast<unsigned>(chunks), static_cast<unsigned>(p.heads),
                  static_cast<unsigned>(p.samples));
  Launch(p.samples <= kMostEarlyRows, AttendOwnKeys<T, Stored, kLanes>, grid, kThreads, 0, stream, p, chunks);
  if (chunks > 1) LaunchAddChunks(p, chunks, stream);
}

template <typename T, typename Stored>
void AttendBySize(const CachedAttention& p, cudaStream_t stream) {
  if (p.width <= 64) return AttendOf<T, Stored, 8>(p, stream);
  if (p.width <= 128) return AttendOf<T, Stored, 16>(p, stream);
  AttendOf<T, Stored, 32>(p, stream);
}

template <typename T>
void AttendStored(const CachedAttention& p, cudaStream_t stream) {
  p.narrow_cache ? AttendBySize<T, E4M3>(p, stream) : AttendBySize<T, T>(p, stream);
}

}  // namespace

void LaunchCachedAttentionOfOwnKeys(const CachedAttention& attention, cudaStream_t stream) {
  attention.dtype == DType::kBF16 ? AttendStored<__nv_bfloat16>(attention, stream)
                                  : AttendStored<__half>(attention, stream);
}

}  // namespace engine::backend::cuda
