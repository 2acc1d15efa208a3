#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"

namespace engine::backend::cpu {
namespace {

// The place of the token in the rank's part of the sequence; −1: another rank holds it.
std::int64_t LocalToken(const TensorView& x, std::int64_t index) {
  if (x.extent.dims.empty()) return index;
  std::int64_t first = 0;
  for (const Interval& piece : x.extent.dims[1]) {
    if (index >= piece.start && index < piece.start + piece.length) return first + index - piece.start;
    first += piece.length;
  }
  return -1;
}

}  // namespace

template <typename T>
void SelectToken(const KernelArgs& args) {
  const TensorView& x = args.inputs[0];
  const std::int64_t token = LocalToken(x, args.attributes->Int("index"));
  const std::int64_t width = x.shape.elements(2, x.shape.rank());
  T* y = args.outputs[0].as<T>();
  for (std::int64_t b = 0; b < x.shape[0]; ++b) {
    if (token < 0) {
      std::fill_n(y + b * width, width, T(0));
    } else {
      std::copy_n(x.as<T>() + (b * x.shape[1] + token) * width, width, y + b * width);
    }
  }
}

template <typename T>
void SelectTokenGrad(const KernelArgs& args) {
  const TensorView& dx = args.outputs[0];
  const std::int64_t token = LocalToken(dx, args.attributes->Int("index"));
  const std::int64_t width = dx.shape.elements(2, dx.shape.rank());
  const T* dy = args.inputs[0].as<T>();
  std::fill_n(dx.as<T>(), dx.shape.elements(), T(0));
  for (std::int64_t b = 0; token >= 0 && b < dx.shape[0]; ++b)
    std::copy_n(dy + b * width, width, dx.as<T>() + (b * dx.shape[1] + token) * width);
}

template void SelectToken<float>(const KernelArgs&);
template void SelectToken<double>(const KernelArgs&);
template void SelectTokenGrad<float>(const KernelArgs&);
template void SelectTokenGrad<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
