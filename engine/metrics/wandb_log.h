// The framing of .wandb files, which is LevelDB's log format with another header and checksum
// (github.com/google/leveldb/blob/main/doc/log_format.md; wandb/sdk/internal/datastore.py):
//
//   file     = ":W&B" · 0xBEE1 (u16) · version 0 (u8) · fragments, in blocks of 32768 bytes that the header is part of
//   fragment = CRC-32 of type and data (u32) · length (u16) · type: full 1, first 2, middle 3, last 4 (u8) · data
//
// All numbers are little-endian. Where a block has less than 7 bytes left, they are zeros.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace engine::metrics {

// The first bytes of a file.
std::string WandbFileHeader();
// A record's fragments, with zeros before them where they begin in the next block, at `offset` of the file.
std::string WandbFragments(std::string_view record, std::int64_t offset);

struct WandbRecord {
  std::int64_t end = 0;  // offset behind it
  std::string data;
};

// The records of a file, up to the first that is not whole; nullopt where the header is another.
std::optional<std::vector<WandbRecord>> ReadWandbRecords(std::string_view file);

}  // namespace engine::metrics
