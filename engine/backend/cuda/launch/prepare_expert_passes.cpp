// Experts in passes (ops/expert_passes.cpp): the kernels of the ops that they stand for, on one window of rows after the other. All
// passes are enqueued; those whose windows have no rows find that out on the device.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "engine/backend/cuda/device/device.h"
#include "engine/backend/cuda/kernels/expert_activation.h"
#include "engine/backend/cuda/kernels/expert_rows.h"
#include "engine/backend/cuda/kernels/grouped.h"
#include "engine/backend/cuda/launch/prepare.h"
#include "engine/backend/cuda/launch/prepare_checks.h"
#include "engine/backend/cuda/launch/prepare_grouped.h"
#include "engine/backend/cuda/libraries/status.h"
#include "engine/graph/activation.h"
#include "engine/graph/windows.h"

namespace engine::backend::cuda {
namespace {

// Inputs; that of the gradient's op is the last one.
enum Input : std::uint8_t { kX, kWeight, kChoice, kChoiceOf, kRowOf, kGroups, kW1, kW2, kDy };

// Blocks of the activation where most windows have no rows.
constexpr std::int64_t kBlocksOfWindow = 1056;

// What the passes of one instruction share.
struct Passes {
  TensorView x, weight, w1, w2;
  graph::WindowSizes sizes;
  graph::WindowBuffers buffers;
  std::int32_t* order = nullptr;  // of the experts; null: forward
  const std::int32_t* choice_of = nullptr;
  const std::int32_t* row_of = nullptr;
  const std::int32_t* groups = nullptr;
  std::string act;

  std::int64_t row_bytes() const { return sizes.width * SizeOf(x.dtype); }

  std::int64_t CountOf(std::int64_t w) const { return std::min(sizes.rows, sizes.bound - w * sizes.rows); }

  RowPlaces PlacesOf(std::int64_t w) const {
    return {.choice_of = choice_of + w * sizes.rows,
            .row_of = row_of,
            .rows = CountOf(w),
            .tokens = sizes.choices / sizes.k,
            .k = static_cast<int>(sizes.k),
            .first = static_cast<std::int32_t>(w * sizes.rows),
            .last_group = groups + 2 * (sizes.experts - 1)};
  }

  // act is set where it is launched, as it views this.
  ExpertActivationRows ActivationOf(std::int64_t w) const {
    return {.act = act,
            .gated = sizes.hidden != sizes.ffn,
            .dtype = x.dtype,
            .rows = CountOf(w),
            .ffn = sizes.ffn,
            .h = buffers.hidden,
            .weight = weight.as<float>(),
            .choice_of = choice_of + w * sizes.rows,
            .most_blocks = w > 0 ? kBlocksOfWindow : 0};
  }

