// The activations that the ops `activation` and `glu` have by name (their attribute kind).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

namespace engine::graph {

// σ(z) = 1 / (1 + exp(−z)).
enum class Activation : std::uint8_t {
  kRelu,       // max(x, 0)
  kSilu,       // x · σ(x)
  kQuickGelu,  // x · σ(1.702 x)
  kTanh,
  kSigmoid,
  kGeluTanh,  // x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))
  kGeluErf,   // x/2 · (1 + erf(x/√2))
};

inline constexpr double kQuickGeluSlope = 1.702;  // Hendrycks & Gimpel, arXiv:1606.08415, section 2

struct ActivationKind {
  std::string_view name;
  Activation activation;
};

// Of the op `activation`. GELU and squared ReLU are ops of their own.
inline constexpr std::array kActivationKinds = {
    ActivationKind{"relu", Activation::kRelu}, ActivationKind{"silu", Activation::kSilu},
    ActivationKind{"quick_gelu", Activation::kQuickGelu}, ActivationKind{"tanh", Activation::kTanh},
    ActivationKind{"sigmoid", Activation::kSigmoid}};

// Of the gate of the op `glu`. A gate of silu is the op `swiglu`.
inline constexpr std::array kGateKinds = {
    ActivationKind{"gelu_tanh", Activation::kGeluTanh}, ActivationKind{"gelu_erf", Activation::kGeluErf},
    ActivationKind{"relu", Activation::kRelu}, ActivationKind{"quick_gelu", Activation::kQuickGelu},
    ActivationKind{"sigmoid", Activation::kSigmoid}};

// Of an expert, with a gate or without: the op `expert_activation`.
inline constexpr std::array kExpertActivations = {
    ActivationKind{"silu", Activation::kSilu},        ActivationKind{"gelu_tanh", Activation::kGeluTanh},
    ActivationKind{"gelu_erf", Activation::kGeluErf}, ActivationKind{"quick_gelu", Activation::kQuickGelu},
    ActivationKind{"relu", Activation::kRelu},        ActivationKind{"sigmoid", Activation::kSigmoid},
    ActivationKind{"tanh", Activation::kTanh}};

// Null if there is none of that name.
constexpr const ActivationKind* FindActivation(std::span<const ActivationKind> kinds, std::string_view name) {
  for (const ActivationKind& kind : kinds) {
    if (kind.name == name) return &kind;
  }
  return nullptr;
}

// Calls body(std::integral_constant<Activation, …>()) with the activation of that name, so that a kernel is compiled for
// each. False: kKinds, a list from above, has none of that name.
template <const auto& kKinds, typename Body>
bool WithActivation(std::string_view name, const Body& body) {
  return [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    return ((kKinds[kIndex].name == name &&
             (body(std::integral_constant<Activation, kKinds[kIndex].activation>()), true)) ||
            ...);
  }
  (std::make_index_sequence<kKinds.size()>());
}

}  // namespace engine::graph
