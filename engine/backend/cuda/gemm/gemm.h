// One matrix product of cuBLASLt, its descriptors made once: D[m, n] = alpha · op(A)[m, k] · op(B)[k, n]
// (+ C, which may be D). Everything is row-major and packed; products and sums in fp32 (no TF32 for fp32 operands).
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/backend/cuda/libraries/status.h"
#include "engine/base/dtype.h"

namespace engine::backend::cuda {

inline absl::Status ToStatus(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return Internal("{}: {}", what, cublasLtGetStatusString(status));
}

#define RETURN_IF_CUBLAS_ERROR(call) RETURN_IF_ERROR(::engine::backend::cuda::ToStatus((call), #call))

enum class GemmEpilogue : std::uint8_t {
  kNone,
  kBias,         // + bias[n]
  kGeluAuxBias,  // aux[m, n] = AB + bias, D = gelu_tanh(aux)
  kDgelu,        // D = AB ⊙ gelu_tanh'(aux[m, n])
};

// What a product is; two of the same text are carried out by the same algorithm. The aux epilogues need n to
// be a multiple of 8 and a D of bf16 or fp16. FP8 operands need transpose_b, no transpose_a, and m, n, k to
// be multiples of 16.
struct GemmSpec {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false;  // A is stored [k, m] instead of [m, k]
  bool transpose_b = false;  // B is stored [n, k] instead of [k, n]
  cudaDataType a = CUDA_R_16BF;
  cudaDataType b = CUDA_R_16BF;
  cudaDataType d = CUDA_R_16BF;  // also of aux and bias; with an FP8 D these are bf16
  GemmEpilogue epilogue = GemmEpilogue::kNone;
  float alpha = 1.0F;
  bool accumulate = false;       // + C; not with an FP8 D
  bool fast_accumulate = false;  // FP8: partial sums in the tensor cores' own registers, fewer bits
  // Sums in the order of kernels/ordered_product.h; with the transposes, types and epilogues that it has.
  bool in_order = false;
  // What the addresses of A, B, D and aux are multiples of, in bytes.
  std::uint32_t alignment = 256;

  bool has_bias() const { return epilogue == GemmEpilogue::kBias || epilogue == GemmEpilogue::kGeluAuxBias; }
  bool has_aux() const { return epilogue == GemmEpilogue::kGeluAuxBias || epilogue == GemmEpilogue::kDgelu; }
  bool is_fp8() const { return a == CUDA_R_8F_E4M3 || a == CUDA_R_8F_E5M2; }
  cudaDataType aux_type() const;
  double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
  // "m32768 n3840 k1280 NT bf16 x bf16 -> bf16 bias": every field, one spelling.
  std::string ToString() const;
};

std::int64_t SizeOf(cudaDataType type);
absl::StatusOr<cudaDataType> ToCudaType(DType dtype);  // Error: not an element type of matrix products

// Device addresses of one run.
struct GemmOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  void* d = nullptr;
  const void* bias = nullptr;
  void* aux = nullptr;  // written by kGeluAuxBias, read by kDgelu
  // FP8: what the stored numbers of A and B are multiplied by to give the real ones, and the real ones of D
  // to give the stored; on the device, 16-byte aligned. Null where the operand is not FP8.
  const float* a_scale = nullptr;
  const float* b_scale = nullptr;
  const float* d_scale = nullptr;
  void* workspace = nullptr;  // kGemmWorkspaceBytes (scratch.h), 256-byte aligned
  const void* c = nullptr;    // [m, n] in D's type, what is added; null: D as it was

  bool operator==(const GemmOperands&) const = default;
};

class Gemm {
 public:
  // Descriptors only: Run needs an algorithm. GemmTuner::Prepare gives a product that is ready.
  static absl::StatusOr<std::shared_ptr<Gemm>> Create(cublasLtHandle_t handle, const GemmSpec& spec);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  const GemmSpec& spec() const { return spec_; }

  // Up to 16 algorithms that need at most kGemmWorkspaceBytes, the one that cuBLASLt thinks fastest first;
  // empty: it has none for this product. `deterministic` leaves out sums whose order differs between runs.
  absl::StatusOr<std::vector<cublasLtMatmulAlgo_t>> Candidates(bool deterministic);
  // Whether the algorithm, from a file say, can carry out this product here.
  bool Accepts(const cublasLtMatmulAlgo_t& algorithm, bool deterministic);
  // Of those that it accepts.
  void set_algorithm(const cublasLtMatmulAlgo_t& algorithm);

  // Enqueues the product. A captured stream may be given. Not to be called from two threads at once.
  absl::Status Run(cudaStream_t stream, const GemmOperands& operands);

 private:
  Gemm(cublasLtHandle_t handle, const GemmSpec& spec) : handle_(handle), spec_(spec) {}
  absl::Status MakeDescriptors();
  absl::Status SetPointers(const GemmOperands& operands);

  cublasLtHandle_t handle_;
  GemmSpec spec_;
  cublasLtMatmulDesc_t operation_ = nullptr;
  // cuBLASLt is column-major: it computes Dᵀ = op(B)ᵀ · op(A)ᵀ, so that its first operand is our B.
  cublasLtMatrixLayout_t first_ = nullptr;
  cublasLtMatrixLayout_t second_ = nullptr;
  cublasLtMatrixLayout_t added_ = nullptr;  // of C
  cublasLtMatrixLayout_t result_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_{};
  std::size_t workspace_bytes_ = 0;  // that the algorithm asks for
  GemmOperands set_;                 // the pointers that the descriptor holds
};

}  // namespace engine::backend::cuda
