#include "engine/launch/handshake.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <set>

#include "engine/base/status.h"

namespace engine::launch {
namespace {

std::string HexOf(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

}  // namespace

// The reference is Python's: hmac.new(b"secret", bytes([1]) + each field after its length, "sha256").
TEST_CASE("handshake: the proof is HMAC-SHA256 of kind, nonce and hello, each field with its length") {
  const std::vector<std::string> hello = {"engine", "c", "1", "2", "b", "p", "d", "x", "not this"};
  CHECK(HexOf(ProofOf(MessageKind::kHello, "secret", "n", hello)) ==
        "be338cfd3cd651289ed46c2d1a90978a8d9f8d7953f06bd107844a8deec49c0b");
}

TEST_CASE("handshake: another token, role, nonce or field is another proof") {
  const std::vector<std::string> hello(kHelloFields, "ab");
  std::set<std::string> proofs = {ProofOf(MessageKind::kHello, "token", "nonce", hello),
                                  ProofOf(MessageKind::kWelcome, "token", "nonce", hello),
                                  ProofOf(MessageKind::kHello, "tokem", "nonce", hello),
                                  ProofOf(MessageKind::kHello, "token", "noncf", hello)};
  for (std::size_t field = 0; field + 1 < hello.size(); ++field) {
    std::vector<std::string> other = hello;
    other[field] = "a";
    other[(field + 1) % (hello.size() - 1)] = "bab";  // all together the same bytes
    proofs.insert(ProofOf(MessageKind::kHello, "token", "nonce", other));
  }
  CHECK(proofs.size() == 4 + hello.size() - 1);
  for (const std::string& proof : proofs) CHECK(proof.size() == 32);
  CHECK(SameProof(*proofs.begin(), std::string(*proofs.begin())));
  CHECK(!SameProof(*proofs.begin(), *proofs.rbegin()));
  CHECK(!SameProof(*proofs.begin(), proofs.begin()->substr(1)));
  CHECK(*RandomBytes(kNonceBytes) != *RandomBytes(kNonceBytes));
}

}  // namespace engine::launch
