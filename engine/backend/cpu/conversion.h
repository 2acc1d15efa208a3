// What the collectives of threads and of processes share. A conversion between placements is one rule: my
// output element is the sum (or log-sum-exp) of, or a copy from, the members' inputs that hold that logical
// element. Which runs of which member that are is worked out once, from the extents. Sums are taken in order
// of rank, so every member of a group gets the same bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "engine/backend/backend.h"
#include "engine/backend/boxes.h"

namespace engine::backend::cpu {

// Consecutive elements of a member's input and of my output.
using RunCopy = CommonRun;

// Runs of whole tensors that mean the same logical elements, in order of `to`.
std::vector<RunCopy> CommonRuns(const Extent& from, const Shape& from_shape, const Extent& to,
                                const Shape& to_shape);

// What each member gives to my output. Error: they do not hold all of it (of a sum: each of them).
absl::StatusOr<std::vector<std::vector<RunCopy>>> RunsOf(const CollectiveArgs& args, std::int64_t rank);

// Whether members' elements are added up, not copied.
bool Sums(const plan::Instruction& instruction);

// A slice of my own input: no exchange.
absl::StatusOr<std::unique_ptr<Launch>> PrepareSlice(CollectiveArgs args, std::int64_t rank);

// make<T>() for the element type T of the exchange. Error: a type that the CPU does not exchange.
template <typename Make>
absl::StatusOr<std::unique_ptr<Launch>> ForElementType(const CollectiveArgs& args, const Make& make) {
  switch (args.input.dtype) {
    case DType::kF32:
      return make.template operator()<float>();
    case DType::kF64:
      return make.template operator()<double>();
    case DType::kI32:
      return make.template operator()<std::int32_t>();
    default:
      return Internal("the CPU executor exchanges no {} ({})", Name(args.input.dtype),
                      args.instruction->name);
  }
}

// Where a member's part of a flat buffer begins; the part of the last ends at Begin(members).
inline std::int64_t PartBegin(std::int64_t elements, std::int64_t member, std::int64_t members) {
  return elements * member / members;
}

template <typename T>
void Accumulate(const T* from, T* to, std::int64_t length, graph::Reduction reduction) {
  if (reduction == graph::Reduction::kSum) {
    for (std::int64_t i = 0; i < length; ++i) to[i] += from[i];
    return;
  }
  if (reduction == graph::Reduction::kMax) {
    for (std::int64_t i = 0; i < length; ++i) {
      if (!(from[i] <= to[i]) && to[i] == to[i]) to[i] = from[i];  // a NaN on either side stays
    }
    return;
  }
  for (std::int64_t i = 0; i < length; ++i) {
    if (from[i] != from[i] || to[i] != to[i]) {  // std::max would drop a NaN
      to[i] = from[i] + to[i];
      continue;
    }
    const T high = std::max(from[i], to[i]);
    const T low = std::min(from[i], to[i]);
    if (!std::isinf(low))
      to[i] = high + std::log1p(std::exp(low - high));
    else
      to[i] = high;
  }
}

// Copies the runs, or adds them to what is there.
template <typename T>
void TakeRuns(const T* from, const std::vector<RunCopy>& runs, T* to, bool add, graph::Reduction reduction) {
  for (const RunCopy& run : runs) {
    if (add) {
      Accumulate(from + run.from, to + run.to, run.length, reduction);
    } else {
      std::memcpy(to + run.to, from + run.from, static_cast<size_t>(run.length) * sizeof(T));
    }
  }
}

// The sum (or log-sum-exp, or largest), in order, of buffers of `length` elements. `to` may be one of them.
template <typename T>
void SumInOrder(std::span<const T* const> from, T* to, std::int64_t length, graph::Reduction reduction) {
  constexpr std::int64_t kBlock = 2048;
  T sum[kBlock];
  for (std::int64_t at = 0; at < length; at += kBlock) {
    const std::int64_t block = std::min(kBlock, length - at);
    std::copy(from[0] + at, from[0] + at + block, sum);
    for (const T* const other : from.subspan(1)) Accumulate(other + at, sum, block, reduction);
    std::copy(sum, sum + block, to + at);
  }
}

}  // namespace engine::backend::cpu
