// Turning heads by rotary position embedding (graph/rotary.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "engine/graph/rotary.h"

namespace engine::backend::cpu {

// Tokens of a task.
inline constexpr std::int64_t kRotationRows = 32;

// cos and sin of position · frequency_i, i < half, in double. From one position to the next the angles are
// turned by a complex product; a task of kRotationRows tokens starts from exact values, so at most kRotationRows
// roundings of 2⁻⁵³ add up.
class Rotation {
 public:
  Rotation(const graph::RotaryTable& table, bool inverse)
      : half_(table.half),
        interleaved_(table.interleaved),
        factor_(table.factor),
        sign_(inverse ? -1.0 : 1.0) {
    for (std::int64_t i = 0; i < half_; ++i) {
      frequency_[i] = table.frequencies[static_cast<std::size_t>(i)];
      step_cos_[i] = std::cos(frequency_[i]);
      step_sin_[i] = std::sin(frequency_[i]);
    }
  }

  void MoveTo(std::int32_t position) {
    if (half_ == 0 || position == position_) return;
    const bool next = position_ != kNoPosition && position == position_ + 1;
    for (std::int64_t i = 0; i < half_; ++i) {
      const double angle = position * frequency_[i];
      const double c = next ? cos_[i] * step_cos_[i] - sin_[i] * step_sin_[i] : std::cos(angle);
      const double s = next ? sin_[i] * step_cos_[i] + cos_[i] * step_sin_[i] : std::sin(angle);
      cos_[i] = c;
      sin_[i] = s;
    }
    position_ = position;
  }

  // out[E] = x[E] turned to the current position (back from it if inverse). out may be x.
  template <typename T>
  void Apply(const T* x, T* out, std::int64_t head) const {
    if (interleaved_) {
      TurnPairs</*kStep=*/2>(x, x + 1, out, out + 1);
    } else {
      TurnPairs</*kStep=*/1>(x, x + half_, out, out + half_);
    }
    if (out != x) std::copy_n(x + 2 * half_, head - 2 * half_, out + 2 * half_);
  }

 private:
  // Pair i is a[i · kStep] and b[i · kStep].
  template <int kStep, typename T>
  void TurnPairs(const T* a, const T* b, T* out_a, T* out_b) const {
    for (std::int64_t i = 0; i < half_; ++i) {
      const T c = static_cast<T>(factor_ * cos_[i]);
      const T s = static_cast<T>(factor_ * (sign_ * sin_[i]));
      const T low = a[i * kStep];
      const T high = b[i * kStep];
      out_a[i * kStep] = low * c - high * s;
      out_b[i * kStep] = high * c + low * s;
    }
  }

  static constexpr std::int32_t kNoPosition = std::numeric_limits<std::int32_t>::min();
  static constexpr std::int64_t kMaxHalf = graph::RotaryTable::kMaxHalf;

  std::int64_t half_;
  bool interleaved_;
  double factor_, sign_;
  std::int32_t position_ = kNoPosition;
  double frequency_[kMaxHalf], step_cos_[kMaxHalf], step_sin_[kMaxHalf], cos_[kMaxHalf], sin_[kMaxHalf];
};

}  // namespace engine::backend::cpu
