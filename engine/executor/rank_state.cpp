#include "engine/executor/rank_state.h"

#include <algorithm>
#include <utility>

#include "engine/base/status.h"

namespace engine::executor {

using backend::TensorView;
using plan::BufferRef;
using plan::Chunk;

RankState::RankState(const plan::Plan& plan, std::int64_t rank, std::byte* arena)
    : plan_(plan),
      rank_(rank),
      coordinates_(plan.mesh.CoordinatesOf(rank)),
      stage_(plan.stages[static_cast<size_t>(coordinates_.pp)]),
      arena_(arena) {}

std::int64_t RankState::OffsetOf(const BufferRef& ref, const Chunk* chunk, std::int64_t slot) const {
  std::int64_t offset = ref.offset;
  if (ref.in_slot) {
    ENGINE_CHECK(chunk != nullptr && slot >= 0 && slot < chunk->slots, "slot {} of no chunk", slot);
    offset += chunk->slot_base + slot * chunk->slot_bytes;
  }
  if (!ref.shard_axes.empty())
    offset += plan_.mesh.IndexInGroup(coordinates_, ref.shard_axes) * ref.shard_stride;
  return offset;
}

std::byte* RankState::Address(const BufferRef& ref, const Chunk* chunk, std::int64_t slot) const {
  return arena_ + OffsetOf(ref, chunk, slot);
}

TensorView RankState::View(const BufferRef& ref, const Chunk* chunk, std::int64_t slot) const {
  TensorView view;
  view.data = Address(ref, chunk, slot);
  view.dtype = ref.dtype;
  if (ref.value < 0) {
    view.shape = {ref.elements};
    view.logical = view.shape;
    view.extent = Extent::Whole(view.shape);
    return view;
  }
  const plan::LocalValue& value = plan_.values[static_cast<size_t>(ref.value)];
  view.shape = value.local;
  view.logical = value.shape;
  view.extent = value.layout.ExtentOf(value.shape, plan_.mesh, coordinates_);
  if (ref.elements == value.local.elements()) return view;
  // Both halves', one behind the other.
  view.shape[0] *= ref.elements / value.local.elements();
  view.logical = view.shape;
  view.extent = Extent::Whole(view.shape);
  return view;
}

std::vector<LocalTensor> RankState::Parameters() const {
  std::vector<LocalTensor> tensors;
  for (const plan::Bucket& bucket : stage_.buckets) {
    for (const plan::Bucket::Item& item : bucket.items) {
      BufferRef ref = bucket.parameter;
      ref.value = plan_.parameters[static_cast<size_t>(item.parameter)].value;
      ref.offset += item.offset_elements * SizeOf(ref.dtype);
      ref.elements = item.elements;
      tensors.push_back({item.parameter, View(ref, nullptr, -1)});
      if (bucket.parameter_shard.elements > 0) tensors.back().view.data = nullptr;
    }
  }
  return tensors;
}

std::vector<OptimizerRange> RankState::OptimizerState() const {
  std::vector<OptimizerRange> ranges;
  for (const plan::Bucket& bucket : stage_.buckets) {
    if (bucket.frozen()) continue;
    const std::int64_t shard = bucket.shards > 1 ? plan_.mesh.IndexInGroup(coordinates_, bucket.reduce) : 0;
    const std::int64_t shard_begin = shard * bucket.shard_elements();
    const std::int64_t shard_end = shard_begin + bucket.shard_elements();
    for (const plan::Bucket::Item& item : bucket.items) {
      const std::int64_t begin = std::max(item.offset_elements, shard_begin);
      const std::int64_t end = std::min(item.offset_elements + item.elements, shard_end);
      if (begin >= end) continue;
      const std::int64_t at = begin - shard_begin;
      const bool gradient_shard = bucket.gradient_shard.elements > 0;
      const BufferRef& gradient = gradient_shard ? bucket.gradient_shard : bucket.gradient;
      std::vector<OptimizerRange::State> states;
      for (const BufferRef& state : bucket.states)
        states.push_back({arena_ + state.offset + at * SizeOf(state.dtype), state.dtype});
      ranges.push_back(
          {.parameter = item.parameter,
           .begin = begin - item.offset_elements,
           .end = end - item.offset_elements,
           .master = bucket.master.elements > 0 ? arena_ + bucket.master.offset + at * SizeOf(DType::kF32)
                                                : nullptr,
           .states = std::move(states),
           .gradient = arena_ + gradient.offset + (gradient_shard ? at : begin) * SizeOf(gradient.dtype),
           .gradient_dtype = gradient.dtype,
           .weights = bucket.parameter_shard.elements > 0
                          ? Address(bucket.parameter_shard, nullptr, -1) + at * SizeOf(bucket.parameter_dtype)
                          : nullptr,
           .weight_dtype = bucket.parameter_dtype});
    }
  }
  return ranges;
}

}  // namespace engine::executor
