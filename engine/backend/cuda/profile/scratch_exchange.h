// Where a conversion between ranks keeps what it packs and receives: the scratch rule and the launcher read
// the same. NCCL exchanges contiguous parts in order of rank, so what is split along an inner dim is packed
// before or unpacked after. What is pushed, and what is added up in order of rank, needs a place for what is still to be
// added up.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/backend/cuda/profile/scratch.h"
#include "engine/plan/plan.h"

namespace engine::backend::cuda {

struct ExchangeLayout {
  bool packed = false;        // what is sent is packed first, to offset 0
  bool staged = false;        // what is received arrives at `received` first
  std::int64_t received = 0;  // a multiple of 256
  std::int64_t bytes = 0;
};

// from, to: local types. The sequence is cut by cp in two chunks a rank, which lie apart in the whole.
ExchangeLayout LayoutOfExchange(plan::Collective collective, graph::Reduction reduction,
                                const graph::TensorType& from, const graph::TensorType& to, graph::Axis axis,
                                std::int64_t members);

// Of a pushed conversion: a slot for what each member sends, in order of rank.
struct PushLayout {
  std::int64_t part = 0;  // elements that one member sends another, at most
  std::int64_t slot = 0;  // bytes from one slot to the next; 0: everything goes where it belongs at once
  bool own_slot = false;  // whether this rank has a slot too
  std::int64_t bytes = 0;

  // Where the part of a flat sum of n elements that `member` adds up begins, and how long it is.
  std::int64_t PartBegin(std::int64_t member, std::int64_t n) const { return std::min(member * part, n); }
  std::int64_t PartCount(std::int64_t member, std::int64_t n) const {
    return PartBegin(member + 1, n) - PartBegin(member, n);
  }
  // Of what `sender` sends to `receiver`, in the receiver's scratch.
  std::int64_t SlotOf(std::int64_t sender, std::int64_t receiver) const {
    return (!own_slot && sender > receiver ? sender - 1 : sender) * slot;
  }
};

PushLayout LayoutOfPush(plan::Collective collective, graph::Reduction reduction,
                        const graph::TensorType& from, const graph::TensorType& to, std::int64_t members);

// Where NCCL's form of a sum in order of rank (plan::Addition::kInOrder) keeps what it packs and receives.
struct OrderedSumLayout {
  ExchangeLayout packing;  // of a reduce-scatter; what is received lies at packing.received
  PushLayout parts;
  bool whole = false;  // each rank gets all of each other's term and adds up everything
  std::int64_t bytes = 0;
};
OrderedSumLayout LayoutOfOrderedSum(plan::Collective collective, const graph::TensorType& from,
                                    const graph::TensorType& to, graph::Axis axis, std::int64_t members);

// DeviceProfile::exchange_bytes. Of what is pushed, enough for both forms: NCCL takes over where ranks do not reach
// each other's memory.
std::int64_t ExchangeScratch(const plan::Conversion& conversion, const graph::TensorType& from,
                             const graph::TensorType& to, std::int64_t members);

}  // namespace engine::backend::cuda
