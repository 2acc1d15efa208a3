#include <numeric>
#include <vector>

#include "engine/backend/cpu/kernels/classes.h"
#include "engine/backend/cpu/kernels/kernels.h"

namespace engine::backend::cpu {
namespace {

// log Σ exp(z / temperature), z a row; not finite where no distribution follows from it.
template <typename T>
T LogSum(const std::vector<T>& z, T temperature, std::vector<T>* scaled) {
  scaled->clear();
  for (const T logit : z) scaled->push_back(logit / temperature);
  const auto count = static_cast<std::int64_t>(z.size());
  const T top = MaxOf(count, scaled->data());
  return std::isfinite(top) ? top + std::log(SumExp(count, scaled->data(), top)) : top;
}

}  // namespace

template <typename T>
void TopLogits(const KernelArgs& args) {
  const TensorView& logits = args.inputs[0];
  const Piece classes = Classes(logits, *args.attributes);
  const std::int64_t columns = logits.shape[2];
  const std::int64_t rows = logits.shape[1];
  const std::int64_t count = args.outputs[0].shape[1];
  const T* temperatures = args.inputs[1].as<T>();
  ForEachBlock(args, logits.shape[0], 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::int32_t> order(static_cast<std::size_t>(classes.length));
    std::vector<T> row, scaled;
    for (std::int64_t b = begin; b < end; ++b) {
      const T* z = logits.as<T>() + ((b + 1) * rows - 1) * columns;
      row.assign(z, z + classes.length);
      const bool has_nan = std::any_of(row.begin(), row.end(), [](T logit) { return std::isnan(logit); });
      const std::int64_t known = has_nan ? 0 : std::min(count, classes.length);
      std::iota(order.begin(), order.end(), 0);
      std::partial_sort(
          order.begin(), order.begin() + known, order.end(),
          [z](std::int32_t i, std::int32_t j) { return z[i] > z[j] || (z[i] == z[j] && i < j); });
      std::int32_t* tokens = args.outputs[0].as<std::int32_t>() + b * count;
      T* values = args.outputs[1].as<T>() + b * count;
      for (std::int64_t n = 0; n < count; ++n) {
        const std::int32_t column = n < known ? order[static_cast<std::size_t>(n)] : -1;
        tokens[n] = n < known ? static_cast<std::int32_t>(classes.start) + column : -1;
        values[n] = n < known ? z[column] : -std::numeric_limits<T>::infinity();
      }
      T* log_sums = args.outputs[2].as<T>() + 2 * b;
      log_sums[0] = has_nan ? std::numeric_limits<T>::quiet_NaN() : LogSum(row, T(1), &scaled);
      log_sums[1] = has_nan ? log_sums[0] : LogSum(row, temperatures[b], &scaled);
    }
  });
}

template void TopLogits<float>(const KernelArgs&);
template void TopLogits<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
