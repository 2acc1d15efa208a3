// The functions of cuBLASLt, cuDNN and NCCL that this backend calls. library_stubs.cpp defines each of them
// as a call through these pointers, which libraries.cpp fills: a function that is not listed here does not
// link.
#pragma once

#include <cublasLt.h>
#include <cudnn.h>
#include <nccl.h>

#define ENGINE_CUBLASLT_FUNCTIONS(X)      \
  X(cublasLtCreate)                       \
  X(cublasLtDestroy)                      \
  X(cublasLtGetStatusString)              \
  X(cublasLtGetVersion)                   \
  X(cublasLtMatmul)                       \
  X(cublasLtMatmulAlgoCheck)              \
  X(cublasLtMatmulAlgoConfigGetAttribute) \
  X(cublasLtMatmulAlgoGetHeuristic)       \
  X(cublasLtMatmulDescCreate)             \
  X(cublasLtMatmulDescDestroy)            \
  X(cublasLtMatmulDescSetAttribute)       \
  X(cublasLtMatmulPreferenceCreate)       \
  X(cublasLtMatmulPreferenceDestroy)      \
  X(cublasLtMatmulPreferenceSetAttribute) \
  X(cublasLtMatrixLayoutCreate)           \
  X(cublasLtMatrixLayoutDestroy)

#define ENGINE_CUDNN_FUNCTIONS(X)  \
  X(cudnnBackendCreateDescriptor)  \
  X(cudnnBackendDestroyDescriptor) \
  X(cudnnBackendExecute)           \
  X(cudnnBackendFinalize)          \
  X(cudnnBackendGetAttribute)      \
  X(cudnnBackendSetAttribute)      \
  X(cudnnCreate)                   \
  X(cudnnDestroy)                  \
  X(cudnnGetErrorString)           \
  X(cudnnGetLastErrorString)       \
  X(cudnnGetVersion)               \
  X(cudnnSetStream)

#define ENGINE_NCCL_FUNCTIONS(X) \
  X(ncclAllGather)               \
  X(ncclAllReduce)               \
  X(ncclCommAbort)               \
  X(ncclCommGetAsyncError)       \
  X(ncclCommInitRank)            \
  X(ncclGetErrorString)          \
  X(ncclGetLastError)            \
  X(ncclGetUniqueId)             \
  X(ncclGetVersion)              \
  X(ncclGroupEnd)                \
  X(ncclGroupStart)              \
  X(ncclRecv)                    \
  X(ncclReduceScatter)           \
  X(ncclSend)

namespace engine::backend::cuda {

#define ENGINE_POINTER(name) decltype(&::name) name = nullptr;
// Null until the library is loaded.
struct LibraryFunctions {
  ENGINE_CUBLASLT_FUNCTIONS(ENGINE_POINTER)
  ENGINE_CUDNN_FUNCTIONS(ENGINE_POINTER)
  ENGINE_NCCL_FUNCTIONS(ENGINE_POINTER)
};
#undef ENGINE_POINTER

extern LibraryFunctions library_functions;

}  // namespace engine::backend::cuda
