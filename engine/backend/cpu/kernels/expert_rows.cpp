#include <vector>

#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"
#include "engine/graph/rows.h"

namespace engine::backend::cpu {

template <typename T>
void Tally(const KernelArgs& args) {
  const TensorView& choice = args.inputs[0];
  const TensorView& count = args.outputs[0];
  const Piece here = OnePiece(count, 1);
  const std::int64_t groups = count.shape[0];
  const std::int64_t choices = groups > 0 ? choice.shape.elements() / groups : 0;
  ForEachBlock(args, groups, 1, [&](std::int64_t group, std::int64_t) {
    T* of_group = count.as<T>() + group * here.length;
    std::fill_n(of_group, here.length, T(0));
    for (std::int64_t c = 0; c < choices; ++c) {
      const std::int64_t expert = choice.as<std::int32_t>()[group * choices + c] - here.start;
      if (expert >= 0 && expert < here.length) of_group[expert] += T(1);
    }
  });
}

// A stable counting sort, on one thread: it is small beside the products.
template <typename T>
void Place(const KernelArgs& args) {
  const TensorView& choice = args.inputs[0];
  const Piece here = OnePiece(args.inputs[1], 1);
  const std::int64_t choices = choice.shape.elements();
  const auto* expert_of = choice.as<std::int32_t>();
  auto* choice_of = args.outputs[0].as<std::int32_t>();
  auto* row_of = args.outputs[1].as<std::int32_t>();
  auto* groups = args.outputs[2].as<std::int32_t>();
  std::vector<std::int32_t> next(static_cast<size_t>(here.length), 0);
  const auto local = [&](std::int64_t c) { return expert_of[c] - here.start; };
  const auto is_here = [&](std::int64_t e) { return e >= 0 && e < here.length; };
  for (std::int64_t c = 0; c < choices; ++c) {
    if (is_here(local(c))) ++next[static_cast<size_t>(local(c))];
  }
  std::int64_t first = 0;
  for (std::int64_t e = 0; e < here.length; ++e) {
    const std::int32_t rows = next[static_cast<size_t>(e)];
    groups[2 * e] = static_cast<std::int32_t>(first);
    groups[2 * e + 1] = rows;
    next[static_cast<size_t>(e)] = static_cast<std::int32_t>(first);
    first += (rows + graph::kRowAlignment - 1) / graph::kRowAlignment * graph::kRowAlignment;
  }
  const std::int64_t bound = args.outputs[0].shape[0];
  ENGINE_CHECK(first <= bound, "{} rows, but a bound of {}", first, bound);
  std::fill_n(choice_of, bound, -1);
  for (std::int64_t c = 0; c < choices; ++c) {
    row_of[c] = -1;
    if (!is_here(local(c))) continue;
    row_of[c] = next[static_cast<size_t>(local(c))]++;
    choice_of[row_of[c]] = static_cast<std::int32_t>(c);
  }
}

template <typename T>
void Spread(const KernelArgs& args) {
  const TensorView& rows = args.outputs[0];
  const std::int64_t width = rows.shape.elements(1, rows.shape.rank());
  const Shape& choice = args.inputs[3].shape;
  const std::int64_t k = choice[choice.rank() - 1];
  const auto* choice_of = args.inputs[1].as<std::int32_t>();
  ForEachBlock(args, rows.shape[0], 64, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      T* to = rows.as<T>() + row * width;
      if (choice_of[row] < 0) {
        std::fill_n(to, width, T(0));
      } else {
        std::copy_n(args.inputs[0].as<T>() + choice_of[row] / k * width, width, to);
      }
    }
  });
}

template <typename T>
void Combine(const KernelArgs& args) {
  const TensorView& rows = args.inputs[0];
  const std::int64_t width = rows.shape.elements(1, rows.shape.rank());
  const Shape& choice = args.inputs[3].shape;
  const std::int64_t k = choice[choice.rank() - 1];
  const auto* row_of = args.inputs[2].as<std::int32_t>();
  ForEachBlock(args, choice.elements() / k, 64, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t token = first; token < last; ++token) {
      T* sum = args.outputs[0].as<T>() + token * width;
      std::fill_n(sum, width, T(0));
      for (std::int64_t j = 0; j < k; ++j) {
        const std::int64_t row = row_of[token * k + j];
        if (row < 0) continue;
        const T* term = rows.as<T>() + row * width;
        for (std::int64_t i = 0; i < width; ++i) sum[i] += term[i];
      }
    }
  });
}

template void Tally<float>(const KernelArgs&);
template void Tally<double>(const KernelArgs&);
template void Place<float>(const KernelArgs&);
template void Place<double>(const KernelArgs&);
template void Spread<float>(const KernelArgs&);
template void Spread<double>(const KernelArgs&);
template void Combine<float>(const KernelArgs&);
template void Combine<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
