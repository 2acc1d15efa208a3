// XXH3-128 (libxxhash) of bytes, as 32 hex digits: plan hashes and checkpoint checksums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace engine {

class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  void Update(const void* data, std::size_t bytes);
  void Update(std::string_view text) { Update(text.data(), text.size()); }
  std::string HexDigest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string HashHex(std::string_view text);

// The same hash of bytes, to compare and to keep in sets.
struct Hash128 {
  std::uint64_t high = 0, low = 0;

  friend bool operator==(const Hash128&, const Hash128&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const Hash128& hash) {
    return H::combine(std::move(state), hash.high, hash.low);
  }
};
Hash128 HashOf(std::string_view bytes);

}  // namespace engine
