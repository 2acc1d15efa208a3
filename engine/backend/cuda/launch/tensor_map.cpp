#include "engine/backend/cuda/launch/tensor_map.h"

#include <cudaTypedefs.h>

namespace engine::backend::cuda {
namespace {

// The program is not linked with the driver's library: the runtime, which has loaded it, knows its functions.
absl::StatusOr<PFN_cuTensorMapEncodeTiled_v12000> FindEncode() {
  constexpr unsigned kSince = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  RETURN_IF_CUDA_ERROR(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kSince,
                                                        cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess || function == nullptr) {
    return FailedPrecondition("the NVIDIA driver has no cuTensorMapEncodeTiled, which CUDA 12.0 brought");
  }
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

}  // namespace

absl::StatusOr<CUtensorMap> MakeTensorMap(const TensorMapSpec& spec) {
  static const absl::StatusOr<PFN_cuTensorMapEncodeTiled_v12000> encode = FindEncode();
  RETURN_IF_ERROR(encode.status());
  const CUtensorMapDataType type = SizeOf(spec.dtype) == 1     ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                   : spec.dtype == DType::kF32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                                               : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  std::array<cuuint64_t, 3> dims{};
  std::array<cuuint64_t, 2> strides{};  // in bytes, from the second dim on
  auto stride = static_cast<cuuint64_t>(SizeOf(spec.dtype));
  for (std::size_t dim = 0; dim < dims.size(); ++dim) {
    dims[dim] = static_cast<cuuint64_t>(spec.dims[dim]);
    if (dim > 0) strides[dim - 1] = stride;
    stride *= dims[dim];
  }
  const std::array<cuuint32_t, 3> every_element = {1, 1, 1};
  CUtensorMap map;
  const CUresult result = (*encode)(
      &map, type, static_cast<cuuint32_t>(dims.size()), const_cast<void*>(spec.data), dims.data(),
      strides.data(), spec.box.data(), every_element.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return map;
  return Internal("cuTensorMapEncodeTiled: error {} for [{}, {}, {}] in boxes of [{}, {}, {}]",
                  static_cast<int>(result), spec.dims[2], spec.dims[1], spec.dims[0], spec.box[2],
                  spec.box[1], spec.box[0]);
}

}  // namespace engine::backend::cuda
