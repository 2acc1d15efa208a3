#include <limits>
#include <numbers>

#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"

namespace engine::backend::cpu {
namespace {

constexpr std::int64_t kRows = 32;      // tokens of a task
constexpr std::int64_t kMaxHalf = 256;  // half of the widest head
constexpr std::int32_t kNoPosition = std::numeric_limits<std::int32_t>::min();

// cos and sin of position · frequency_i, i < half, in double. From one position to the next the angles are
// turned by a complex product; a task of kRows tokens starts from exact values, so at most kRows roundings of
// 2⁻⁵³ add up.
class Rotation {
 public:
  Rotation(const graph::Attributes& attributes, std::int64_t head, bool inverse)
      : active_(attributes.Int("rotary", 0) != 0), half_(head / 2), sign_(inverse ? -1.0 : 1.0) {
    if (!active_) return;
    ENGINE_CHECK(half_ <= kMaxHalf && head % 2 == 0, "rotary head of {}", head);
    const double base = attributes.Float("base");
    for (std::int64_t i = 0; i < half_; ++i) {
      frequency_[i] =
          Scaled(std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(head)), attributes);
      step_cos_[i] = std::cos(frequency_[i]);
      step_sin_[i] = std::sin(frequency_[i]);
    }
  }

  void MoveTo(std::int32_t position) {
    if (!active_ || position == position_) return;
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

  // out[E] = x[E] turned to the current position (back from it if inverse).
  template <typename T>
  void Apply(const T* x, T* out, std::int64_t head) const {
    if (!active_) {
      std::copy_n(x, head, out);
      return;
    }
    for (std::int64_t i = 0; i < half_; ++i) {
      const T c = static_cast<T>(cos_[i]);
      const T s = static_cast<T>(sign_ * sin_[i]);
      out[i] = x[i] * c - x[i + half_] * s;
      out[i + half_] = x[i + half_] * c + x[i] * s;
    }
  }

 private:
  static double Scaled(double frequency, const graph::Attributes& attributes) {
    const double factor = attributes.Float("factor");
    if (factor == 1.0) return frequency;
    const double low = attributes.Float("low");
    const double high = attributes.Float("high");
    const double original = attributes.Float("original");
    const double wavelength = 2 * std::numbers::pi / frequency;
    if (wavelength > original / low) return frequency / factor;
    if (wavelength < original / high) return frequency;
    const double smooth = (original / wavelength - low) / (high - low);
    return (1 - smooth) * frequency / factor + smooth * frequency;
  }

  bool active_;
  std::int64_t half_;
  double sign_;
  std::int32_t position_ = kNoPosition;
  double frequency_[kMaxHalf], step_cos_[kMaxHalf], step_sin_[kMaxHalf], cos_[kMaxHalf], sin_[kMaxHalf];
};

}  // namespace

template <typename T>
void QkvSplit(const KernelArgs& args) {
  const Shape& shape = args.inputs[0].shape;
  const std::int64_t groups = shape[2];
  const std::int64_t queries = shape[3] - 2;
  const std::int64_t head = shape[4];
  const T* packed = args.inputs[0].as<T>();
  const std::int32_t* positions = args.inputs[1].as<std::int32_t>();
  T* q = args.outputs[0].as<T>();
  T* k = args.outputs[1].as<T>();
  T* v = args.outputs[2].as<T>();
  ForEachBlock(args, shape[0] * shape[1], kRows, [&](std::int64_t first, std::int64_t last) {
    Rotation rotation(*args.attributes, head, /*inverse=*/false);
    for (std::int64_t token = first; token < last; ++token) {
      rotation.MoveTo(positions[token]);
      for (std::int64_t group = token * groups; group < (token + 1) * groups; ++group) {
        const T* in = packed + group * (queries + 2) * head;
        for (std::int64_t j = 0; j < queries; ++j) {
          rotation.Apply(in + j * head, q + (group * queries + j) * head, head);
        }
        rotation.Apply(in + queries * head, k + group * head, head);
        std::copy_n(in + (queries + 1) * head, head, v + group * head);
      }
    }
  });
}

template <typename T>
void QkvMerge(const KernelArgs& args) {
  const Shape& shape = args.outputs[0].shape;
  const std::int64_t groups = shape[2];
  const std::int64_t queries = shape[3] - 2;
  const std::int64_t head = shape[4];
  const T* dq = args.inputs[0].as<T>();
  const T* dk = args.inputs[1].as<T>();
  const T* dv = args.inputs[2].as<T>();
  const std::int32_t* positions = args.inputs[3].as<std::int32_t>();
  T* packed = args.outputs[0].as<T>();
  ForEachBlock(args, shape[0] * shape[1], kRows, [&](std::int64_t first, std::int64_t last) {
    Rotation rotation(*args.attributes, head, /*inverse=*/true);
    for (std::int64_t token = first; token < last; ++token) {
      rotation.MoveTo(positions[token]);
      for (std::int64_t group = token * groups; group < (token + 1) * groups; ++group) {
        T* out = packed + group * (queries + 2) * head;
        for (std::int64_t j = 0; j < queries; ++j) {
          rotation.Apply(dq + (group * queries + j) * head, out + j * head, head);
        }
        rotation.Apply(dk + group * head, out + queries * head, head);
        std::copy_n(dv + group * head, head, out + (queries + 1) * head);
      }
    }
  });
}

template void QkvSplit<float>(const KernelArgs&);
template void QkvSplit<double>(const KernelArgs&);
template void QkvMerge<float>(const KernelArgs&);
template void QkvMerge<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
