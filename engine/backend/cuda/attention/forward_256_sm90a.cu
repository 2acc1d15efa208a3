// Attention's forward pass on Hopper, of heads of up to 256 elements.
#include "engine/backend/cuda/attention/launch_sm90a.cuh"

namespace engine::backend::cuda::attention_sm90a {

template <>
cudaError_t Forward<__nv_bfloat16, 4>(const Sm90aAttention& a, cudaStream_t stream) {
  return Choose(a.problem, RunForward<__nv_bfloat16, 4>{a, stream});
}
template <>
cudaError_t Forward<__half, 4>(const Sm90aAttention& a, cudaStream_t stream) {
  return Choose(a.problem, RunForward<__half, 4>{a, stream});
}

}  // namespace engine::backend::cuda::attention_sm90a
