#include <algorithm>
#include <vector>

#include "engine/backend/cpu/kernels/caches.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"

namespace engine::backend::cpu {
namespace {

// One query head, whose keys are those of a slot.
template <typename T, typename Stored>
struct LatentProblem {
  const T* q = nullptr;             // [C]
  const T* rest = nullptr;          // [R], of the query
  const Stored* latents = nullptr;  // [T, C]
  const Stored* shared = nullptr;   // [T, R]
  T* z = nullptr;                   // [C]
  std::int64_t width = 0, shared_width = 0;
  std::int64_t rows = 0, window = 0;
  T scale = 1;
};

template <typename T, typename Stored>
void Attend(const LatentProblem<T, Stored>& p, std::int64_t position, std::vector<T>* scores) {
  const std::int64_t first = p.window > 0 ? std::max<std::int64_t>(0, position - p.window + 1) : 0;
  const std::int64_t count = position + 1 - first;
  scores->resize(static_cast<std::size_t>(count));
  T* const score = scores->data();
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = (first + i) % p.rows;
    score[i] = p.scale * (Dot(p.width, p.q, p.latents + row * p.width) +
                          Dot(p.shared_width, p.rest, p.shared + row * p.shared_width));
  }
  const T top = MaxOf(count, score);
  for (std::int64_t i = 0; i < count; ++i) score[i] = Exp(score[i] - top);
  const T sum = SumOf<T>(count, [&](std::int64_t i) { return score[i]; });
  std::fill_n(p.z, p.width, T(0));
  for (std::int64_t i = 0; i < count; ++i) {
    const T share = score[i] / sum;
    const Stored* const c = p.latents + (first + i) % p.rows * p.width;
    for (std::int64_t e = 0; e < p.width; ++e) p.z[e] += share * Kept<T>(c[e]);
  }
}

template <typename T, typename Stored>
void AttendLatents(const KernelArgs& args) {
  const TensorView& q = args.inputs[0];
  const TensorView& rest = args.inputs[1];
  const std::int32_t* positions = args.inputs[6].as<std::int32_t>();
  const std::int32_t* slots = args.inputs[7].as<std::int32_t>();
  const TensorView& latents = args.outputs[1];
  const TensorView& shared = args.outputs[2];
  Keep<T, Stored>(args.inputs[2], args.inputs[4], positions, slots, latents);
  Keep<T, Stored>(args.inputs[3], args.inputs[5], positions, slots, shared);
  const std::int64_t heads = q.shape[2];
  const std::int64_t rows = latents.shape[1];
  const std::int64_t width = q.shape[3];
  const std::int64_t shared_width = shared.shape[3];
  const std::int64_t first = args.attributes->Int("first", 0);
  ForEachBlock(args, q.shape.elements(0, 3), 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<T> scores;
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t slot = slots[row / heads];
      T* const z = args.outputs[0].as<T>() + row * width;
      if (slot < 0) {
        std::fill_n(z, width, T(0));
        continue;
      }
      Attend<T, Stored>({.q = q.as<T>() + row * width,
                         .rest = rest.as<T>() + row * rest.shape[3] + first,
                         .latents = latents.as<Stored>() + slot * rows * width,
                         .shared = shared.as<Stored>() + slot * rows * shared_width,
                         .z = z,
                         .width = width,
                         .shared_width = shared_width,
                         .rows = rows,
                         .window = args.attributes->Int("window", 0),
                         .scale = static_cast<T>(args.attributes->Float("scale"))},
                        positions[row / heads], &scores);
    }
  });
}

}  // namespace

template <typename T>
void CachedLatentAttention(const KernelArgs& args) {
  OfStored<T>(args.outputs[1], [&](auto stored) { AttendLatents<T, decltype(stored)>(args); });
}

template void CachedLatentAttention<float>(const KernelArgs&);
template void CachedLatentAttention<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
