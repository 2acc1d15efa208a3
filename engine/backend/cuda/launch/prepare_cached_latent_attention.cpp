#include "engine/backend/cuda/kernels/cached_latent_attention.h"
#include "engine/backend/cuda/launch/moved_cache.h"
#include "engine/backend/cuda/launch/prepare.h"
#include "engine/backend/cuda/launch/prepare_checks.h"
#include "engine/backend/cuda/profile/scratch_cached_latent_attention.h"

namespace engine::backend::cuda {

absl::StatusOr<Enqueue> PrepareCachedLatentAttention(Device&, const LaunchArgs& args) {
  constexpr std::int64_t kMostLatent = 8192;  // of which a block's sums fit into shared memory
  const graph::Attributes& attributes = args.instruction->attributes();
  const TensorView& q = args.inputs[0];
  const TensorView& rest = args.inputs[1];
  const TensorView& latent = args.inputs[2];
  const TensorView& shared = args.inputs[3];
  const TensorView& latents = args.outputs[1];
  const TensorView& shareds = args.outputs[2];
  RETURN_IF_ERROR(ExpectOneElementType("cached_latent_attention", {&q, &rest, &latent, &shared}));
  for (const TensorView* cache : {&latents, &shareds})
    RETURN_IF_ERROR(ExpectCache("cached_latent_attention", q, *cache));
  if (q.shape[3] > kMostLatent)
    return Unimplemented("cached_latent_attention: latents of {} elements, at most {}", q.shape[3],
                         kMostLatent);
  const std::int64_t first = attributes.Int("first", 0);
  const CachedLatentAttentionCut cut =
      CutCachedLatentAttention(q.shape, rest.shape, first, latents.shape, shareds.shape, q.dtype);
  RETURN_IF_ERROR(ExpectScratch("cached_latent_attention", args, cut.scratch_bytes));
  const CachedLatentAttention attention = {.dtype = q.dtype,
                                           .narrow_cache = latents.dtype != q.dtype,
                                           .samples = q.shape[0],
                                           .heads = q.shape[2],
                                           .width = q.shape[3],
                                           .shared_width = shareds.shape[3],
                                           .rows = latents.shape[1],
                                           .window = attributes.Int("window", 0),
                                           .rest_width = rest.shape[3],
                                           .first = first,
                                           .scale = static_cast<float>(attributes.Float("scale")),
                                           .q = q.data,
                                           .rest = rest.data,
                                           .latent = latent.data,
                                           .shared = shared.data,
                                           .latents = latents.data,
                                           .shareds = shareds.data,
                                           .positions = args.inputs[6].as<std::int32_t>(),
                                           .slots = args.inputs[7].as<std::int32_t>(),
                                           .z = args.outputs[0].data,
                                           .tiles = cut.tiles,
                                           .chunk = cut.chunk,
                                           .scratch = reinterpret_cast<float*>(args.scratch.data())};
  const MovedCache moved_latents(args.inputs[4], latents);
  const MovedCache moved_shareds(args.inputs[5], shareds);
  return [=](cudaStream_t stream, const KernelContext&) -> absl::Status {
    RETURN_IF_ERROR(moved_latents.Copy(stream));
    RETURN_IF_ERROR(moved_shareds.Copy(stream));
    LaunchCachedLatentAttention(attention, stream);
    return ToStatus(cudaGetLastError(), "cached_latent_attention");
  };
}

}  // namespace engine::backend::cuda
