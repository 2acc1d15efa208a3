// Attention of one query of one head, key by key in the order of their positions: its bits depend on nothing but the query and
// the keys that it sees.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "engine/backend/cpu/kernels/caches.h"
#include "engine/backend/kernel.h"

namespace engine::backend::cpu {

// Sizes and attributes that all heads share, of attention or cached_attention, whose first inputs are q, k and v.
struct RowsOfKeys {
  RowsOfKeys(const KernelArgs& args, std::int64_t rows)
      : rows(rows),
        width(args.inputs[0].shape[3]),
        value_width(args.inputs[2].shape[3]),
        key_stride(args.inputs[1].shape[2] * width),
        value_stride(args.inputs[2].shape[2] * value_width),
        distance(args.attributes->Int("distance", 0)),
        pairs(args.attributes->Int("pairs", 0)),
        scale(args.attributes->Float("scale")),
        softcap(args.attributes->Float("softcap", 0)) {}

  std::int64_t rows;  // the key of position j is in row j mod rows
  std::int64_t width, value_width, key_stride, value_stride, distance, pairs;
  double scale, softcap;
};

// `Stored`: what keys and values are kept as.
template <typename T, typename Stored = T>
struct QueryOfHead {
  const T* q = nullptr;
  const Stored* k = nullptr;  // of row 0
  const Stored* v = nullptr;
  const T* biases = nullptr;  // of distance −M, or of the first pair; null: none
  const T* sink = nullptr;    // null: none
  T* o = nullptr;
  double slope = 0;  // of the linear bias
};

// The keys of positions [first, last), seen from `query`.
struct SeenKeys {
  std::int64_t first, last, query;
};

// Writes o and returns log Σ exp(score), −∞ where no key is seen. `scores` is scratch.
template <typename T, typename Stored = T>
T AttendRow(const RowsOfKeys& p, const QueryOfHead<T, Stored>& head, const SeenKeys& seen,
            std::vector<T>* scores) {
  const std::int64_t count = std::max<std::int64_t>(0, seen.last - seen.first);
  scores->resize(static_cast<std::size_t>(count));
  T* const score = scores->data();
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t j = seen.first + i;
    T value = static_cast<T>(p.scale) * Dot(p.width, head.q, head.k + (j % p.rows) * p.key_stride);
    if (p.softcap > 0) value = static_cast<T>(p.softcap) * std::tanh(value / static_cast<T>(p.softcap));
    const std::int64_t distance = j - seen.query;
    if (head.biases != nullptr) {
      value += head.biases[p.pairs > 0 ? seen.query * p.pairs + j
                                       : std::clamp(distance, -p.distance, p.distance) + p.distance];
    }
    score[i] = value + static_cast<T>(head.slope * static_cast<double>(distance));
  }
  std::fill_n(head.o, p.value_width, T(0));
  if (count == 0 && head.sink == nullptr) return -std::numeric_limits<T>::infinity();
  T top = MaxOf(count, score);
  if (head.sink != nullptr) top = std::max(top, *head.sink);
  for (std::int64_t i = 0; i < count; ++i) score[i] = Exp(score[i] - top);
  T sum = SumOf<T>(count, [&](std::int64_t i) { return score[i]; });
  if (head.sink != nullptr) sum += Exp(*head.sink - top);
  for (std::int64_t i = 0; i < count; ++i) {
    const T share = score[i] / sum;
    const Stored* const v = head.v + ((seen.first + i) % p.rows) * p.value_stride;
    for (std::int64_t e = 0; e < p.value_width; ++e) head.o[e] += share * Kept<T>(v[e]);
  }
  return top + std::log(sum);
}

}  // namespace engine::backend::cpu
