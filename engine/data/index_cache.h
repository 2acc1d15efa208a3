// Orders of data sets' samples as files, so that the processes of a host share one, in memory too, and a later run need not build it again.
//
// A file KEY.index, little-endian:
//   u8[16]  "ENGINE INDEX 1" and two zero bytes
//   u8[32]  KEY: hex digits of the XXH3-128 of all that the order is a function of
//   u8[32]  hex digits of the XXH3-128 of the rest of the file
//   i64[12] nine numbers of the order; the bytes of each of the three arrays that follow
//   u8[]    the arrays, each on a multiple of 8 bytes
// The numbers are: packed (0 or 1), sequence length, tokens an epoch, epochs, pieces, cut, dropped, tokens of pieces, 0; and the arrays
// the spans of SampleIndex: shuffle; documents and starts, or pieces and packs. A blend of data sets has no file (blend.h).
#pragma once

#include <absl/status/statusor.h>

#include <span>
#include <string>

#include "engine/data/sample_index.h"

namespace engine::data {

// What BuildSampleIndex gives. Where it is large (1 MiB and more) and `folder` is not empty, it comes from a file
// there, which is made where it is missing, damaged or of other data: by one process, while others of the host wait for it
// at the lock KEY.index.lock, which stays there. It is written as KEY.index.HOST.PID first, so that hosts may share the folder. A folder that
// cannot be written, or has no room, is no error: then the index stays in memory, and `note` names the file and says why. Safe to call from many threads.
absl::StatusOr<SampleIndex> OpenSampleIndex(const std::string& folder, std::span<const std::int32_t> lengths,
                                            const SampleIndexOptions& options, std::string* note);

}  // namespace engine::data
