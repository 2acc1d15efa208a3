// Rotary position embedding (RoPE; Su et al., arXiv:2104.09864): from a node's attributes to the angles. Every kernel takes
// them from here, so that no kernel knows a kind of scaling.
//
// The first R elements of a head of E are turned in pairs, at position p by the angles p·f_i, i < R/2; the others pass:
//
//   (a, b) → c·(a·cos − b·sin, b·cos + a·sin)        c: a factor, 1 unless the scaling says otherwise
//
// Attributes:
//   base            of the plain frequencies θ_i = base^(−2i/R)
//   width           R, even; without it R = E
//   interleaved     1: pairs are neighbours, elements 2i and 2i + 1 (GPT-J, Megatron-LM's --rotary-interleaved); else the two
//                   halves of R, elements i and i + R/2 (GPT-NeoX, Llama)
//   scaling         stretches a model that was trained on `original` = L0 positions to s = `factor` times as many:
//     none, or "llama3"   by wavelength λ = 2π/θ (Llama 3.1): λ > L0/low: θ/s; λ < L0/high: θ; between them
//                         (1 − smooth)·θ/s + smooth·θ, smooth = (L0/λ − low)/(high − low). Attributes low, high. Without
//                         `factor`, or with 1: f = θ
//     "linear"            f = θ/s (position interpolation; Chen et al., arXiv:2306.15595)
//     "ntk"               the plain frequencies of base·s^(R/(R − 2)) (NTK-aware)
//     "yarn"              (Peng et al., arXiv:2309.00071) f = (1 − γ_i)·θ + γ_i·θ/s, γ_i = clamp((i − first)/(last − first), 0, 1).
//                         Index ρ(β) = R·ln(L0/(2π·β))/(2·ln base) turns β times in L0 positions; first = max(⌊ρ(beta_fast)⌋, 0),
//                         last = min(⌈ρ(beta_slow)⌉, R − 1), and .001 more where they are equal. beta_fast (32), beta_slow (1);
//                         truncate = 0: no rounding (gpt-oss). c = attention_factor, by default 0.1·ln s + 1
//     "longrope"          (Ding et al., arXiv:2402.13753) f = θ_i/λ_i; `factors` is the list of the R/2 λ_i, joined by commas.
//                         c = attention_factor, by default √(1 + ln s/ln L0)
// Of the last two c = 1 by default where s ≤ 1.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/base/status.h"
#include "engine/graph/graph.h"

namespace engine::graph {

struct RotaryTable {
  static constexpr std::int64_t kMaxHalf = 256;
  std::int64_t half = 0;  // R/2; 0: nothing is turned
  bool interleaved = false;
  double factor = 1;                              // c
  std::array<double, kMaxHalf> frequencies = {};  // f_i, in radians a position
};

// Whether the attributes name a scaling that there is, and fit heads of `head` elements; else why not.
absl::Status CheckRotary(const Attributes& attributes, std::int64_t head);

// Of attributes that CheckRotary accepts.
RotaryTable RotaryTableOf(const Attributes& attributes, std::int64_t head);

// Of a node that turns only where its attribute rotary is 1.
inline RotaryTable OptionalRotaryTableOf(const Attributes& attributes, std::int64_t head) {
  return attributes.Int("rotary", 0) != 0 ? RotaryTableOf(attributes, head) : RotaryTable{};
}
inline absl::Status CheckOptionalRotary(const Attributes& attributes, std::int64_t head) {
  return attributes.Int("rotary", 0) != 0 ? CheckRotary(attributes, head) : absl::OkStatus();
}

}  // namespace engine::graph
