// What a parameter is to its model. How it is kept, summed and updated follows from this, never from its name or shape.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace engine::graph {

enum class Role : std::uint8_t {
  kMatrix,  // of a linear layer
  kTable,   // looked up by row: embeddings
  kBias,
  kGain,     // a factor for each feature, of a norm
  kRouter,   // decides where tokens go: small, and what rounds it changes the path of a token
  kBalance,  // added to a router's scores, so that all experts are chosen alike
  kAdapter,  // a low-rank matrix beside one that is frozen
};

struct RoleFacts {
  std::string_view name;
  bool decays;  // by the optimizer's weight decay
  // One of those that a model consists of: the sum of its gradients may be kept in 16 bits (precision.gradient_dtype), its
  // fp32 master left out (precision.master_dtype), and it is reduced by itself as soon as its gradient is whole. The
  // others are small, and exact.
  bool bulk;
};

inline constexpr std::array<RoleFacts, 7> kRoles = {
    RoleFacts{"matrix", true, true},  RoleFacts{"table", true, true},   RoleFacts{"bias", false, false},
    RoleFacts{"gain", false, false},  RoleFacts{"router", true, false}, RoleFacts{"balance", false, false},
    RoleFacts{"adapter", true, false}};

constexpr const RoleFacts& FactsOf(Role role) { return kRoles[static_cast<std::size_t>(role)]; }

}  // namespace engine::graph
