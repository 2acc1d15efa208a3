#include "engine/backend/cuda/attention/sm90a.h"
#include "engine/backend/cuda/device/device.h"
#include "engine/backend/cuda/kernels/cached_attention.h"
#include "engine/backend/cuda/launch/moved_cache.h"
#include "engine/backend/cuda/launch/prepare.h"
#include "engine/backend/cuda/launch/prepare_checks.h"
#include "engine/backend/cuda/profile/scratch_cached_attention.h"

namespace engine::backend::cuda {
namespace {

// The same by our own kernels' forward pass, whose rows have the bits of attention's.
Sm90aAttention InvariantOf(const CachedAttention& a, const InvariantCachedAttention& layout,
                           const Device& device, std::byte* scratch) {
  const auto of_queries = [&](const void* data, std::int64_t width) {
    // Heads that share keys are queries of one head; with sinks each head has one query.
    const bool merged = layout.heads == a.kv_heads;
    return AttentionView{const_cast<void*>(data), a.heads * width, width,
                         merged ? layout.queries * width : a.heads / a.kv_heads * width, width};
  };
  const auto of_keys = [&](void* data, std::int64_t width) {
    return AttentionView{data, a.rows * a.kv_heads * width, a.kv_heads * width, width, width};
  };
  Sm90aAttention attention;
  attention.problem = {.dtype = a.dtype,
                       .batch = a.samples,
                       .queries = layout.queries,
                       .keys = a.rows,
                       .heads = layout.heads,
                       .kv_heads = a.kv_heads,
                       .head = a.width,
                       .value_head = a.value_width,
                       .causal = false,  // the spans say it
                       .scale = a.scale,
                       .spans = reinterpret_cast<const std::int32_t*>(scratch + layout.spans),
                       .q = of_queries(a.q, a.width),
                       .k = of_keys(a.keys, a.width),
                       .v = of_keys(a.values, a.value_width),
                       .o = of_queries(a.o, a.value_width),
                       .lse = {reinterpret_cast<float*>(scratch + layout.lse), a.heads, layout.heads, 1},
                       .softcap = a.softcap,
                       .sinks = a.sinks};
  attention.run[0] = {.row = 0, .count = static_cast<int>(layout.queries), .position = 0};
  attention.multiprocessors = device.properties().multiProcessorCount;
  attention.slot_of = a.slots;
  attention.taken = reinterpret_cast<int*>(scratch);
  return attention;
}

}  // namespace

absl::StatusOr<Enqueue> PrepareCacheUpdate(Device&, const LaunchArgs& args) {
  const TensorView& x = args.inputs[0];
  const TensorView& cache = args.outputs[0];
  RETURN_IF_ERROR(ExpectCache("cache_update", x, cache));
  const CacheUpdate update = {.dtype = x.dtype,
                              .narrow_cache = cache.dtype != x.dtype,
                              .samples = x.shape[0],
                              .tokens = x.shape[1],
                              .width = x.shape.elements(2, x.shape.rank()),
                              .rows = cache.shape[1],
                              .x = x.data,
                              .cache = cache.data,
                              .positions = args.inputs[2].as<std::int32_t>(),
                              .slots = args.inputs[3].as<std::int32_t>()};
  const MovedCache moved(args.inputs[1], cache);
  return [update, moved](cudaStream_t stream, const KernelContext&) -> absl::Status {
    RETURN_IF_ERROR(moved.Copy(stream));
    LaunchCacheUpdate(update, stream);
    return ToStatus(cudaGetLastError(), "cache_update");
  };
}

absl::StatusOr<Enqueue> PrepareCachedAttention(Device& device, const LaunchArgs& args) {
  constexpr std::size_t kPositions = 5;
  constexpr std::int64_t kMostValues = 512;
  const graph::Attributes& attributes = args.instruction->attributes();
  const TensorView& q = args.inputs[0];
  const TensorView& k = args.inputs[1];
  const TensorView& v = args.inputs[2];
  const TensorView& keys = args.outputs[1];
  const TensorView& values = args.outputs[2];
  RETURN_IF_ERROR(ExpectOneElementType("cached_attention", {&q, &k, &v}));
  for (const TensorView* cache : {&keys, &values})
    RETURN_IF_ERROR(ExpectCache("cached_attention", q, *cache));
  if (v.shape[3] > kMostValues)
    return Unimplemented("cached_attention: values of {} elements, at most {}", v.shape[3], kMostValues);
  std::size_t at = kPositions + 2;
  const bool has_sinks = args.inputs.size() > at && args.inputs[at].shape.rank() == 1;
  const TensorView* sinks = has_sinks ? &args.inputs[at++] : nullptr;
  const TensorView* biases = args.inputs.size() > at ? &args.inputs[at] : nullptr;
  ASSIGN_OR_RETURN(const Interval heads, OnePiece("cached_attention", q, 2));
  const bool is_invariant = attributes.Int("invariant", 0) != 0;
  const InvariantCachedAttention layout = LayOutInvariant(q.shape, k.shape, sinks != nullptr);
  const bool narrow_cache = keys.dtype != q.dtype;
  const CachedAttentionCut cut = CutCachedAttention(q.shape, keys.shape, values.shape, narrow_cache);
  RETURN_IF_ERROR(ExpectScratch("cached_attention", args, is_invariant ? layout.bytes : cut.scratch_bytes));
  CachedAttention attention = {.dtype = q.dtype,
                               .narrow_cache = narrow_cache,
                               .samples = q.shape[0],
                               .heads = q.shape[2],
                               .kv_heads = k.shape[2],
                               .width = q.shape[3],
                               .value_width = v.shape[3],
                               .rows = keys.shape[1],
                               .window = attributes.Int("window", 0),
                               .distance = attributes.Int("distance", 0),
                               .pairs = attributes.Int("pairs", 0),
                               .first_head = heads.start,
                               .all_heads = q.logical[2],
                               .alibi = attributes.Int("alibi", 0) != 0,
                               .scale = static_cast<float>(attributes.Float("scale")),
                               .softcap = static_cast<float>(attributes.Float("softcap", 0)),
                               .q = q.data,
                               .k = k.data,
                               .v = v.data,
                               .keys = keys.data,
                               .values = values.data,
                               .positions = args.inputs[kPositions].as<std::int32_t>(),
                               .slots = args.inputs[kPositions + 1].as<std::int32_t>(),
                               .o = args.outputs[0].data,
                               .chunk = cut.chunk,
                               .scratch = reinterpret_cast<float*>(args.scratch.data())};
  // A rank may hold the sinks and biases of more heads than it has queries of.
  const auto of_first_head = [&](const TensorView* values) -> absl::StatusOr<const void*> {
    if (values == nullptr) return nullptr;
    RETURN_IF_ERROR(ExpectOneElementType("cached_attention", {&q, values}));
    ASSIGN_OR_RETURN(const Interval held, OnePiece("cached_attention", *values, 0));
    const std::int64_t width = values->shape.elements() / values->shape[0];
    return values->as<std::byte>() + (heads.start - held.start) * width * SizeOf(values->dtype);
  };
  ASSIGN_OR_RETURN(attention.sinks, of_first_head(sinks));
  ASSIGN_OR_RETURN(attention.biases, of_first_head(biases));
  // Where the caches were elsewhere than they are to be.
  const MovedCache moved_keys(args.inputs[3], keys);
  const MovedCache moved_values(args.inputs[4], values);
  if (is_invariant) {
    Sm90aAttention own = InvariantOf(attention, layout, device, args.scratch.data());
    own.slots = keys.shape[0];
    return [=](cudaStream_t stream, const KernelContext&) -> absl::Status {
      RETURN_IF_ERROR(moved_keys.Copy(stream));
      RETURN_IF_ERROR(moved_values.Copy(stream));
      LaunchKeepTokens(attention, layout.queries, const_cast<std::int32_t*>(own.problem.spans), stream);
      return ToStatus(AttentionSm90a(own, stream), "cached_attention");
    };
  }
  return [=](cudaStream_t stream, const KernelContext&) -> absl::Status {
    RETURN_IF_ERROR(moved_keys.Copy(stream));
    RETURN_IF_ERROR(moved_values.Copy(stream));
    LaunchCachedAttention(attention, stream);
    return ToStatus(cudaGetLastError(), "cached_attention");
  };
}

absl::StatusOr<Enqueue> PrepareTakeTokens(Device&, const LaunchArgs& args) {
  const TensorView& x = args.inputs[0];
  const TensorView& index = args.inputs[1];
  const TensorView& y = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType("take_tokens", {&x, &y}));
  const TakeTokens take = {.dtype = x.dtype,
                           .samples = x.shape[0],
                           .tokens = x.shape[1],
                           .taken = index.shape[1],
                           .width = x.shape.elements(2, x.shape.rank()),
                           .x = x.data,
                           .index = index.as<std::int32_t>(),
                           .y = y.data};
  return [take](cudaStream_t stream, const KernelContext&) {
    LaunchTakeTokens(take, stream);
    return ToStatus(cudaGetLastError(), "take_tokens");
  };
}

}  // namespace engine::backend::cuda
