// Which of cuBLASLt's algorithms carries out a product: its first proposal is often not the fastest, so the
// candidates are timed once on the real shapes and the choice is kept in a file.
//
// In the file of choices (profile/choice_file.h) KEY is DEVICE \t CUBLASLT_VERSION \t SPEC; SPEC is GemmSpec::ToString() with
// ", repeatable" where only deterministic algorithms were let in; CHOICE is the 64 bytes of cublasLtMatmulAlgo_t in hex, which
// mean the same only for this version of cuBLASLt, or "own" where it has none for a product in order. Two algorithms may add in different order: results are the same bits in two
// processes only where both take their choices from the same file.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "engine/backend/cuda/gemm/gemm.h"
#include "engine/backend/cuda/profile/choice_file.h"

namespace engine::backend::cuda {

struct GemmTunerOptions {
  ChoiceFile* choices = nullptr;  // what outlives the tuner
  std::string device_name;        // "NVIDIA H200"
  bool deterministic = true;
};

// Products that a file has a choice for, of all devices and versions; 0 where there is no such file.
std::int64_t CountKeptProducts(const std::string& file);

class GemmTuner {
 public:
  GemmTuner(cublasLtHandle_t handle, cudaStream_t stream, GemmTunerOptions options);

  // The product with its algorithm: that of the file or of an equal product before, or the fastest of up to
  // 16, timed on the stream (which must not be captured) with operands in the lent memory, or allocated for
  // that time only where it is too small. Where the device has no memory for them, cuBLASLt's first proposal,
  // which is not kept in the file. Of a product in order only algorithms that give the bits of kernels/ordered_product.h on
  // such operands; null where none does, or there is no memory to try them in: then that kernel carries it out. Error: cuBLASLt has no
  // algorithm for this product.
  absl::StatusOr<std::shared_ptr<Gemm>> Prepare(const GemmSpec& spec);

  // Device memory to time products in until the next call; null: none.
  void BorrowMemory(void* memory, std::int64_t bytes) {
    lent_ = memory;
    lent_bytes_ = bytes;
  }

 private:
  struct Choice {
    std::string text;  // as in the file
    bool is_kept;      // in the file
  };

  std::string KeyOf(const GemmSpec& spec) const;
  absl::StatusOr<Choice> Choose(Gemm* gemm);

  cublasLtHandle_t handle_;
  cudaStream_t stream_;
  GemmTunerOptions options_;
  void* lent_ = nullptr;
  std::int64_t lent_bytes_ = 0;
};

}  // namespace engine::backend::cuda
