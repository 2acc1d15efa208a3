#include "engine/launch/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <new>

#include "engine/base/status.h"

namespace engine::launch {

absl::StatusOr<std::string> RandomBytes(std::size_t count) {
  std::string bytes(count, '\0');
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return Unavailable("no random numbers: {}", std::strerror(errno));
  }
  return bytes;
}

std::string ProofOf(MessageKind kind, const std::string& token, const std::string& nonce,
                    const std::vector<std::string>& hello) {
  // No configuration file of this machine decides what may be computed, and nothing is left to the end of the
  // process, when other threads may still be at work.
  static const int initialized =
      OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT, nullptr);
  WireMessage proven{kind, {nonce}};
  proven.fields.insert(proven.fields.end(), hello.begin(), hello.begin() + (kHelloFields - 1));
  const std::string text = Encode(proven);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned length = 0;
  // SHA-256 is always there, so what fails is memory.
  if (initialized != 1 || HMAC(EVP_sha256(), token.data(), static_cast<int>(token.size()),
                               reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                               digest.data(), &length) == nullptr) {
    throw std::bad_alloc();
  }
  return {reinterpret_cast<const char*>(digest.data()), length};
}

bool SameProof(const std::string& a, const std::string& b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace engine::launch
