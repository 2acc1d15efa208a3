// The ops of experts in passes: the kernels of the ops that they stand for, on one window of rows after the other.
#include <algorithm>
#include <array>

#include "engine/backend/cpu/kernels/groups.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"
#include "engine/graph/windows.h"

namespace engine::backend::cpu {
namespace {

// Inputs of both ops; that of the gradient's kernel is the last one.
enum Input : std::uint8_t { kX, kWeight, kChoice, kChoiceOf, kRowOf, kGroups, kW1, kW2, kDy };

graph::WindowSizes SizesOf(const Shape& choice, const Shape& choice_of, const Shape& w1, const Shape& w2,
                           const graph::Attributes& attributes) {
  return graph::SizesOfWindows(choice, choice_of, w1, w2, attributes.Int("passes"));
}

std::int64_t ScratchOf(Types inputs, const graph::Attributes& attributes, bool backward) {
  const graph::WindowSizes sizes = SizesOf(inputs[kChoice].shape, inputs[kChoiceOf].shape, inputs[kW1].shape,
                                           inputs[kW2].shape, attributes);
  const std::int64_t size = SizeOf(inputs[kX].dtype);
  graph::ScratchPlaces scratch;
  const graph::WindowBuffers buffers(sizes, size, backward, &scratch);
  if (backward) scratch.Take(sizes.choices, size);
  return scratch.bytes();
}

// The tensors of one window, and kernels on them.
template <typename T>
class Pass {
 public:
  Pass(const KernelArgs& args, bool backward)
      : args_(args),
        sizes_(SizesOf(args.inputs[kChoice].shape, args.inputs[kChoiceOf].shape, args.inputs[kW1].shape,
                       args.inputs[kW2].shape, *args.attributes)),
        scratch_(args.scratch.data()),
        buffers_(sizes_, sizeof(T), backward, &scratch_) {
    if (backward) d_weight_ = scratch_.Take(sizes_.choices, sizeof(T));
  }

  const graph::WindowSizes& sizes() const { return sizes_; }

  // Goes to window `w`. False: it has no rows.
  bool Enter(std::int64_t w) {
    first_ = w * sizes_.rows;
    count_ = std::min(sizes_.rows, sizes_.bound - first_);
    bool any = false;
    auto* const here = static_cast<std::int32_t*>(buffers_.groups);
    for (std::int64_t e = 0; e < sizes_.experts; ++e) {
      const Group group = GroupOf(args_.inputs[kGroups], e);
      const graph::RowsInWindow in = graph::InWindow(group.first, group.rows, first_, count_);
      here[2 * e] = static_cast<std::int32_t>(in.first);
      here[2 * e + 1] = static_cast<std::int32_t>(in.count);
      any = any || in.count > 0;
    }
    return any;
  }

  TensorView rows() const { return Of(buffers_.rows, {count_, sizes_.width}); }
  TensorView d_rows() const { return Of(buffers_.d_rows, {count_, sizes_.width}); }
  TensorView hidden() const {
    if (sizes_.hidden == sizes_.ffn) return Of(buffers_.hidden, {count_, sizes_.ffn});
    return Of(buffers_.hidden, {count_, 2, sizes_.ffn});
  }
  TensorView activated() const { return Of(buffers_.activated, {count_, sizes_.ffn}); }
  TensorView d_activated() const { return Of(buffers_.d_activated, {count_, sizes_.ffn}); }

  void SpreadTokens(const TensorView& tokens, const TensorView& to) const {
    Run(Spread<T>, {tokens, ChoiceOf(), args_.inputs[kRowOf], args_.inputs[kChoice]}, {to});
  }
  void Product(const TensorView& from, Input w, const TensorView& to) const {
    Run(GroupedLinear<T>, {from, args_.inputs[w], GroupsHere()}, {to});
  }
  void ProductBack(const TensorView& from, Input w, const TensorView& to) const {
    Run(GroupedLinearDgrad<T>, {from, args_.inputs[w], GroupsHere()}, {to});
  }
  void AddWeights(const TensorView& dy, const TensorView& x, size_t output) const {
    const bool adds = first_ > 0 || Accumulates(args_, static_cast<int>(output));
    Run(GroupedLinearWgrad<T>, {dy, x, GroupsHere()}, {args_.outputs[output]}, adds ? 1U : 0U);
  }
  void Activate() const {
    Run(ExpertActivation<T>, {hidden(), args_.inputs[kWeight], ChoiceOf()}, {activated()});
  }
  // The first product becomes its gradient.
  void ActivateBack() const {
    TensorView of_all = args_.outputs[1];
    of_all.data = d_weight_;
    Run(ExpertActivationGrad<T>, {hidden(), args_.inputs[kWeight], ChoiceOf(), d_activated()},
        {hidden(), of_all});
    const auto* choice_of = ChoiceOf().template as<std::int32_t>();
    for (std::int64_t row = 0; row < count_; ++row) {
      const std::int32_t choice = choice_of[row];
      if (choice >= 0) args_.outputs[1].as<T>()[choice] = of_all.as<T>()[choice];
    }
  }

