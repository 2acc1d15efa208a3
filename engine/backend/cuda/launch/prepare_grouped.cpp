// Grouped linear layers (ops/grouped_linear.cpp, and in FP8 ops/fp8.h): of bf16 and FP8 in whole 16-byte pieces on Hopper by
// its tensor cores, else by the plain kernel.
#include "engine/backend/cuda/launch/prepare_grouped.h"

#include <limits>
#include <memory>

#include "engine/backend/cuda/device/device.h"
#include "engine/backend/cuda/kernels/grouped.h"
#include "engine/backend/cuda/kernels/grouped_sm90a.h"
#include "engine/backend/cuda/kernels/quantize.h"
#include "engine/backend/cuda/launch/prepare.h"
#include "engine/backend/cuda/launch/prepare_checks.h"
#include "engine/backend/cuda/launch/tensor_map.h"
#include "engine/backend/cuda/profile/quantize_grid.h"

namespace engine::backend::cuda {
namespace {

std::int64_t RowSize(const TensorView& rows) { return rows.shape.elements(1, rows.shape.rank()); }

absl::StatusOr<GroupedProduct> ProductOf(GroupedKind kind, const LaunchArgs& args) {
  const std::string_view op = args.instruction->kernel();
  const TensorView& a = args.inputs[0];
  const TensorView& b = args.inputs[1];
  const TensorView& groups = args.inputs[2];
  const TensorView& d = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType(op, {&a, &b}));
  if (kind != GroupedKind::kWgrad || d.dtype != DType::kF32)
    RETURN_IF_ERROR(ExpectOneElementType(op, {&a, &d}));
  if (groups.dtype != DType::kI32) return Internal("{}: groups are {}", op, Name(groups.dtype));
  const TensorView& in = kind == GroupedKind::kForward ? a : kind == GroupedKind::kDgrad ? d : b;
  const TensorView& out = kind == GroupedKind::kForward ? d : a;
  return GroupedProduct{.kind = kind,
                        .experts = groups.shape[0],
                        .rows = a.shape[0],
                        .out = RowSize(out),
                        .in = RowSize(in),
                        .a = a.data,
                        .b = b.data,
                        .d = d.data,
                        .operands = a.dtype,
                        .result = d.dtype,
                        .accumulate = (args.accumulate & 1U) != 0,
                        .groups = groups.as<std::int32_t>()};
}

// Inputs a, b, their states, groups; b and, of kWgrad, a transposed, in the shapes of what they are made of.
absl::StatusOr<GroupedProduct> Fp8ProductOf(GroupedKind kind, const LaunchArgs& args) {
  const std::string_view op = args.instruction->kernel();
  const TensorView& a = args.inputs[0];
  const TensorView& b = args.inputs[1];
  const TensorView& groups = args.inputs[4];
  const TensorView& d = args.outputs[0];
  if ((a.dtype != DType::kE4M3 && a.dtype != DType::kE5M2) || b.dtype != DType::kE4M3)
    return Internal("{}: {} times {} where FP8 times e4m3 is due", op, Name(a.dtype), Name(b.dtype));
  RETURN_IF_ERROR(ExpectFloat(op, {&args.inputs[2], &args.inputs[3]}));
  if (groups.dtype != DType::kI32) return Internal("{}: groups are {}", op, Name(groups.dtype));
  const TensorView& in = kind == GroupedKind::kForward ? a : kind == GroupedKind::kDgrad ? d : b;
  const TensorView& out = kind == GroupedKind::kForward ? d : a;
  const GroupedProduct product{.kind = kind,
                               .experts = groups.shape[0],
                               .rows = a.shape[0],
                               .out = RowSize(out),
                               .in = RowSize(in),
                               .a = a.data,
                               .b = b.data,
                               .d = d.data,
                               .operands = a.dtype,
                               .result = d.dtype,
                               .accumulate = (args.accumulate & 1U) != 0,
                               .groups = groups.as<std::int32_t>(),
                               .a_unit = args.inputs[2].as<float>() + kFp8InverseScale,
                               .b_unit = args.inputs[3].as<float>() + kFp8InverseScale};
  if (product.out % kFp8Multiple == 0 && product.in % kFp8Multiple == 0 && product.rows % kFp8Multiple == 0)
    return product;
  return Unimplemented("{}: FP8 products take multiples of {}, not {} rows, {} out of {}", op, kFp8Multiple,
                       product.rows, product.out, product.in);
}

// TMA reads and writes rows at multiples of 16 bytes.
bool TakesSm90a(const Device& device, const GroupedProduct& product) {
  constexpr std::int64_t kPiece = 16;  // bytes
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const auto aligned = [](const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; };
  return HasGroupedSm90a() && device.properties().major == 9 && device.properties().minor == 0 &&
         (product.operands == DType::kBF16 || (product.fp8() && product.result != DType::kF16)) &&
         product.out * SizeOf(product.operands) % kPiece == 0 &&
         product.in * SizeOf(product.operands) % kPiece == 0 && product.rows > 0 && product.rows <= kMost &&
         product.out <= kMost && product.in <= kMost && aligned(product.a) && aligned(product.b) &&
         aligned(product.d);
}

absl::StatusOr<CUtensorMap> MapOf(const void* data, DType dtype, const std::array<std::int64_t, 3>& dims,
                                  const TensorBox& box) {
  return MakeTensorMap({.data = data, .dtype = dtype, .dims = dims, .box = {box.x, box.y, box.z}});
}

// Of the tensors, the inner dim first.
struct TensorDims {
  std::array<std::int64_t, 3> a, b, d;
};
TensorDims DimsOf(const GroupedProduct& p) {
  const std::array<std::int64_t, 3> in_rows = {p.in, p.rows, 1};
  const std::array<std::int64_t, 3> out_rows = {p.out, p.rows, 1};
  const std::array<std::int64_t, 3> matrices = {p.in, p.out, p.experts};
  switch (p.kind) {
    case GroupedKind::kForward:
      return {in_rows, matrices, out_rows};
    case GroupedKind::kDgrad:
      if (p.fp8()) return {out_rows, {p.out, p.experts, p.in}, in_rows};
      return {out_rows, matrices, in_rows};
    case GroupedKind::kWgrad:
      break;
  }
  if (p.fp8()) return {{p.rows, p.out, 1}, {p.rows, p.in, 1}, matrices};
  return {out_rows, in_rows, matrices};
}

absl::StatusOr<Enqueue> PrepareSm90a(const Device& device, const GroupedProduct& product,
                                     std::int32_t* order) {
  auto grouped = std::make_shared<GroupedSm90a>();
  grouped->product = product;
  grouped->order = order;
  grouped->multiprocessors = device.multiprocessors();
  grouped->cluster = GroupedClusterOf(product);
  const GroupedBoxes boxes = GroupedBoxesOf(product);
  const TensorDims dims = DimsOf(product);
  ASSIGN_OR_RETURN(grouped->a, MapOf(product.a, product.operands, dims.a, boxes.a));
  ASSIGN_OR_RETURN(grouped->b, MapOf(product.b, product.operands, dims.b, boxes.b));
  ASSIGN_OR_RETURN(grouped->d, MapOf(product.d, product.result, dims.d, boxes.d));
  RETURN_IF_CUDA_ERROR(AllowGroupedSm90a(*grouped));
  return Enqueue([grouped, order](cudaStream_t stream, const KernelContext&) -> absl::Status {
    const GroupedProduct& of = grouped->product;
    if (order != nullptr) OrderGroups(of.groups, of.experts, order, stream);
    return ToStatus(LaunchGroupedSm90a(*grouped, stream), "grouped linear");
  });
}

absl::StatusOr<Enqueue> PrepareGrouped(const Device& device, const LaunchArgs& args,
                                       const GroupedProduct& product) {
  std::int32_t* order = nullptr;
  if (product.kind == GroupedKind::kWgrad) {
    RETURN_IF_ERROR(ExpectScratch(args.instruction->kernel(), args,
                                  product.experts * static_cast<std::int64_t>(sizeof(std::int32_t))));
    order = reinterpret_cast<std::int32_t*>(args.scratch.data());
  }
  return PrepareGroupedProduct(device, product, order);
}

absl::StatusOr<Enqueue> PreparePlain(const Device& device, const LaunchArgs& args, GroupedKind kind) {
  ASSIGN_OR_RETURN(const GroupedProduct product, ProductOf(kind, args));
  return PrepareGrouped(device, args, product);
}
absl::StatusOr<Enqueue> PrepareFp8(const Device& device, const LaunchArgs& args, GroupedKind kind) {
  ASSIGN_OR_RETURN(const GroupedProduct product, Fp8ProductOf(kind, args));
  return PrepareGrouped(device, args, product);
}

}  // namespace

