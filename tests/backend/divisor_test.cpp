#include "engine/backend/divisor.h"

#include <doctest/doctest.h>

#include <random>
#include <vector>

namespace engine::backend {
namespace {

TEST_CASE("divisor: what the processor's division gives, at multiples and beside them") {
  std::mt19937 random(5);
  std::vector<std::uint32_t> numbers = {2, 3, 5, 7, 10, 80, 240, 641, (1U << 31) - 1, 1U << 31};
  for (int bit = 2; bit < 31; ++bit) {
    for (const std::uint32_t around : {(1U << bit) - 1, 1U << bit, (1U << bit) + 1})
      numbers.push_back(around);
    numbers.push_back((1U << bit) + random() % (1U << bit));
  }
  constexpr std::uint32_t kMost = (1U << 31) - 1;
  for (const std::uint32_t number : numbers) {
    const Divisor divisor(number);
    const auto wrong = [&](std::uint32_t n) { return n <= kMost && divisor(n) != n / number; };
    std::int64_t wrongs = wrong(0) + wrong(kMost);
    for (int i = 0; i < 2000; ++i) {
      const std::uint32_t n = random() & kMost;
      const std::uint32_t multiple = n / number * number;
      for (const std::uint32_t at : {n, multiple, multiple - 1, multiple + 1, kMost - n % 1000})
        wrongs += wrong(at);
    }
    CHECK_MESSAGE(wrongs == 0, number);
  }
}

}  // namespace
}  // namespace engine::backend