  // Adds the window's rows to the tokens' sums.
  void AddRows(const TensorView& from, const TensorView& to) const {
    const auto* row_of = args_.inputs[kRowOf].as<std::int32_t>();
    ForEachBlock(args_, sizes_.choices / sizes_.k, 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t choice = begin * sizes_.k; choice < end * sizes_.k; ++choice) {
        const std::int64_t row = row_of[choice] - first_;
        if (row_of[choice] < 0 || row < 0 || row >= count_) continue;
        T* sum = to.as<T>() + choice / sizes_.k * sizes_.width;
        const T* term = from.as<T>() + row * sizes_.width;
        for (std::int64_t i = 0; i < sizes_.width; ++i) sum[i] += term[i];
      }
    });
  }

 private:
  using Views = std::initializer_list<TensorView>;

  TensorView Of(void* data, const Shape& shape) const {
    return {.data = data, .dtype = args_.inputs[kX].dtype, .shape = shape, .extent = {}, .logical = shape};
  }
  TensorView ChoiceOf() const {
    TensorView here = args_.inputs[kChoiceOf];
    here.data = here.template as<std::int32_t>() + first_;
    here.shape[0] = count_;
    return here;
  }
  TensorView GroupsHere() const {
    TensorView here = args_.inputs[kGroups];
    here.data = buffers_.groups;
    return here;
  }

  void Run(void (*kernel)(const KernelArgs&), Views inputs, Views outputs,
           std::uint32_t accumulate = 0) const {
    KernelArgs args = args_;
    args.inputs = {inputs.begin(), inputs.size()};
    args.outputs = {outputs.begin(), outputs.size()};
    args.accumulate = accumulate;
    args.scratch = {};
    kernel(args);
  }

  const KernelArgs& args_;
  graph::WindowSizes sizes_;
  graph::ScratchPlaces scratch_;
  graph::WindowBuffers buffers_;
  void* d_weight_ = nullptr;            // [N]: of the window's choices
  std::int64_t first_ = 0, count_ = 0;  // rows of the window
};

}  // namespace

std::int64_t ExpertPassesScratch(Types inputs, Types, const graph::Attributes& attributes) {
  return ScratchOf(inputs, attributes, false);
}
std::int64_t ExpertPassesGradScratch(Types inputs, Types, const graph::Attributes& attributes) {
  return ScratchOf(inputs, attributes, true);
}

template <typename T>
void ExpertPasses(const KernelArgs& args) {
  Pass<T> pass(args, false);
  const TensorView& y = args.outputs[0];
  std::fill_n(y.as<T>(), y.shape.elements(), T(0));
  for (std::int64_t w = 0; w < pass.sizes().windows; ++w) {
    if (!pass.Enter(w)) continue;
    pass.SpreadTokens(args.inputs[kX], pass.rows());
    pass.Product(pass.rows(), kW1, pass.hidden());
    pass.Activate();
    pass.Product(pass.activated(), kW2, pass.rows());
    pass.AddRows(pass.rows(), y);
  }
}

template <typename T>
void ExpertPassesGrad(const KernelArgs& args) {
  Pass<T> pass(args, true);
  const TensorView& dx = args.outputs[0];
  const TensorView& d_weight = args.outputs[1];
  std::fill_n(dx.as<T>(), dx.shape.elements(), T(0));
  std::fill_n(d_weight.as<T>(), d_weight.shape.elements(), T(0));
  for (std::int64_t w = 0; w < pass.sizes().windows; ++w) {
    if (!pass.Enter(w) && w > 0) continue;  // the first one writes the gradients of experts without rows
    pass.SpreadTokens(args.inputs[kX], pass.rows());
    pass.Product(pass.rows(), kW1, pass.hidden());
    pass.Activate();
    pass.SpreadTokens(args.inputs[kDy], pass.d_rows());
    pass.AddWeights(pass.d_rows(), pass.activated(), 3);
    pass.ProductBack(pass.d_rows(), kW2, pass.d_activated());
    pass.ActivateBack();
    pass.AddWeights(pass.hidden(), pass.rows(), 2);
    pass.ProductBack(pass.hidden(), kW1, pass.d_rows());
    pass.AddRows(pass.d_rows(), dx);
  }
}

template <typename T>
void ExtraRows(const KernelArgs& args) {
  const std::int64_t bound = args.inputs[0].shape[0];
  const std::int64_t window = graph::WindowRows(bound, args.attributes->Int("passes"));
  double extra = 0;
  for (std::int64_t e = 0; e < args.inputs[1].shape[0]; ++e) {
    const Group group = GroupOf(args.inputs[1], e);
    extra += static_cast<double>(graph::InWindow(group.first, group.rows, window, bound).count);
  }
  double* sum = args.outputs[0].as<double>();
  *sum = (Accumulates(args, 0) ? *sum : 0.0) + extra;
}

template void ExpertPasses<float>(const KernelArgs&);
template void ExpertPasses<double>(const KernelArgs&);
template void ExpertPassesGrad<float>(const KernelArgs&);
template void ExpertPassesGrad<double>(const KernelArgs&);
template void ExtraRows<float>(const KernelArgs&);
template void ExtraRows<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
