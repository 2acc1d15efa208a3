#include "engine/backend/cuda/gemm/gemm.h"

#include <array>

#include "engine/backend/cuda/profile/scratch.h"

namespace engine::backend::cuda {
namespace {

constexpr int kCandidates = 16;

template <typename T>
absl::Status Set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  return ToStatus(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value)),
                  "cublasLtMatmulDescSetAttribute");
}

std::string_view NameOf(cudaDataType type) {
  switch (type) {
    case CUDA_R_32F:
      return "f32";
    case CUDA_R_16BF:
      return "bf16";
    case CUDA_R_16F:
      return "f16";
    case CUDA_R_8F_E4M3:
      return "e4m3";
    case CUDA_R_8F_E5M2:
      return "e5m2";
    default:
      return "?";
  }
}

std::string_view NameOf(GemmEpilogue epilogue) {
  switch (epilogue) {
    case GemmEpilogue::kNone:
      return "";
    case GemmEpilogue::kBias:
      return " bias";
    case GemmEpilogue::kGeluAuxBias:
      return " gelu_aux_bias";
    case GemmEpilogue::kDgelu:
      return " dgelu";
  }
  return " ?";
}

cublasLtEpilogue_t ToCublas(GemmEpilogue epilogue) {
  switch (epilogue) {
    case GemmEpilogue::kNone:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case GemmEpilogue::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case GemmEpilogue::kGeluAuxBias:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case GemmEpilogue::kDgelu:
      return CUBLASLT_EPILOGUE_DGELU;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

// A row-major packed [rows, columns] matrix is column-major [columns, rows].
absl::Status MakeLayout(cudaDataType type, std::int64_t rows, std::int64_t columns,
                        cublasLtMatrixLayout_t* layout) {
  return ToStatus(cublasLtMatrixLayoutCreate(layout, type, static_cast<std::uint64_t>(columns),
                                             static_cast<std::uint64_t>(rows), columns),
                  "cublasLtMatrixLayoutCreate");
}

// How partial sums of a split k may be added: in fp32, never rounded to 16 bits in between; in place (by
// whoever comes first, so in another order in every run) only where results need not repeat.
std::uint32_t ReductionSchemes(const GemmSpec& spec, bool deterministic) {
  std::uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  if (spec.d != CUDA_R_32F) return schemes;
  schemes |= CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
  return deterministic ? schemes : schemes | CUBLASLT_REDUCTION_SCHEME_INPLACE;
}

bool AddsAsAllowed(const cublasLtMatmulAlgo_t& algorithm, const GemmSpec& spec, bool deterministic) {
  std::uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
  std::size_t written = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoConfigGetAttribute(
      &algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof(scheme), &written);
  return status == CUBLAS_STATUS_SUCCESS && (scheme & ~ReductionSchemes(spec, deterministic)) == 0;
}

template <typename T>
absl::Status Prefer(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
                    const T& value) {
  return ToStatus(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
                  "cublasLtMatmulPreferenceSetAttribute");
}

absl::Status FillPreference(cublasLtMatmulPreference_t preference, const GemmSpec& spec, bool deterministic) {
  const std::uint64_t workspace_bytes = kGemmWorkspaceBytes;
  RETURN_IF_ERROR(Prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes));
  for (const cublasLtMatmulPreferenceAttributes_t alignment :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    RETURN_IF_ERROR(Prefer(preference, alignment, spec.alignment));
  }
  return Prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                ReductionSchemes(spec, deterministic));
}

}  // namespace

std::int64_t SizeOf(cudaDataType type) {
  switch (type) {
    case CUDA_R_32F:
      return 4;
    case CUDA_R_16BF:
    case CUDA_R_16F:
      return 2;
    default:
      return 1;
  }
}

absl::StatusOr<cudaDataType> ToCudaType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CUDA_R_32F;
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF16:
      return CUDA_R_16F;
    default:
      return Unimplemented("matrix products take f32, bf16 and f16, not {}", Name(dtype));
  }
}

cudaDataType GemmSpec::aux_type() const {
  return d == CUDA_R_8F_E4M3 || d == CUDA_R_8F_E5M2 ? CUDA_R_16BF : d;
}

std::string GemmSpec::ToString() const {
  std::string text = fmt::format("m{} n{} k{} {}{} {} x {} -> {}{}", m, n, k, transpose_a ? 'T' : 'N',
                                 transpose_b ? 'T' : 'N', NameOf(a), NameOf(b), NameOf(d), NameOf(epilogue));
  if (alpha != 1.0F) text += fmt::format(" alpha {}", alpha);
  if (accumulate) text += " accumulate";
  if (fast_accumulate) text += " fast";
  if (in_order) text += " in order";
  if (alignment != 256) text += fmt::format(" aligned {}", alignment);
  return text;
}

absl::StatusOr<std::shared_ptr<Gemm>> Gemm::Create(cublasLtHandle_t handle, const GemmSpec& spec) {
  std::shared_ptr<Gemm> gemm(new Gemm(handle, spec));
  if (const absl::Status status = gemm->MakeDescriptors(); !status.ok()) {
    return WithContext(status, "product " + spec.ToString());
  }
  return gemm;
}