  GroupedProduct ProductOf(GroupedKind kind, std::int64_t w, std::int64_t out, std::int64_t in) const {
    return {.kind = kind,
            .experts = sizes.experts,
            .rows = sizes.rows,
            .out = out,
            .in = in,
            .operands = x.dtype,
            .result = x.dtype,
            .groups = static_cast<const std::int32_t*>(buffers.groups) + w * 2 * sizes.experts};
  }
};

absl::StatusOr<Passes> PassesOf(const char* op, const LaunchArgs& args, bool backward) {
  const auto inputs = args.inputs;
  RETURN_IF_ERROR(ExpectOneElementType(op, {&inputs[kX], &inputs[kW1], &inputs[kW2], &args.outputs[0]}));
  RETURN_IF_ERROR(ExpectFloat(op, {&inputs[kWeight]}));
  const graph::Attributes& attributes = args.instruction->attributes();
  const std::string& act = attributes.String("act");
  if (graph::FindActivation(graph::kExpertActivations, act) == nullptr)
    return Unimplemented("{}: no CUDA kernel for the activation {}", op, act);
  const graph::WindowSizes sizes =
      graph::SizesOfWindows(inputs[kChoice].shape, inputs[kChoiceOf].shape, inputs[kW1].shape,
                            inputs[kW2].shape, attributes.Int("passes"));
  if (sizes.experts == 0 || sizes.width == 0 || sizes.ffn == 0)
    return Unimplemented("{} of {} experts of {} by {}", op, sizes.experts, sizes.width, sizes.ffn);
  graph::ScratchPlaces scratch(args.scratch.data());
  Passes passes = {.x = inputs[kX],
                   .weight = inputs[kWeight],
                   .w1 = inputs[kW1],
                   .w2 = inputs[kW2],
                   .sizes = sizes,
                   .buffers = graph::WindowBuffers(sizes, SizeOf(inputs[kX].dtype), backward, &scratch),
                   .choice_of = inputs[kChoiceOf].as<std::int32_t>(),
                   .row_of = inputs[kRowOf].as<std::int32_t>(),
                   .groups = inputs[kGroups].as<std::int32_t>(),
                   .act = act};
  if (backward) passes.order = static_cast<std::int32_t*>(scratch.Take(sizes.experts, SizeOf(DType::kI32)));
  RETURN_IF_ERROR(ExpectScratch(op, args, scratch.bytes()));
  return passes;
}

// The products of one window.
struct WindowProducts {
  Enqueue first, second;  // fc1, fc2
  Enqueue second_weights, second_back, first_weights, first_back;
};

absl::StatusOr<WindowProducts> PrepareProducts(Device& device, const Passes& p, std::int64_t w) {
  WindowProducts products;
  GroupedProduct first = p.ProductOf(GroupedKind::kForward, w, p.sizes.hidden, p.sizes.width);
  first.a = p.buffers.rows;
  first.b = p.w1.data;
  first.d = p.buffers.hidden;
  ASSIGN_OR_RETURN(products.first, PrepareGroupedProduct(device, first, nullptr));
  GroupedProduct second = p.ProductOf(GroupedKind::kForward, w, p.sizes.width, p.sizes.ffn);
  second.a = p.buffers.activated;
  second.b = p.w2.data;
  second.d = p.buffers.rows;
  ASSIGN_OR_RETURN(products.second, PrepareGroupedProduct(device, second, nullptr));
  return products;
}

absl::StatusOr<Enqueue> PrepareWeights(Device& device, const Passes& p, const LaunchArgs& args,
                                       std::int64_t w, size_t output, GroupedProduct product) {
  product.d = args.outputs[output].data;
  product.result = args.outputs[output].dtype;
  product.accumulate = w > 0 || (args.accumulate >> output & 1U) != 0;
  if (product.result != DType::kF32 && product.result != product.operands)
    return Unimplemented("expert_passes_grad: gradients in {} of {}", Name(product.result),
                         Name(product.operands));
  return PrepareGroupedProduct(device, product, p.order);
}

absl::StatusOr<WindowProducts> PrepareProductsBack(Device& device, const Passes& p, const LaunchArgs& args,
                                                   std::int64_t w) {
  ASSIGN_OR_RETURN(WindowProducts products, PrepareProducts(device, p, w));
  GroupedProduct weights = p.ProductOf(GroupedKind::kWgrad, w, p.sizes.width, p.sizes.ffn);
  weights.a = p.buffers.d_rows;
  weights.b = p.buffers.activated;
  ASSIGN_OR_RETURN(products.second_weights, PrepareWeights(device, p, args, w, 3, weights));
  GroupedProduct back = p.ProductOf(GroupedKind::kDgrad, w, p.sizes.width, p.sizes.ffn);
  back.a = p.buffers.d_rows;
  back.b = p.w2.data;
  back.d = p.buffers.d_activated;
  ASSIGN_OR_RETURN(products.second_back, PrepareGroupedProduct(device, back, nullptr));
  weights = p.ProductOf(GroupedKind::kWgrad, w, p.sizes.hidden, p.sizes.width);
  weights.a = p.buffers.hidden;
  weights.b = p.buffers.rows;
  ASSIGN_OR_RETURN(products.first_weights, PrepareWeights(device, p, args, w, 2, weights));
  back = p.ProductOf(GroupedKind::kDgrad, w, p.sizes.hidden, p.sizes.width);
  back.a = p.buffers.hidden;
  back.b = p.w1.data;
  back.d = p.buffers.d_rows;
  ASSIGN_OR_RETURN(products.first_back, PrepareGroupedProduct(device, back, nullptr));
  return products;
}

using AllProducts = std::vector<WindowProducts>;

}  // namespace

absl::StatusOr<Enqueue> PrepareExpertPasses(Device& device, const LaunchArgs& args) {
  ASSIGN_OR_RETURN(const Passes passes, PassesOf("expert_passes", args, /*backward=*/false));
  auto products = std::make_shared<AllProducts>();
  for (std::int64_t w = 0; w < passes.sizes.windows; ++w) {
    ASSIGN_OR_RETURN(WindowProducts of_window, PrepareProducts(device, passes, w));
    products->push_back(std::move(of_window));
  }
  void* const y = args.outputs[0].data;
  return [passes, products, y](cudaStream_t stream, const KernelContext& context) -> absl::Status {
    const Passes& p = passes;
    LaunchWindowGroups(p.groups, p.sizes.experts, p.sizes.rows, p.sizes.windows,
                       static_cast<std::int32_t*>(p.buffers.groups), stream);
    for (std::int64_t w = 0; w < p.sizes.windows; ++w) {
      const WindowProducts& of = (*products)[static_cast<size_t>(w)];
      LaunchSpread(p.PlacesOf(w), p.row_bytes(), p.x.data, p.buffers.rows, stream);
      RETURN_IF_ERROR(of.first(stream, context));
      LaunchExpertActivation(p.ActivationOf(w), p.buffers.activated, stream);
      RETURN_IF_ERROR(of.second(stream, context));
      LaunchCombine(p.PlacesOf(w), p.x.dtype, p.sizes.width, p.buffers.rows, y, stream);
    }
    return ToStatus(cudaGetLastError(), "expert_passes");
  };
}

absl::StatusOr<Enqueue> PrepareExpertPassesGrad(Device& device, const LaunchArgs& args) {
  ASSIGN_OR_RETURN(const Passes passes, PassesOf("expert_passes_grad", args, /*backward=*/true));
  const TensorView dy = args.inputs[kDy];
  RETURN_IF_ERROR(ExpectOneElementType("expert_passes_grad", {&passes.x, &dy}));
  const TensorView d_weight = args.outputs[1];
  RETURN_IF_ERROR(ExpectFloat("expert_passes_grad", {&d_weight}));
  auto products = std::make_shared<AllProducts>();
  for (std::int64_t w = 0; w < passes.sizes.windows; ++w) {
    ASSIGN_OR_RETURN(WindowProducts of_window, PrepareProductsBack(device, passes, args, w));
    products->push_back(std::move(of_window));
  }
  void* const dx = args.outputs[0].data;
  return [passes, products, dy, dx, d_weight](cudaStream_t stream,
                                              const KernelContext& context) -> absl::Status {
    const Passes& p = passes;
    LaunchWindowGroups(p.groups, p.sizes.experts, p.sizes.rows, p.sizes.windows,
                       static_cast<std::int32_t*>(p.buffers.groups), stream);
    for (std::int64_t w = 0; w < p.sizes.windows; ++w) {
      const WindowProducts& of = (*products)[static_cast<size_t>(w)];
      const RowPlaces places = p.PlacesOf(w);
      LaunchSpread(places, p.row_bytes(), p.x.data, p.buffers.rows, stream);
      RETURN_IF_ERROR(of.first(stream, context));
      LaunchSpread(places, p.row_bytes(), dy.data, p.buffers.d_rows, stream);
      RETURN_IF_ERROR(of.second_back(stream, context));
      // The first window's launch also writes the zeros of choices whose experts are not here.
      LaunchExpertActivationGrad(p.ActivationOf(w), p.buffers.d_activated, p.buffers.hidden,
                                 d_weight.as<float>(), w == 0 ? p.sizes.choices : 0, p.buffers.activated,
                                 stream);
      RETURN_IF_ERROR(of.second_weights(stream, context));
      RETURN_IF_ERROR(of.first_weights(stream, context));
      RETURN_IF_ERROR(of.first_back(stream, context));
      LaunchCombine(places, p.x.dtype, p.sizes.width, p.buffers.d_rows, dx, stream);
    }
    return ToStatus(cudaGetLastError(), "expert_passes_grad");
  };
}

absl::StatusOr<Enqueue> PrepareExtraRows(Device&, const LaunchArgs& args) {
  const TensorView groups = args.inputs[1];
  const TensorView sum = args.outputs[0];
  const std::int64_t rows =
      graph::WindowRows(args.inputs[0].shape[0], args.instruction->attributes().Int("passes"));
  const bool accumulate = (args.accumulate & 1U) != 0;
  return [=](cudaStream_t stream, const KernelContext&) {
    LaunchExtraRows(groups.as<std::int32_t>(), groups.shape[0], rows, accumulate, sum.as<double>(), stream);
    return ToStatus(cudaGetLastError(), "extra_rows");
  };
}

}  // namespace engine::backend::cuda
