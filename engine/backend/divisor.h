// Division by a number that is known before a kernel starts: a product and a shift, where the processor's own
// takes a GPU some twenty instructions (Granlund and Montgomery, "Division by invariant integers using
// multiplication", PLDI 1994).
#pragma once

#include <bit>
#include <cstdint>

namespace engine::backend {

struct Divisor {
  std::uint32_t number = 2;
  std::uint32_t multiplier = 0;
  int shift = 0;  // of the product's upper word

  Divisor() = default;
  // number: 2 to 2^31.
  constexpr explicit Divisor(std::uint32_t number) : number(number), shift(std::bit_width(number - 1) - 1) {
    multiplier = static_cast<std::uint32_t>((std::uint64_t{1} << (32 + shift)) / number + 1);
  }

  // ⌊n / number⌋ of n < 2^31.
  constexpr std::uint32_t operator()(std::uint32_t n) const {
    return static_cast<std::uint32_t>((std::uint64_t{n} * multiplier) >> 32) >> shift;
  }
};

}  // namespace engine::backend
