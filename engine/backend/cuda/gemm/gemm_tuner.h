// Which of cuBLASLt's algorithms carries out a product: its first proposal is often not the fastest, so the
// candidates are timed once on the real shapes and the choice is kept in a file.
//
// The file is text, a line a choice: HASH \t DEVICE \t CUBLASLT_VERSION \t SPEC \t ALGORITHM. HASH is HashHex
// (base/hash.h) of the rest of the line; SPEC is GemmSpec::ToString() with ", repeatable" where only
// deterministic algorithms were let in; ALGORITHM is the 64 bytes of cublasLtMatmulAlgo_t in hex, which mean
// the same only for this version of cuBLASLt. Lines that do not say so are ignored, and dropped when the file
// is next written. Two algorithms may add in different order: results are the same bits in two processes only
// where both take their choices from the same file.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <string>

#include "engine/backend/cuda/gemm/gemm.h"

namespace engine::backend::cuda {

struct GemmTunerOptions {
  std::string file;         // empty: choices are not kept
  std::string device_name;  // "NVIDIA H200"
  bool deterministic = true;
};

// Choices that a file holds, of all devices and versions; 0 where there is no such file.
std::int64_t CountKeptChoices(const std::string& file);

class GemmTuner {
 public:
  GemmTuner(cublasLtHandle_t handle, cudaStream_t stream, GemmTunerOptions options);

  // The product with its algorithm: that of the file or of an equal product before, or the fastest of up to
  // 16, timed on the stream (which must not be captured) with operands in the lent memory, or allocated for
  // that time only where it is too small. Where the device has no memory for them, cuBLASLt's first proposal,
  // which is not kept in the file. Error: cuBLASLt has no algorithm for this product.
  absl::StatusOr<std::shared_ptr<Gemm>> Prepare(const GemmSpec& spec);

  // Device memory to time products in until the next call; null: none.
  void BorrowMemory(void* memory, std::int64_t bytes) {
    lent_ = memory;
    lent_bytes_ = bytes;
  }

 private:
  using Choices = std::map<std::string, cublasLtMatmulAlgo_t>;  // by KeyOf

  std::string KeyOf(const GemmSpec& spec) const;
  void Load();
  absl::Status Save(const std::string& key) const;
  bool Recall(const std::string& key, Gemm* gemm) const;
  absl::StatusOr<cublasLtMatmulAlgo_t> Choose(Gemm* gemm, bool* timed);

  cublasLtHandle_t handle_;
  cudaStream_t stream_;
  GemmTunerOptions options_;
  void* lent_ = nullptr;
  std::int64_t lent_bytes_ = 0;
  Choices choices_;  // timed here or read from the file
  Choices untimed_;  // first proposals, where the device was too full
};

}  // namespace engine::backend::cuda
