// Gradients of a router's linear layer in 16 bits: dy is fp32, and products take operands of one type. So dy is cut into two
// numbers of 16 bits, dy = high + low, and one product takes both:
//   dgrad: dx[M, I] = [high low][M, 2·O] · [w; w][2·O, I], summed in fp32 and rounded once
//   wgrad: [d_high; d_low][2·O, I] = [high low]ᵀ · x, whose halves are then added to dw
// w and dw are small beside x and dx, which are read or written once.
#include "engine/backend/cuda/launch/router_linear.h"

#include "engine/backend/cuda/device/device.h"
#include "engine/backend/cuda/gemm/gemm.h"
#include "engine/backend/cuda/gemm/gemm_tuner.h"
#include "engine/backend/cuda/kernels/router_linear.h"
#include "engine/backend/cuda/launch/prepare_checks.h"
#include "engine/backend/cuda/profile/scratch_linear.h"

namespace engine::backend::cuda {
namespace {

absl::StatusOr<std::shared_ptr<Gemm>> PrepareGemm(Device& device, const LaunchArgs& args,
                                                  const GemmSpec& spec) {
  absl::StatusOr<std::shared_ptr<Gemm>> gemm = device.gemm_tuner().Prepare(spec);
  if (gemm.ok()) return gemm;
  return WithContext(gemm.status(), std::string(args.instruction->kernel()));
}

}  // namespace

bool CutsGradient(const LaunchArgs& args) {
  return CutsGradient(TypeOf(args.inputs[0]), TypeOf(args.inputs[1]));
}

absl::StatusOr<Enqueue> PrepareRouterDgrad(Device& device, const LaunchArgs& args) {
  const TensorView dy = args.inputs[0];
  const TensorView w = args.inputs[1];
  const TensorView dx = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType("linear_dgrad", {&w, &dx}));
  const RouterLinearLayout layout =
      LayoutOfRouterDgrad(TypeOf(dy), TypeOf(w), args.instruction->attributes());
  RETURN_IF_ERROR(ExpectScratch("linear_dgrad", args, layout.bytes));
  GemmSpec spec = {.m = layout.m, .n = layout.in, .k = 2 * layout.out};
  ASSIGN_OR_RETURN(spec.a, ToCudaType(w.dtype));
  spec.b = spec.a;
  spec.d = spec.a;
  ASSIGN_OR_RETURN(const std::shared_ptr<Gemm> gemm, PrepareGemm(device, args, spec));
  std::byte* const parts = args.scratch.data() + layout.parts;
  std::byte* const twice = args.scratch.data() + layout.twice;
  const std::int64_t w_bytes = w.shape.elements() * SizeOf(w.dtype);
  const GemmOperands operands = {.a = parts, .b = twice, .d = dx.data, .workspace = args.scratch.data()};
  return Enqueue([=](cudaStream_t stream, const KernelContext&) {
    CutInTwo(dy.as<float>(), layout.m, layout.out, w.dtype, parts, stream);
    RETURN_IF_ERROR(ToStatus(cudaGetLastError(), "linear_dgrad"));
    for (std::byte* const to : {twice, twice + w_bytes}) {
      RETURN_IF_CUDA_ERROR(
          cudaMemcpyAsync(to, w.data, static_cast<std::size_t>(w_bytes), cudaMemcpyDeviceToDevice, stream));
    }
    return gemm->Run(stream, operands);
  });
}

absl::StatusOr<Enqueue> PrepareRouterWgrad(Device& device, const LaunchArgs& args) {
  const TensorView dy = args.inputs[0];
  const TensorView x = args.inputs[1];
  const TensorView dw = args.outputs[0];
  if (dw.dtype != DType::kBF16) RETURN_IF_ERROR(ExpectFloat("linear_wgrad", {&dw}));
  const RouterLinearLayout layout =
      LayoutOfRouterWgrad(TypeOf(dy), TypeOf(x), args.instruction->attributes());
  RETURN_IF_ERROR(ExpectScratch("linear_wgrad", args, layout.bytes));
  GemmSpec spec = {.m = 2 * layout.out, .n = layout.in, .k = layout.m, .transpose_a = true};
  ASSIGN_OR_RETURN(spec.a, ToCudaType(x.dtype));
  spec.b = spec.a;
  spec.d = CUDA_R_32F;
  ASSIGN_OR_RETURN(const std::shared_ptr<Gemm> gemm, PrepareGemm(device, args, spec));
  std::byte* const parts = args.scratch.data() + layout.parts;
  std::byte* const twice = args.scratch.data() + layout.twice;
  const bool accumulate = (args.accumulate & 1U) != 0;
  const GemmOperands operands = {.a = parts, .b = x.data, .d = twice, .workspace = args.scratch.data()};
  return Enqueue([=](cudaStream_t stream, const KernelContext&) {
    CutInTwo(dy.as<float>(), layout.m, layout.out, x.dtype, parts, stream);
    RETURN_IF_ERROR(ToStatus(cudaGetLastError(), "linear_wgrad"));
    RETURN_IF_ERROR(gemm->Run(stream, operands));
    AddTwo(reinterpret_cast<const float*>(twice), layout.out * layout.in, accumulate, dw.dtype, dw.data,
           stream);
    return ToStatus(cudaGetLastError(), "linear_wgrad");
  });
}

}  // namespace engine::backend::cuda
