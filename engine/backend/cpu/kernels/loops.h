// What the kernels share: cutting work into tasks, reductions that vectorise, float exp.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>

#include "engine/backend/kernel.h"
#include "engine/base/status.h"

namespace engine::backend::cpu {

// Runs body(first, last) over [0, count) in blocks of `block`, in parallel.
template <typename Body>
void ForEachBlock(const KernelArgs& args, std::int64_t count, std::int64_t block, const Body& body) {
  const std::int64_t tasks = (count + block - 1) / block;
  const auto task = [&](std::int64_t i) { body(i * block, std::min(count, (i + 1) * block)); };
  if (tasks > 1 && args.context != nullptr && args.context->parallel_for != nullptr) {
    (*args.context->parallel_for)(tasks, std::ref(task));  // std::ref: the std::function does not allocate
  } else {
    for (std::int64_t i = 0; i < tasks; ++i) task(i);
  }
}

// Elements of one task of an elementwise kernel: 64 KiB of float, half of an L2 slice with an input and an
// output.
inline constexpr std::int64_t kElementBlock = 16384;

// Reductions run over this many independent chains, so that they vectorise without reordering by the
// compiler. The order is fixed by the length alone.
inline constexpr int kLanes = 32;

template <typename T, typename Term>
inline T SumOf(std::int64_t n, const Term& term) {
  T lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] += term(i);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

// −∞ of an empty range.
template <typename T>
inline T MaxOf(std::int64_t n, const T* x) {
  T lanes[kLanes];
  for (T& lane : lanes) lane = -std::numeric_limits<T>::infinity();
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane)
      lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
  }
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] = std::max(lanes[lane], x[i]);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] = std::max(lanes[lane], lanes[lane + width]);
  }
  return lanes[0];
}

// exp in float without a branch, so that loops over it vectorise: x = n·ln 2 + r, |r| ≤ ln 2 / 2, and the
// polynomial of Cephes expf (S. Moshier) for exp(r). Error below 2 ulp; arguments below −87.3 give 1.2e-38
// instead of a smaller number, those above 88.3 give 2.4e38.
inline float Exp(float x) {
  constexpr float kRound =
      12582912.0F;  // 1.5·2²³: adding it leaves the nearest integer in the low mantissa bits
  x = x < -87.33654F ? -87.33654F : x;
  x = x > 88.37F ? 88.37F : x;
  const float shifted = x * 1.44269504F + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693359375F) - n * -2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = (p * r * r + r) + 1.0F;
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(kRound);
  return p * std::bit_cast<float>((exponent + 127U) << 23);
}
inline double Exp(double x) { return std::exp(x); }

// 1 / (1 + exp(−x)), with full relative accuracy at both ends.
template <typename T>
inline T Sigmoid(T x) {
  return T(1) / (T(1) + Exp(-x));
}

// Logical index of the first element along a dim that is held as one piece, and how many are held.
struct Piece {
  std::int64_t start = 0;
  std::int64_t length = 0;
};
inline Piece OnePiece(const TensorView& view, int dim) {
  if (view.extent.dims.empty()) return {0, view.shape[dim]};
  const DimExtent& extent = view.extent.dims[dim];
  ENGINE_CHECK(extent.size() <= 1, "dim {} is held in {} pieces", dim, extent.size());
  return extent.empty() ? Piece{} : Piece{extent[0].start, extent[0].length};
}

inline bool Accumulates(const KernelArgs& args, int output) { return (args.accumulate >> output & 1U) != 0; }

}  // namespace engine::backend::cpu