absl::Status Gemm::MakeDescriptors() {
  RETURN_IF_CUBLAS_ERROR(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const std::int32_t first_op = spec_.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  const std::int32_t second_op = spec_.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  RETURN_IF_ERROR(Set(operation_, CUBLASLT_MATMUL_DESC_TRANSA, first_op));
  RETURN_IF_ERROR(Set(operation_, CUBLASLT_MATMUL_DESC_TRANSB, second_op));
  RETURN_IF_ERROR(Set(operation_, CUBLASLT_MATMUL_DESC_EPILOGUE, ToCublas(spec_.epilogue)));
  const std::int32_t aux_type = spec_.aux_type();
  if (spec_.has_bias()) RETURN_IF_ERROR(Set(operation_, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, aux_type));
  if (spec_.has_aux()) {
    RETURN_IF_ERROR(Set(operation_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, spec_.n));
    RETURN_IF_ERROR(Set(operation_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, aux_type));
  }
  if (spec_.is_fp8()) {
    const std::int8_t fast = spec_.fast_accumulate ? 1 : 0;
    RETURN_IF_ERROR(Set(operation_, CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast));
  }
  RETURN_IF_ERROR(spec_.transpose_b ? MakeLayout(spec_.b, spec_.n, spec_.k, &first_)
                                    : MakeLayout(spec_.b, spec_.k, spec_.n, &first_));
  RETURN_IF_ERROR(spec_.transpose_a ? MakeLayout(spec_.a, spec_.k, spec_.m, &second_)
                                    : MakeLayout(spec_.a, spec_.m, spec_.k, &second_));
  RETURN_IF_ERROR(MakeLayout(spec_.aux_type(), spec_.m, spec_.n, &added_));
  return MakeLayout(spec_.d, spec_.m, spec_.n, &result_);
}

Gemm::~Gemm() {
  for (cublasLtMatrixLayout_t layout : {first_, second_, added_, result_}) {
    if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
  }
  if (operation_ != nullptr) cublasLtMatmulDescDestroy(operation_);
}

absl::StatusOr<std::vector<cublasLtMatmulAlgo_t>> Gemm::Candidates(bool deterministic) {
  // The heuristic looks at the alignment of the descriptor's pointers: these stand for aligned ones and are
  // never followed.
  void* const aligned =
      reinterpret_cast<void*>(std::uintptr_t{256});  // NOLINT(performance-no-int-to-ptr): an address only
  const auto* const scale = static_cast<const float*>(aligned);
  RETURN_IF_ERROR(
      SetPointers({.bias = aligned, .aux = aligned, .a_scale = scale, .b_scale = scale, .d_scale = scale}));

  cublasLtMatmulPreference_t preference = nullptr;
  RETURN_IF_CUBLAS_ERROR(cublasLtMatmulPreferenceCreate(&preference));
  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> results{};
  int found = 0;
  absl::Status status = FillPreference(preference, spec_, deterministic);
  cublasStatus_t searched = CUBLAS_STATUS_SUCCESS;
  if (status.ok()) {
    searched = cublasLtMatmulAlgoGetHeuristic(handle_, operation_, first_, second_, added_, result_,
                                              preference, kCandidates, results.data(), &found);
  }
  cublasLtMatmulPreferenceDestroy(preference);
  RETURN_IF_ERROR(status);
  if (searched == CUBLAS_STATUS_NOT_SUPPORTED)
    found = 0;
  else
    RETURN_IF_ERROR(ToStatus(searched, "cublasLtMatmulAlgoGetHeuristic"));

  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; i < found; ++i) {
    if (results[i].state != CUBLAS_STATUS_SUCCESS) continue;
    if (!AddsAsAllowed(results[i].algo, spec_, deterministic)) continue;
    algorithms.push_back(results[i].algo);
  }
  return algorithms;
}

bool Gemm::Accepts(const cublasLtMatmulAlgo_t& algorithm, bool deterministic) {
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(handle_, operation_, first_, second_, added_, result_, &algorithm, &result);
  return status == CUBLAS_STATUS_SUCCESS && result.state == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= static_cast<std::size_t>(kGemmWorkspaceBytes) &&
         AddsAsAllowed(algorithm, spec_, deterministic);
}

// No more workspace than the algorithm asks for: cuBLASLt zeroes what it is given before each launch.
void Gemm::set_algorithm(const cublasLtMatmulAlgo_t& algorithm) {
  algorithm_ = algorithm;
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(handle_, operation_, first_, second_, added_, result_, &algorithm, &result);
  workspace_bytes_ =
      status == CUBLAS_STATUS_SUCCESS ? result.workspaceSize : static_cast<std::size_t>(kGemmWorkspaceBytes);
}

absl::Status Gemm::SetPointers(const GemmOperands& operands) {
  if (spec_.has_bias() && operands.bias != set_.bias) {
    RETURN_IF_ERROR(Set(operation_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias));
  }
  if (spec_.has_aux() && operands.aux != set_.aux) {
    RETURN_IF_ERROR(Set(operation_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.aux));
  }
  if (spec_.is_fp8()) {
    if (operands.a_scale != set_.a_scale) {
      RETURN_IF_ERROR(Set(operation_, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, operands.a_scale));
    }
    if (operands.b_scale != set_.b_scale) {
      RETURN_IF_ERROR(Set(operation_, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, operands.b_scale));
    }
    if (SizeOf(spec_.d) == 1 && operands.d_scale != set_.d_scale) {
      RETURN_IF_ERROR(Set(operation_, CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, operands.d_scale));
    }
  }
  set_ = operands;
  return absl::OkStatus();
}

absl::Status Gemm::Run(cudaStream_t stream, const GemmOperands& operands) {
  if (operands != set_) RETURN_IF_ERROR(SetPointers(operands));
  const float beta = spec_.accumulate ? 1.0F : 0.0F;
  const void* const added = operands.c != nullptr ? operands.c : operands.d;
  const cublasStatus_t status =
      cublasLtMatmul(handle_, operation_, &spec_.alpha, operands.b, first_, operands.a, second_, &beta, added,
                     added_, operands.d, result_, &algorithm_,
                     workspace_bytes_ > 0 ? operands.workspace : nullptr, workspace_bytes_, stream);
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return Internal("product {}: {}", spec_.ToString(), cublasLtGetStatusString(status));
}

}  // namespace engine::backend::cuda
