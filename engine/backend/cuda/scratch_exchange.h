// Where a conversion between ranks keeps what it packs and receives: the scratch rule and the launcher read
// the same. NCCL exchanges contiguous parts in order of rank, so what is split along an inner dim is packed
// before or unpacked after.
#pragma once

#include <cstdint>

#include "engine/backend/cuda/scratch.h"
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

// DeviceProfile::exchange_bytes.
std::int64_t ExchangeScratch(plan::Collective collective, graph::Reduction reduction,
                             const graph::TensorType& from, const graph::TensorType& to, graph::Axis axis,
                             std::int64_t members);

}  // namespace engine::backend::cuda
