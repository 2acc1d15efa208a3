// Documents that stood before, found in bounded memory.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <vector>

#include "engine/base/file_io.h"
#include "engine/base/hash.h"

namespace engine::data {

inline constexpr Hash128 kNoText;  // of a document that is never another's duplicate

// For each of `documents` documents, whose hashes stand in the file one behind the other, whether an earlier one has the same.
// At most `most_hashes` distinct ones are in memory at a time, some 40 bytes each: where there are more documents, the file is
// read several times.
absl::StatusOr<std::vector<bool>> FindDuplicates(const File& hashes, std::int64_t documents,
                                                 std::int64_t most_hashes = std::int64_t{1} << 24);

}  // namespace engine::data
