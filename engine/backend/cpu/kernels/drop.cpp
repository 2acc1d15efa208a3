#include <vector>

#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"

namespace engine::backend::cpu {

// An expert's choices of a group of samples are put in the order in which they stay; what is behind the first `cap` goes.
template <typename T>
void Drop(const KernelArgs& args) {
  const TensorView& choice = args.inputs[0];
  const std::int64_t of_group = args.attributes->Int("samples", 1);
  const std::int64_t groups = choice.shape[0] / of_group;
  const std::int64_t choices = of_group * choice.shape.elements(1, choice.shape.rank());
  const auto cap = static_cast<size_t>(args.attributes->Int("cap"));
  const bool by_weight = args.attributes->String("by") == "weight";
  ForEachBlock(args, groups, 1, [&](std::int64_t group, std::int64_t) {
    const auto* chosen = choice.as<std::int32_t>() + group * choices;
    const T* weight = args.inputs[1].as<T>() + group * choices;
    auto* kept = args.outputs[0].as<std::int32_t>() + group * choices;
    std::copy_n(chosen, choices, kept);
    std::vector<std::vector<std::int64_t>> of_expert;
    for (std::int64_t c = 0; c < choices; ++c) {
      if (chosen[c] < 0) continue;
      const auto expert = static_cast<size_t>(chosen[c]);
      if (expert >= of_expert.size()) of_expert.resize(expert + 1);
      of_expert[expert].push_back(c);
    }
    for (std::vector<std::int64_t>& order : of_expert) {
      if (order.size() <= cap) continue;
      if (by_weight) {
        std::stable_sort(order.begin(), order.end(),
                         [&](std::int64_t a, std::int64_t b) { return weight[a] > weight[b]; });
      }
      for (size_t i = cap; i < order.size(); ++i) kept[order[i]] = -1;
    }
  });
}

template <typename T>
void DropCount(const KernelArgs& args) {
  const auto* kept = args.inputs[0].as<std::int32_t>();
  const auto dropped = std::count(kept, kept + args.inputs[0].shape.elements(), -1);
  double* count = args.outputs[0].as<double>();
  *count = (Accumulates(args, 0) ? *count : 0.0) + static_cast<double>(dropped);
}

template void Drop<float>(const KernelArgs&);
template void Drop<double>(const KernelArgs&);
template void DropCount<float>(const KernelArgs&);
template void DropCount<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
