#include "engine/data/duplicates.h"

#include <absl/container/flat_hash_set.h>

#include <algorithm>

#include "engine/base/status.h"
#include "engine/base/units.h"

namespace engine::data {

absl::StatusOr<std::vector<bool>> FindDuplicates(const File& hashes, std::int64_t documents,
                                                 std::int64_t most_hashes) {
  constexpr std::int64_t kBlockHashes = std::int64_t{1} << 16;
  std::vector<bool> again(static_cast<std::size_t>(documents));
  std::vector<Hash128> block(static_cast<std::size_t>(std::min(documents, kBlockHashes)));
  const auto passes = static_cast<std::uint64_t>(std::max(CeilDiv(documents, most_hashes), std::int64_t{1}));
  for (std::uint64_t pass = 0; pass < passes; ++pass) {  // over the hashes that have this remainder
    absl::flat_hash_set<Hash128> seen;
    for (std::int64_t at = 0; at < documents; at += kBlockHashes) {
      const std::int64_t count = std::min(documents - at, kBlockHashes);
      constexpr std::int64_t kBytes = sizeof(Hash128);
      RETURN_IF_ERROR(hashes.ReadAt(block.data(), count * kBytes, at * kBytes));
      for (std::int64_t i = 0; i < count; ++i) {
        const Hash128& hash = block[static_cast<std::size_t>(i)];
        if (hash == kNoText || hash.low % passes != pass) continue;
        if (!seen.insert(hash).second) again[static_cast<std::size_t>(at + i)] = true;
      }
    }
  }
  return again;
}

}  // namespace engine::data
