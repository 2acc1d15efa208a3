#include "engine/plan/collective.h"

namespace engine::plan {

const char* Name(Collective collective) {
  switch (collective) {
    case Collective::kNone:
      return "none";
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kAllToAll:
      return "all_to_all";
    case Collective::kSlice:
      return "slice";
  }
  return "?";
}

std::int64_t WireBytes(Collective collective, std::int64_t from_local_bytes, std::int64_t to_local_bytes,
                       std::int64_t size) {
  switch (collective) {
    case Collective::kAllReduce:
      return 2 * from_local_bytes * (size - 1) / size;
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
      return from_local_bytes * (size - 1) / size;
    case Collective::kAllGather:
      return to_local_bytes * (size - 1) / size;
    case Collective::kNone:
    case Collective::kSlice:
      return 0;
  }
  return 0;
}

}  // namespace engine::plan
