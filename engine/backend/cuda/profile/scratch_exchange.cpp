#include "engine/backend/cuda/profile/scratch_exchange.h"

#include <algorithm>

namespace engine::backend::cuda {
namespace {

using graph::TensorType;
using plan::Collective;

std::int64_t BytesOf(const TensorType& type) { return type.shape.elements() * SizeOf(type.dtype); }

// Whether each rank's part of the larger tensor is one run, and these runs lie in order of rank.
bool PartsAreRuns(const TensorType& a, const TensorType& b, graph::Axis axis) {
  int dim = 0;
  while (dim < a.shape.rank() && a.shape[dim] == b.shape[dim]) ++dim;
  return axis != graph::Axis::kCp && a.shape.elements(0, dim) == 1;
}

}  // namespace

ExchangeLayout LayoutOfExchange(Collective collective, graph::Reduction reduction, const TensorType& from,
                                const TensorType& to, graph::Axis axis, std::int64_t members) {
  ExchangeLayout layout;
  switch (collective) {
    case Collective::kAllReduce:
      layout.staged = reduction != graph::Reduction::kSum;
      layout.bytes = layout.staged ? members * BytesOf(from) : 0;
      return layout;
    case Collective::kReduceScatter:
      layout.packed = !PartsAreRuns(from, to, axis);
      layout.bytes = layout.packed ? BytesOf(from) : 0;
      return layout;
    case Collective::kAllGather:
      layout.staged = !PartsAreRuns(from, to, axis);
      layout.bytes = layout.staged ? BytesOf(to) : 0;
      return layout;
    case Collective::kAllToAll:
      layout.packed = true;
      layout.staged = true;
      layout.received = Aligned(BytesOf(from));
      layout.bytes = layout.received + BytesOf(to);
      return layout;
    case Collective::kSlice:
    case Collective::kNone:
      return layout;
  }
  return layout;
}

PushLayout LayoutOfPush(Collective collective, graph::Reduction reduction, const TensorType& from,
                        const TensorType& to, std::int64_t members) {
  PushLayout layout;
  if (reduction == graph::Reduction::kLogSumExp) {
    layout.part = from.shape.elements();
    layout.slot = BytesOf(from);  // CombineLogSumExp takes them one after the other
    layout.own_slot = true;
    layout.bytes = members * layout.slot;
    return layout;
  }
  if (collective == Collective::kReduceScatter) {
    layout.part = to.shape.elements();
  } else if (collective == Collective::kAllReduce) {
    // Of two, each sends all that it has. Of more, each adds up a part, on a border of 16 bytes.
    constexpr std::int64_t kBorder = 16;
    const std::int64_t n = from.shape.elements();
    layout.part = members == 2 ? n : ((n + members - 1) / members + kBorder - 1) / kBorder * kBorder;
  }
  layout.slot = Aligned(layout.part * SizeOf(from.dtype));
  layout.bytes = (members - 1) * layout.slot;
  return layout;
}

OrderedSumLayout LayoutOfOrderedSum(Collective collective, const TensorType& from, const TensorType& to,
                                    graph::Axis axis, std::int64_t members) {
  // Where a second message takes longer than what it would save, each rank adds up everything.
  constexpr std::int64_t kMostWhole = std::int64_t{256} << 10;
  OrderedSumLayout layout;
  layout.parts = LayoutOfPush(collective, graph::Reduction::kSum, from, to, members);
  if (collective == Collective::kReduceScatter) {
    layout.packing = LayoutOfExchange(collective, graph::Reduction::kSum, from, to, axis, members);
    layout.packing.received = Aligned(layout.packing.bytes);
  } else if (BytesOf(from) <= kMostWhole) {
    layout.whole = true;
    layout.parts.part = from.shape.elements();
    layout.parts.slot = Aligned(BytesOf(from));
    layout.parts.bytes = (members - 1) * layout.parts.slot;
  }
  layout.bytes = layout.packing.received + layout.parts.bytes;
  return layout;
}

std::int64_t ExchangeScratch(const plan::Conversion& conversion, const TensorType& from, const TensorType& to,
                             std::int64_t members) {
  const Collective collective = conversion.collective;
  const graph::Reduction reduction = conversion.reduction;
  const std::int64_t bytes =
      conversion.addition == plan::Addition::kInOrder
          ? LayoutOfOrderedSum(collective, from, to, conversion.axis, members).bytes
          : LayoutOfExchange(collective, reduction, from, to, conversion.axis, members).bytes;
  if (!conversion.push) return bytes;
  return std::max(bytes, LayoutOfPush(collective, reduction, from, to, members).bytes);
}

}  // namespace engine::backend::cuda
