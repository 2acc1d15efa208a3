#include <cstring>

#include "engine/backend/cuda/kernels/write.h"

namespace engine::backend::cuda {
namespace {

struct Payload {
  std::byte bytes[kWriteBytes];
};

__global__ void Write(std::byte* to, Payload payload, int bytes) {
  if (threadIdx.x < bytes) to[threadIdx.x] = payload.bytes[threadIdx.x];
}

}  // namespace

void WriteBytes(std::byte* to, const void* from, std::int64_t bytes, cudaStream_t stream) {
  Payload payload;
  std::memcpy(payload.bytes, from, static_cast<std::size_t>(bytes));
  Write<<<1, kWriteBytes, 0, stream>>>(to, payload, static_cast<int>(bytes));
}

}  // namespace engine::backend::cuda
