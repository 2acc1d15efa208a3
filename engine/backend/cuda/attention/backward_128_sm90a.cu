// Attention's backward pass on Hopper, of heads of up to 128 elements.
#include "engine/backend/cuda/attention/launch_sm90a.cuh"

namespace engine::backend::cuda::attention_sm90a {

template <>
cudaError_t Backward<__nv_bfloat16, 2>(const Sm90aAttention& a, cudaStream_t stream) {
  return Choose(a.problem, RunBackward<__nv_bfloat16, 2>{a, stream});
}
template <>
cudaError_t Backward<__half, 2>(const Sm90aAttention& a, cudaStream_t stream) {
  return Choose(a.problem, RunBackward<__half, 2>{a, stream});
}

}  // namespace engine::backend::cuda::attention_sm90a
