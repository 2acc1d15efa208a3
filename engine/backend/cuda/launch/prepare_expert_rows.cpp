#include "engine/backend/cuda/kernels/expert_rows.h"
#include "engine/backend/cuda/kernels/route.h"
#include "engine/backend/cuda/launch/prepare.h"
#include "engine/backend/cuda/launch/prepare_checks.h"
#include "engine/backend/cuda/libraries/status.h"
#include "engine/backend/cuda/profile/scratch_experts.h"
#include "engine/graph/rows.h"

namespace engine::backend::cuda {
namespace {

// count [b, E]: the experts that a rank has.
absl::StatusOr<ExpertsHere> HereOf(const char* op, const TensorView& count) {
  ASSIGN_OR_RETURN(const Interval here, OnePiece(op, count, 1));
  if (here.length > kMostExperts)
    return Unimplemented("{}: {} experts, CUDA kernels take {}", op, here.length, kMostExperts);
  return ExpertsHere{.first = here.start, .count = here.length};
}

// Of spread and combine: inputs choice_of, row_of and choice from input 1 on.
absl::StatusOr<RowPlaces> PlacesOf(const char* op, const LaunchArgs& args) {
  const Shape& choice = args.inputs[3].shape;
  const std::int64_t k = choice[choice.rank() - 1];
  const RowPlaces places = {.choice_of = args.inputs[1].as<std::int32_t>(),
                            .row_of = args.inputs[2].as<std::int32_t>(),
                            .rows = args.inputs[1].shape[0],
                            .tokens = choice.elements() / k,
                            .k = static_cast<int>(k)};
  if (places.rows % graph::kRowAlignment != 0)
    return Internal("{}: {} rows, no multiple of {}", op, places.rows, graph::kRowAlignment);
  return places;
}

}  // namespace

absl::StatusOr<Enqueue> PrepareTally(Device&, const LaunchArgs& args) {
  const TensorView choice = args.inputs[0];
  const TensorView count = args.outputs[0];
  RETURN_IF_ERROR(ExpectFloat("tally", {&count}));
  ASSIGN_OR_RETURN(const ExpertsHere experts, HereOf("tally", count));
  const std::int64_t groups = count.shape[0];
  const std::int64_t choices = groups > 0 ? choice.shape.elements() / groups : 0;
  return [=](cudaStream_t stream, const KernelContext&) {
    LaunchTally(choice.as<std::int32_t>(), groups, choices, experts, count.as<float>(), stream);
    return ToStatus(cudaGetLastError(), "tally");
  };
}

absl::StatusOr<Enqueue> PreparePlace(Device&, const LaunchArgs& args) {
  const TensorView choice = args.inputs[0];
  const std::int64_t rows = args.outputs[0].shape[0];
  ASSIGN_OR_RETURN(const ExpertsHere experts, HereOf("place", args.inputs[1]));
  const std::int64_t choices = choice.shape.elements();
  const std::int64_t chunks = (choices + kPlaceChunk - 1) / kPlaceChunk;
  RETURN_IF_ERROR(ExpectScratch("place", args, experts.count * chunks * SizeOf(DType::kI32)));
  auto* const scratch = reinterpret_cast<std::int32_t*>(args.scratch.data());
  auto* const choice_of = args.outputs[0].as<std::int32_t>();
  auto* const row_of = args.outputs[1].as<std::int32_t>();
  auto* const groups = args.outputs[2].as<std::int32_t>();
  return [=](cudaStream_t stream, const KernelContext&) {
    LaunchPlace(choice.as<std::int32_t>(), choices, experts, scratch, rows, choice_of, row_of, groups,
                stream);
    return ToStatus(cudaGetLastError(), "place");
  };
}

absl::StatusOr<Enqueue> PrepareSpread(Device&, const LaunchArgs& args) {
  const TensorView x = args.inputs[0];
  const TensorView rows = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType("spread", {&x, &rows}));
  ASSIGN_OR_RETURN(const RowPlaces places, PlacesOf("spread", args));
  const std::int64_t row_bytes = rows.shape.elements(1, rows.shape.rank()) * SizeOf(rows.dtype);
  return [=](cudaStream_t stream, const KernelContext&) {
    LaunchSpread(places, row_bytes, x.data, rows.data, stream);
    return ToStatus(cudaGetLastError(), "spread");
  };
}

absl::StatusOr<Enqueue> PrepareCombine(Device&, const LaunchArgs& args) {
  const TensorView rows = args.inputs[0];
  const TensorView y = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType("combine", {&rows, &y}));
  ASSIGN_OR_RETURN(const RowPlaces places, PlacesOf("combine", args));
  const std::int64_t columns = rows.shape.elements(1, rows.shape.rank());
  return [=](cudaStream_t stream, const KernelContext&) {
    LaunchCombine(places, rows.dtype, columns, rows.data, y.data, stream);
    return ToStatus(cudaGetLastError(), "combine");
  };
}

}  // namespace engine::backend::cuda
