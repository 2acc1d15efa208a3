// Collective communication: the kinds that follow from a change of placement.
#pragma once

#include <cstdint>

namespace engine::plan {

enum class Collective : std::uint8_t {
  kNone,           // a kernel, run by the op's or the kernel's name
  kAllReduce,      // P → R
  kReduceScatter,  // P → S(d)
  kAllGather,      // S(d) → R
  kAllToAll,       // S(a) → S(b)
  kSlice,          // R → S(d), local
};
const char* Name(Collective collective);

// Bytes that one rank sends when `from` becomes `to` along an axis of `size`, ring algorithms.
std::int64_t WireBytes(Collective collective, std::int64_t from_local_bytes, std::int64_t to_local_bytes,
                       std::int64_t size);

}  // namespace engine::plan
