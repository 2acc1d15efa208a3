#include "engine/base/hash.h"

#include <fmt/format.h>
#include <xxhash.h>

namespace engine {

struct Hasher::State {
  XXH3_state_t* xxh = XXH3_createState();
};

Hasher::Hasher() : state_(std::make_unique<State>()) { XXH3_128bits_reset(state_->xxh); }
Hasher::~Hasher() { XXH3_freeState(state_->xxh); }

void Hasher::Update(const void* data, std::size_t bytes) { XXH3_128bits_update(state_->xxh, data, bytes); }

std::string Hasher::HexDigest() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_->xxh);
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

Hash128 HashOf(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.high64, hash.low64};
}

std::string HashHex(std::string_view text) {
  Hasher hasher;
  hasher.Update(text);
  return hasher.HexDigest();
}

}  // namespace engine
