// Attention's backward pass on Hopper, of heads of up to 192 elements of keys and 128 of values.
#include "engine/backend/cuda/attention/launch_sm90a.cuh"

namespace engine::backend::cuda::attention_sm90a {

template <>
cudaError_t Backward<__nv_bfloat16, 3>(const Sm90aAttention& a, cudaStream_t stream) {
  return Choose(a.problem, RunBackward<__nv_bfloat16, 3>{a, stream});
}
template <>
cudaError_t Backward<__half, 3>(const Sm90aAttention& a, cudaStream_t stream) {
  return Choose(a.problem, RunBackward<__half, 3>{a, stream});
}

}  // namespace engine::backend::cuda::attention_sm90a
