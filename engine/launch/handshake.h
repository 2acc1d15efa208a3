// How the two ends of a connection show each other that they know the run's token without sending it: the
// server sends a nonce, the member answers with a proof over it and its hello, the server with one over both.
// A recording of one connection opens no other. Nothing is encrypted, and whoever can alter what is
// under way can still alter what comes after the proofs.
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <string>
#include <vector>

#include "engine/launch/message.h"

namespace engine::launch {

inline constexpr std::size_t kNonceBytes = 32;

// The rule that stands in every error about a token that differs.
inline constexpr const char* kTokenRule =
    "--token-file, or ENGINE_TOKEN, must be the same on all hosts of a run";

// So many bytes of the kernel's random numbers.
absl::StatusOr<std::string> RandomBytes(std::size_t count);

// HMAC-SHA256 (RFC 2104) with the token as its key, over the kind of the message that carries the proof, the
// server's nonce, and the fields of the member's hello without its own proof.
std::string ProofOf(MessageKind kind, const std::string& token, const std::string& nonce,
                    const std::vector<std::string>& hello);

// Whether two proofs are the same, in a time that does not depend on where they differ.
bool SameProof(const std::string& a, const std::string& b);

}  // namespace engine::launch
