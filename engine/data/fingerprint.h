// Fingerprints of the files that a run reads, for its checkpoints: files may change under their names between two
// starts of a run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "engine/recipe/recipe.h"

namespace engine::data {

class Source;

// A fingerprint for each file, by a name for people ("data web_text_document.bin"). Equal content has equal ones.
using Fingerprints = std::map<std::string, std::string>;

// "480000 bytes, xxh3_128 <32 hex digits>", of all bytes. The second is cheap for a file of any size: beyond
// 16 MiB it reads 256 blocks of 64 KiB, the first at the beginning, the last at the end, and the others
// evenly between; so it does not see a change that spares all of them and the size.
std::string FingerprintOfAll(std::int64_t bytes, const std::string& xxh3_128);  // of bytes hashed elsewhere
std::string FingerprintOfAll(std::span<const std::byte> bytes);
// `blocks`: as many instead, at least 2.
std::string FingerprintOfBlocks(std::span<const std::byte> bytes, std::size_t blocks = 256);

inline constexpr const char* kTokenizerFile = "tokenizer ";  // what names of a tokenizer's files begin with

// Fingerprints of all files of the data sets, and of the tokenizer's files that can be read; training itself
// needs only token ids, so a missing one is no error. The kind of tokenizer is in the recipe.
Fingerprints FingerprintsOf(const recipe::Recipe& recipe, const Source& source);

}  // namespace engine::data
