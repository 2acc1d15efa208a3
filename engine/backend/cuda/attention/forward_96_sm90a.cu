// Attention's forward pass on Hopper, of heads of up to 96 elements.
#include "engine/backend/cuda/attention/launch_sm90a.cuh"

namespace engine::backend::cuda::attention_sm90a {

template <>
cudaError_t Forward<__nv_bfloat16, 1>(const Sm90aAttention& a, cudaStream_t stream) {
  return Choose(a.problem, RunForward<__nv_bfloat16, 1>{a, stream});
}
template <>
cudaError_t Forward<__half, 1>(const Sm90aAttention& a, cudaStream_t stream) {
  return Choose(a.problem, RunForward<__half, 1>{a, stream});
}

}  // namespace engine::backend::cuda::attention_sm90a
