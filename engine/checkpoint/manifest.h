// manifest.json: what makes a folder a checkpoint. docs/checkpoint-format.md describes it key by key.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/checkpoint/box.h"
#include "engine/checkpoint/metadata.h"

namespace engine::checkpoint {

struct FileInfo {
  std::string name;  // within the checkpoint's folder
  std::int64_t bytes = 0;
  std::string checksum;  // XXH3-128 of all its bytes, 32 hex digits
};

struct Piece {
  int file = 0;  // index into Manifest::files
  std::string dataset;
  Box box;
  std::int64_t offset_bytes = 0;  // of the box's row-major data in the file
};

struct Manifest {
  Metadata metadata;
  std::vector<FileInfo> files;  // the shards, then the index
  std::vector<TensorInfo> tensors;
  std::vector<std::vector<Piece>> pieces;  // of each tensor; cover it exactly once
};

// The text carries its own checksum, so that any changed byte is found.
absl::StatusOr<std::string> FormatManifest(const Manifest& manifest);

// Accepts only what FormatManifest can have written: exact keys and types, sane names and sizes, pieces
// inside their files and covering their tensors exactly once. Safe for hostile text.
absl::StatusOr<Manifest> ParseManifest(std::string_view text);

// The JSON object that a manifest has under "guard", written and read without the rest of the manifest.
std::string FormatGuard(const GuardState& guard);
absl::StatusOr<GuardState> ParseGuard(std::string_view text);

}  // namespace engine::checkpoint
