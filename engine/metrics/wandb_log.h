// The framing of .wandb files, which is LevelDB's log format with another header and checksum
// (github.com/google/leveldb/blob/main/doc/log_format.md; wandb/sdk/internal/datastore.py):
//
//   file     = ":W&B" · 0xBEE1 (u16) · version 0 (u8) · fragments, in blocks of 32768 bytes that the header is part of
//   fragment = CRC-32 of type and data (u32) · length (u16) · type: full 1, first 2, middle 3, last 4 (u8) · data
//
// All numbers are little-endian. Where a block has less than 7 bytes left, they are zeros.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "engine/base/file_io.h"

namespace engine::metrics {

// The first bytes of a file.
std::string WandbFileHeader();
// A record's fragments, with zeros before them where they begin in the next block, at `offset` of the file.
std::string WandbFragments(std::string_view record, std::int64_t offset);

// Calls `visit` for the records of a file in order, up to the first that is not whole or for which it returns false. `end` is
// the offset behind the record. Only one record is in memory at a time. A file with another header has no records. Errors are
// those of reading.
absl::Status VisitWandbRecords(const File& file,
                               const std::function<bool(std::string_view record, std::int64_t end)>& visit);

}  // namespace engine::metrics
