#include <algorithm>

#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"

namespace engine::backend::cpu {
namespace {

std::int64_t RowsOfTask(std::int64_t width) { return std::max<std::int64_t>(1, kElementBlock / width); }

}  // namespace

template <typename T>
void Join(const KernelArgs& args) {
  const Shape& y = args.outputs[0].shape;
  const std::int64_t width = y[y.rank() - 1];
  const std::int64_t heads = y[y.rank() - 2];
  const auto shared = static_cast<std::uint64_t>(args.attributes->Int("shared", 0));
  ForEachBlock(args, y.elements(0, y.rank() - 1), RowsOfTask(width), [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t row = from; row < to; ++row) {
      T* out = args.outputs[0].as<T>() + row * width;
      for (std::size_t i = 0; i < args.inputs.size(); ++i) {
        const std::int64_t count = args.inputs[i].shape[y.rank() - 1];
        const std::int64_t of = (shared >> i & 1U) != 0 ? row / heads : row;
        out = std::copy_n(args.inputs[i].as<T>() + of * count, count, out);
      }
    }
  });
}

template <typename T>
void JoinGrad(const KernelArgs& args) {
  const Shape& dy = args.inputs[0].shape;
  const std::int64_t width = dy[dy.rank() - 1];
  const std::int64_t count = args.attributes->Int("count");
  const std::int64_t summed = args.attributes->Int("shared", 0) != 0 ? dy[dy.rank() - 2] : 1;
  const T* d = args.inputs[0].as<T>() + args.attributes->Int("first");
  const std::int64_t rows = dy.elements(0, dy.rank() - 1) / summed;
  ForEachBlock(args, rows, RowsOfTask(width * summed), [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t row = from; row < to; ++row) {
      T* out = args.outputs[0].as<T>() + row * count;
      std::copy_n(d + row * summed * width, count, out);
      for (std::int64_t h = 1; h < summed; ++h) {
        const T* of_head = d + (row * summed + h) * width;
        for (std::int64_t e = 0; e < count; ++e) out[e] += of_head[e];
      }
    }
  });
}

template void Join<float>(const KernelArgs&);
template void Join<double>(const KernelArgs&);
template void JoinGrad<float>(const KernelArgs&);
template void JoinGrad<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
