// cuBLASLt, cuDNN and NCCL as the linker sees them: each function goes on to the library that libraries.h has
// loaded.
#include "engine/backend/cuda/libraries/library_functions.h"
#include "engine/base/status.h"

// The loaded function of that name.
#define ENGINE_LOADED(name) Loaded(::engine::backend::cuda::library_functions.name, #name)

namespace {

template <typename Function>
Function* Loaded(Function* function, const char* name) {
  ENGINE_CHECK(function != nullptr, "{} was called before its library was loaded", name);
  return function;
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* light_handle) {
  return ENGINE_LOADED(cublasLtCreate)(light_handle);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t light_handle) {
  return ENGINE_LOADED(cublasLtDestroy)(light_handle);
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  return ENGINE_LOADED(cublasLtGetStatusString)(status);
}

size_t cublasLtGetVersion() { return ENGINE_LOADED(cublasLtGetVersion)(); }

cublasStatus_t cublasLtMatmul(cublasLtHandle_t light_handle, cublasLtMatmulDesc_t compute_desc,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algo, void* workspace,
                              size_t workspace_size_in_bytes, cudaStream_t stream) {
  return ENGINE_LOADED(cublasLtMatmul)(light_handle, compute_desc, alpha, a, a_layout, b, b_layout, beta, c,
                                       c_layout, d, d_layout, algo, workspace, workspace_size_in_bytes,
                                       stream);
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t light_handle, cublasLtMatmulDesc_t operation_desc,
                                       cublasLtMatrixLayout_t a_layout, cublasLtMatrixLayout_t b_layout,
                                       cublasLtMatrixLayout_t c_layout, cublasLtMatrixLayout_t d_layout,
                                       const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
  return ENGINE_LOADED(cublasLtMatmulAlgoCheck)(light_handle, operation_desc, a_layout, b_layout, c_layout,
                                                d_layout, algo, result);
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attr, void* buf,
                                                    size_t size_in_bytes, size_t* size_written) {
  return ENGINE_LOADED(cublasLtMatmulAlgoConfigGetAttribute)(algo, attr, buf, size_in_bytes, size_written);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t light_handle, cublasLtMatmulDesc_t operation_desc, cublasLtMatrixLayout_t a_layout,
    cublasLtMatrixLayout_t b_layout, cublasLtMatrixLayout_t c_layout, cublasLtMatrixLayout_t d_layout,
    cublasLtMatmulPreference_t preference, int requested_algo_count,
    cublasLtMatmulHeuristicResult_t* heuristic_results_array, int* return_algo_count) {
  return ENGINE_LOADED(cublasLtMatmulAlgoGetHeuristic)(light_handle, operation_desc, a_layout, b_layout,
                                                       c_layout, d_layout, preference, requested_algo_count,
                                                       heuristic_results_array, return_algo_count);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* matmul_desc, cublasComputeType_t compute_type,
                                        cudaDataType_t scale_type) {
  return ENGINE_LOADED(cublasLtMatmulDescCreate)(matmul_desc, compute_type, scale_type);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t matmul_desc) {
  return ENGINE_LOADED(cublasLtMatmulDescDestroy)(matmul_desc);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t matmul_desc,
                                              cublasLtMatmulDescAttributes_t attr, const void* buf,
                                              size_t size_in_bytes) {
  return ENGINE_LOADED(cublasLtMatmulDescSetAttribute)(matmul_desc, attr, buf, size_in_bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* pref) {
  return ENGINE_LOADED(cublasLtMatmulPreferenceCreate)(pref);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t pref) {
  return ENGINE_LOADED(cublasLtMatmulPreferenceDestroy)(pref);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                                    cublasLtMatmulPreferenceAttributes_t attr,
                                                    const void* buf, size_t size_in_bytes) {
  return ENGINE_LOADED(cublasLtMatmulPreferenceSetAttribute)(pref, attr, buf, size_in_bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* mat_layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
  return ENGINE_LOADED(cublasLtMatrixLayoutCreate)(mat_layout, type, rows, cols, ld);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t mat_layout) {
  return ENGINE_LOADED(cublasLtMatrixLayoutDestroy)(mat_layout);
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t descriptor_type,
                                           cudnnBackendDescriptor_t* descriptor) {
  return ENGINE_LOADED(cudnnBackendCreateDescriptor)(descriptor_type, descriptor);
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  return ENGINE_LOADED(cudnnBackendDestroyDescriptor)(descriptor);
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t execution_plan,
                                  cudnnBackendDescriptor_t variant_pack) {
  return ENGINE_LOADED(cudnnBackendExecute)(handle, execution_plan, variant_pack);
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  return ENGINE_LOADED(cudnnBackendFinalize)(descriptor);
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t attribute_name,
                                       cudnnBackendAttributeType_t attribute_type,
                                       int64_t requested_element_count, int64_t* element_count,
                                       void* array_of_elements) {
  return ENGINE_LOADED(cudnnBackendGetAttribute)(descriptor, attribute_name, attribute_type,
                                                 requested_element_count, element_count, array_of_elements);
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t attribute_name,
                                       cudnnBackendAttributeType_t attribute_type, int64_t element_count,
                                       const void* array_of_elements) {
  return ENGINE_LOADED(cudnnBackendSetAttribute)(descriptor, attribute_name, attribute_type, element_count,
                                                 array_of_elements);
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) { return ENGINE_LOADED(cudnnCreate)(handle); }

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { return ENGINE_LOADED(cudnnDestroy)(handle); }

const char* cudnnGetErrorString(cudnnStatus_t status) { return ENGINE_LOADED(cudnnGetErrorString)(status); }

void cudnnGetLastErrorString(char* message, size_t max_size) {
  ENGINE_LOADED(cudnnGetLastErrorString)(message, max_size);
}

size_t cudnnGetVersion() { return ENGINE_LOADED(cudnnGetVersion)(); }

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream_id) {
  return ENGINE_LOADED(cudnnSetStream)(handle, stream_id);
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t send_count, ncclDataType_t type,
                           ncclComm_t communicator, cudaStream_t stream) {
  return ENGINE_LOADED(ncclAllGather)(send, receive, send_count, type, communicator, stream);
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t communicator, cudaStream_t stream) {
  return ENGINE_LOADED(ncclAllReduce)(send, receive, count, type, op, communicator, stream);
}

ncclResult_t ncclCommAbort(ncclComm_t communicator) { return ENGINE_LOADED(ncclCommAbort)(communicator); }

ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* error) {
  return ENGINE_LOADED(ncclCommGetAsyncError)(communicator, error);
}

ncclResult_t ncclCommInitRank(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank) {
  return ENGINE_LOADED(ncclCommInitRank)(communicator, ranks, id, rank);
}

const char* ncclGetErrorString(ncclResult_t result) { return ENGINE_LOADED(ncclGetErrorString)(result); }

const char* ncclGetLastError(ncclComm_t communicator) {
  return ENGINE_LOADED(ncclGetLastError)(communicator);
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) { return ENGINE_LOADED(ncclGetUniqueId)(id); }

ncclResult_t ncclGetVersion(int* version) { return ENGINE_LOADED(ncclGetVersion)(version); }

ncclResult_t ncclGroupEnd() { return ENGINE_LOADED(ncclGroupEnd)(); }

ncclResult_t ncclGroupStart() { return ENGINE_LOADED(ncclGroupStart)(); }

ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                      cudaStream_t stream) {
  return ENGINE_LOADED(ncclRecv)(receive, count, type, peer, communicator, stream);
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t receive_count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t communicator, cudaStream_t stream) {
  return ENGINE_LOADED(ncclReduceScatter)(send, receive, receive_count, type, op, communicator, stream);
}

ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                      cudaStream_t stream) {
  return ENGINE_LOADED(ncclSend)(send, count, type, peer, communicator, stream);
}

}  // extern "C"