absl::StatusOr<Enqueue> PrepareGroupedProduct(const Device& device, const GroupedProduct& product,
                                              std::int32_t* order) {
  if (TakesSm90a(device, product)) return PrepareSm90a(device, product, order);
  return Enqueue([product](cudaStream_t stream, const KernelContext&) {
    GroupedLinearPortable(product, stream);
    return ToStatus(cudaGetLastError(), "grouped linear");
  });
}

absl::StatusOr<Enqueue> PrepareGroupedLinear(Device& device, const LaunchArgs& args) {
  return PreparePlain(device, args, GroupedKind::kForward);
}
absl::StatusOr<Enqueue> PrepareGroupedLinearDgrad(Device& device, const LaunchArgs& args) {
  return PreparePlain(device, args, GroupedKind::kDgrad);
}
absl::StatusOr<Enqueue> PrepareGroupedLinearWgrad(Device& device, const LaunchArgs& args) {
  return PreparePlain(device, args, GroupedKind::kWgrad);
}

absl::StatusOr<Enqueue> PrepareGroupedLinearFp8(Device& device, const LaunchArgs& args) {
  return PrepareFp8(device, args, GroupedKind::kForward);
}
absl::StatusOr<Enqueue> PrepareGroupedLinearDgradFp8(Device& device, const LaunchArgs& args) {
  return PrepareFp8(device, args, GroupedKind::kDgrad);
}
absl::StatusOr<Enqueue> PrepareGroupedLinearWgradFp8(Device& device, const LaunchArgs& args) {
  return PrepareFp8(device, args, GroupedKind::kWgrad);
}

}  // namespace engine::backend::cuda
