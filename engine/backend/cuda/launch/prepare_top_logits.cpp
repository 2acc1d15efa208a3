#include <algorithm>

#include "engine/backend/cuda/kernels/top_logits.h"
#include "engine/backend/cuda/launch/prepare.h"
#include "engine/backend/cuda/launch/prepare_checks.h"
#include "engine/backend/cuda/libraries/status.h"
#include "engine/backend/cuda/profile/scratch_top_logits.h"

namespace engine::backend::cuda {

absl::StatusOr<Enqueue> PrepareTopLogits(Device&, const LaunchArgs& args) {
  const TensorView& logits = args.inputs[0];
  RETURN_IF_ERROR(ExpectOneElementType("top_logits", {&logits}));
  RETURN_IF_ERROR(ExpectFloat("top_logits", {&args.inputs[1], &args.outputs[1], &args.outputs[2]}));
  ASSIGN_OR_RETURN(const Interval held, OnePiece("top_logits", logits, 2));
  const std::int64_t classes = args.instruction->attributes().Int("classes");
  const std::int64_t count = args.outputs[0].shape[1];
  if (count > kMostTopLogits)
    return Unimplemented("top_logits: the {} largest, and a block sorts {}", count, kMostTopLogits);
  RETURN_IF_ERROR(ExpectScratch("top_logits", args, CutTopLogits(logits.shape[0], logits.shape[2]).bytes));
  const TopLogits top = {.dtype = logits.dtype,
                         .samples = logits.shape[0],
                         .rows = logits.shape[1],
                         .columns = logits.shape[2],
                         .classes = std::clamp<std::int64_t>(classes - held.start, 0, held.length),
                         .first_class = held.start,
                         .count = count,
                         .logits = logits.data,
                         .temperatures = args.inputs[1].as<float>(),
                         .tokens = args.outputs[0].as<std::int32_t>(),
                         .values = args.outputs[1].as<float>(),
                         .log_sums = args.outputs[2].as<float>(),
                         .scratch = args.scratch.data()};
  return [top](cudaStream_t stream, const KernelContext&) {
    LaunchTopLogits(top, stream);
    return ToStatus(cudaGetLastError(), "top_logits");
  };
}

}  // namespace engine::backend::cuda
