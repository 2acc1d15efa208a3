// XXH3-128 (libxxhash) of bytes, as 32 hex digits: plan hashes and checkpoint checksums.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

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

}  // namespace engine
