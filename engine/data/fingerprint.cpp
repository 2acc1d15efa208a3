#include "engine/data/fingerprint.h"

#include <cstdint>

#include "engine/base/hash.h"
#include "engine/base/status.h"
#include "engine/data/mapped_file.h"
#include "engine/data/source.h"
#include "engine/data/tokenizer.h"

namespace engine::data {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{64} << 10;

}  // namespace

std::string FingerprintOfAll(std::int64_t bytes, const std::string& xxh3_128) {
  return fmt::format("{} bytes, xxh3_128 {}", bytes, xxh3_128);
}

std::string FingerprintOfAll(std::span<const std::byte> bytes) {
  Hasher hasher;
  hasher.Update(bytes.data(), bytes.size());
  return FingerprintOfAll(static_cast<std::int64_t>(bytes.size()), hasher.HexDigest());
}

std::string FingerprintOfBlocks(std::span<const std::byte> bytes, std::size_t blocks) {
  if (bytes.size() <= blocks * kBlockBytes) return FingerprintOfAll(bytes);
  const std::size_t last = bytes.size() - kBlockBytes;
  Hasher hasher;
  for (std::size_t i = 0; i < blocks; ++i) {
    const std::size_t begin = last / (blocks - 1) * i + last % (blocks - 1) * i / (blocks - 1);
    StartReading(bytes.subspan(begin, kBlockBytes));
    hasher.Update(bytes.data() + begin, kBlockBytes);
  }
  return fmt::format("{} bytes, xxh3_128 of {} blocks {}", bytes.size(), blocks, hasher.HexDigest());
}

Fingerprints FingerprintsOf(const recipe::Recipe& recipe, const Source& source) {
  Fingerprints fingerprints = source.Fingerprint();
  for (const std::string& path : FilesOf(recipe.data.tokenizer)) {
    const absl::StatusOr<MappedFile> file = MappedFile::Open(path);
    if (file.ok()) fingerprints[kTokenizerFile + path] = FingerprintOfAll(file->bytes());
  }
  return fingerprints;
}

}  // namespace engine::data
