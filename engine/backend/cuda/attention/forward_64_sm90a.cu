// Attention's forward pass on Hopper, of heads of 64 elements.
#include "engine/backend/cuda/attention/launch_sm90a.cuh"

namespace engine::backend::cuda::attention_sm90a {

cudaError_t Forward64(const Sm90aAttention& a, cudaStream_t stream, __nv_bfloat16) {
  return Choose(a.problem, RunForward<__nv_bfloat16, 64>{a, stream});
}
cudaError_t Forward64(const Sm90aAttention& a, cudaStream_t stream, __half) {
  return Choose(a.problem, RunForward<__half, 64>{a, stream});
}

}  // namespace engine::backend::cuda::attention_sm90a
