#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/logical_row.h"
#include "engine/backend/cpu/kernels/loops.h"
#include "engine/base/philox.h"

namespace engine::backend::cpu {
namespace {

// The numbers of a stream that a jitter multiplies with.
struct Noise {
  PhiloxKey key;
  std::uint64_t epoch;
  float eps;
};

// out = in · u of the `count` consecutive elements from `start`.
template <typename T>
void MultiplyNoise(const Noise& noise, std::uint64_t start, std::int64_t count, const T* in, T* out) {
  std::uint32_t words[4 * kPhiloxBlocks];
  std::int64_t done = 0;
  while (done < count) {
    const std::uint64_t index = start + static_cast<std::uint64_t>(done);
    const auto skip = static_cast<std::int64_t>(index & 3);
    DrawPhiloxBlocks(noise.key, index >> 2, noise.epoch, words);
    const std::int64_t now = std::min<std::int64_t>(count - done, 4 * kPhiloxBlocks - skip);
    for (std::int64_t i = 0; i < now; ++i) {
      const float u = (1.0F - noise.eps) + 2.0F * noise.eps * UniformFromWord(words[skip + i]);
      out[done + i] = in[done + i] * static_cast<T>(u);
    }
    done += now;
  }
}

}  // namespace

template <typename T>
void Jitter(const KernelArgs& args) {
  const TensorView& x = args.inputs[0];
  const std::int64_t columns = x.shape[x.shape.rank() - 1];
  const Noise noise = {.key = MakePhiloxKey(args.context->seed, args.attributes->String("stream")),
                       .epoch = args.context->iteration,
                       .eps = static_cast<float>(args.attributes->Float("eps"))};
  T* y = args.outputs[0].as<T>();
  ForEachBlock(args, x.shape.elements() / columns, std::max<std::int64_t>(1, kElementBlock / columns),
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t row = first; row < last; ++row) {
                   const std::int64_t start = LogicalRow(x, row, args.context->first_sample);
                   const T* in = x.as<T>() + row * columns;
                   T* out = y + row * columns;
                   for (const Interval& interval : x.extent.dims[x.shape.rank() - 1]) {
                     MultiplyNoise(noise, static_cast<std::uint64_t>(start + interval.start), interval.length,
                                   in, out);
                     in += interval.length;
                     out += interval.length;
                   }
                   std::fill(out, y + (row + 1) * columns, T(0));  // padding
                 }
               });
}

template void Jitter<float>(const KernelArgs&);
template void Jitter<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
