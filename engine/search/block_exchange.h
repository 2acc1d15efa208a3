// A pass of blocks with the exchange of each block's bucket: gathers of parameters before it, reductions of gradients
// after it.
#pragma once

#include <cstdint>

#include "engine/search/chunk_facts.h"
#include "engine/search/stage_states.h"

namespace engine::search {

struct BlockExchange {
  const ExchangeCost* gather = nullptr;  // before each block; null: none
  double before_s = 0;                   // computation
  const ExchangeCost* reduce_head = nullptr;
  const ExchangeCost* reduce = nullptr;  // after each
  double after_s = 0;                    // computation
};

struct PlayedBlocks {
  double seconds = 0;
  // Still to be done when the pass ends: exchange, and computation that it leaves.
  double busy = 0, finish = 0;
};

// A pass of `blocks` blocks that take `each`, and `rest` before them. `behind`: exchange runs behind computation, and
// that of the passes before still has `busy` to go; otherwise it is in line.
PlayedBlocks PlayBlocks(std::int64_t blocks, const PassTime& each, const PassTime& rest, bool behind,
                        const BlockExchange& of, double busy = 0);

}  // namespace engine::search
