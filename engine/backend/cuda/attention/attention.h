// Attention by cuDNN: the pattern graph matmul – scale – mask – softmax – matmul, which cuDNN 9.14 and
// later recognise and carry out in one kernel, and its gradient. (The descriptors of whole attention have no
// causal mask before 9.21.)
#pragma once

#include <cudnn.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend/cuda/libraries/status.h"
#include "engine/base/dtype.h"

namespace engine::backend::cuda {

// The status of a cuDNN call, with what cuDNN says about it.
absl::Status ToStatus(cudnnStatus_t status, const char* what);

#define RETURN_IF_CUDNN_ERROR(call) RETURN_IF_ERROR(::engine::backend::cuda::ToStatus((call), #call))

// Element (b, h, s, e) stands at b·sample + h·head + s·token + e.
struct HeadStrides {
  std::int64_t sample = 0;
  std::int64_t head = 0;
  std::int64_t token = 0;
};

// lse is [B, S, H] as ops/attention.cpp says; in a cuDNN that refuses these strides, false makes it [B, H,
// S]. Only attention's own kernels read it.
inline constexpr bool kLseTokenMajor = true;
inline HeadStrides LseStrides(std::int64_t queries, std::int64_t heads) {
  return kLseTokenMajor ? HeadStrides{queries * heads, 1, heads} : HeadStrides{queries * heads, queries, 1};
}

// What one execution works on: S queries, which are the last of as many positions as there are keys, T. Key j
// is seen by the queries i with 0 ≤ i + T − S − j (and < window, where window > 0).
struct AttentionSpec {
  bool backward = false;
  bool deterministic = true;  // of the backward pass
  std::int64_t batch = 0;
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head = 0;        // elements of q and k
  std::int64_t value_head = 0;  // of v and o
  std::int64_t window = 0;
  DType dtype = DType::kBF16;  // or kF16
  float scale = 1;
  HeadStrides q = {}, k = {}, v = {}, o = {}, lse = {};
  HeadStrides d_o = {}, dq = {}, dk = {}, dv = {};  // of the backward pass

  std::string ToString() const;  // every field
};

// Device addresses of one execution.
struct AttentionOperands {
  void* q = nullptr;
  void* k = nullptr;
  void* v = nullptr;
  void* o = nullptr;
  void* lse = nullptr;  // fp32
  void* d_o = nullptr;
  void* dq = nullptr;
  void* dk = nullptr;
  void* dv = nullptr;
  void* row_sums = nullptr;     // backward: [B, H, S] fp32 scratch
  void* accumulator = nullptr;  // backward, not deterministic: [B, H, S, E] fp32 scratch
  void* workspace = nullptr;    // AttentionPlan::workspace_bytes
};

// A backend descriptor that destroys itself.
class CudnnDescriptor {
 public:
  CudnnDescriptor() = default;
  explicit CudnnDescriptor(cudnnBackendDescriptor_t raw) : raw_(raw) {}
  CudnnDescriptor(CudnnDescriptor&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
  CudnnDescriptor& operator=(CudnnDescriptor&& other) noexcept {
    std::swap(raw_, other.raw_);
    return *this;
  }
  ~CudnnDescriptor() {
    if (raw_ != nullptr) cudnnBackendDestroyDescriptor(raw_);
  }
  cudnnBackendDescriptor_t get() const { return raw_; }

 private:
  cudnnBackendDescriptor_t raw_ = nullptr;
};

// For whom engines are chosen: the device behind a handle, or, on a machine without one, finalised device
// properties (CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR). One of the two.
struct CudnnTarget {
  cudnnHandle_t handle = nullptr;
  cudnnBackendDescriptor_t properties = nullptr;
};

// The addresses of an execution, as cuDNN wants them. Holds on to its plan.
class AttentionExecution;

class AttentionPlan : public std::enable_shared_from_this<AttentionPlan> {
 public:
  // The first engine that cuDNN proposes (others were 1.7 to 2.3 times slower on an H200). Takes 0.3 to 0.5 s
  // the first time. Error: cuDNN has no engine for it, with its reasons.
  static absl::StatusOr<std::shared_ptr<const AttentionPlan>> Make(const CudnnTarget& target,
                                                                   const AttentionSpec& spec);

  const AttentionSpec& spec() const { return spec_; }
  std::int64_t workspace_bytes() const { return workspace_bytes_; }
  std::int64_t engine() const { return engine_; }

  absl::StatusOr<AttentionExecution> Bind(const AttentionOperands& operands) const;

 private:
  friend class AttentionExecution;
  explicit AttentionPlan(const AttentionSpec& spec)
      : spec_(spec),
        queries_(static_cast<std::int32_t>(spec.queries)),
        keys_(static_cast<std::int32_t>(spec.keys)),
        window_(static_cast<std::int32_t>(spec.window)) {}
  absl::Status Choose(const CudnnTarget& target);
  absl::StatusOr<std::vector<CudnnDescriptor>> EngineConfigs(const CudnnTarget& target,
                                                             cudnnBackendHeurMode_t mode);
  absl::Status Finalize(const CudnnTarget& target, const CudnnDescriptor& config);

  AttentionSpec spec_;
  // By-value operands of the mask.
  std::int32_t queries_;
  std::int32_t keys_;
  std::int32_t window_;
  std::vector<CudnnDescriptor> owned_;  // of the graph
  CudnnDescriptor graph_;
  CudnnDescriptor plan_;
  std::int64_t workspace_bytes_ = 0;
  std::int64_t engine_ = -1;
};

class AttentionExecution {
 public:
  // Enqueues it on the handle's stream, which may be being captured.
  absl::Status Run(cudnnHandle_t handle) const;

 private:
  friend class AttentionPlan;
  std::shared_ptr<const AttentionPlan> plan_;
  CudnnDescriptor pack_;
};

// Plans by spec: the layers of a model share theirs.
class AttentionPlans {
 public:
  absl::StatusOr<std::shared_ptr<const AttentionPlan>> Get(cudnnHandle_t handle, const AttentionSpec& spec);

 private:
  std::map<std::string, std::shared_ptr<const AttentionPlan>> plans_;
};

}  // namespace engine::backend::cuda
