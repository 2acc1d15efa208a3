#include "engine/backend/cuda/exchange/peer_flags.h"

namespace engine::backend::cuda {
namespace {

CUstreamBatchMemOpParams WriteOf(std::byte* flag, std::uint32_t value) {
  CUstreamBatchMemOpParams operation{};
  operation.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operation.writeValue.address = reinterpret_cast<CUdeviceptr>(flag);
  operation.writeValue.value = value;
  operation.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;  // behind a fence of the whole system
  return operation;
}

CUstreamBatchMemOpParams WaitOf(std::byte* flag) {
  CUstreamBatchMemOpParams operation{};
  operation.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  operation.waitValue.address = reinterpret_cast<CUdeviceptr>(flag);
  operation.waitValue.value = 1;
  operation.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  return operation;
}

}  // namespace

// The driver's own functions, without a library to link: the runtime knows where they are.
absl::Status StreamFlags::Load() {
  constexpr unsigned kVersion = 12000;  // in which this form of them is the default
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  RETURN_IF_CUDA_ERROR(cudaGetDriverEntryPointByVersion("cuStreamBatchMemOp", &function, kVersion,
                                                        cudaEnableDefault, &result));
  if (result != cudaDriverEntryPointSuccess) {
    return FailedPrecondition("this driver has no cuStreamBatchMemOp of CUDA 12");
  }
  batch_ = reinterpret_cast<decltype(batch_)>(function);
  return absl::OkStatus();
}

absl::Status StreamFlags::Enqueue(const std::vector<std::byte*>& write, const std::vector<std::byte*>& await,
                                  cudaStream_t stream, const StreamNote& before,
                                  const StreamNote& after) const {
  std::vector<CUstreamBatchMemOpParams> operations;  // they run in this order
  operations.reserve(write.size() + 2 * await.size() + 2);
  if (before.word != nullptr) operations.push_back(WriteOf(before.word, before.value));
  for (std::byte* flag : write) operations.push_back(WriteOf(flag, 1));
  for (std::byte* flag : await) {
    operations.push_back(WaitOf(flag));
    operations.push_back(WriteOf(flag, 0));
  }
  if (after.word != nullptr) operations.push_back(WriteOf(after.word, after.value));
  const CUresult result = batch_(stream, static_cast<unsigned>(operations.size()), operations.data(), 0);
  if (result != CUDA_SUCCESS) return Internal("cuStreamBatchMemOp: CUresult {}", static_cast<int>(result));
  return absl::OkStatus();
}

}  // namespace engine::backend::cuda
