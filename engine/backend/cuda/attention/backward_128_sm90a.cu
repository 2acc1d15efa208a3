// Attention's backward pass on Hopper, of heads of 128 elements.
#include "engine/backend/cuda/attention/launch_sm90a.cuh"

namespace engine::backend::cuda::attention_sm90a {

cudaError_t Backward128(const Sm90aAttention& a, cudaStream_t stream, __nv_bfloat16) {
  return Choose(a.problem, RunBackward<__nv_bfloat16, 128>{a, stream});
}
cudaError_t Backward128(const Sm90aAttention& a, cudaStream_t stream, __half) {
  return Choose(a.problem, RunBackward<__half, 128>{a, stream});
}

}  // namespace engine::backend::cuda::attention_sm90a
