// The float functions of the kernels, against libm in double.
#include "engine/backend/cpu/kernels/loops.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace engine::backend::cpu {
namespace {

TEST_CASE("float exp is within 2 ulp over its range") {
  double worst = 0;
  for (double x = -87.3; x <= 88.3; x += 1.37e-3) {
    const auto argument = static_cast<float>(x);
    const double exact = std::exp(static_cast<double>(argument));
    const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
    worst = std::max(worst, std::fabs(static_cast<double>(Exp(argument)) - exact) / ulp);
  }
  CHECK(worst <= 2.0);
  CHECK(Exp(0.0F) == 1.0F);
  CHECK(Exp(-std::numeric_limits<float>::infinity()) < 2e-38F);
  CHECK(Exp(std::numeric_limits<float>::infinity()) > 2e38F);
  CHECK(std::isnan(Exp(std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("reductions cover every element, whatever the length") {
  for (std::int64_t n : {0, 1, 31, 32, 33, 64, 100}) {
    std::vector<double> x;
    for (std::int64_t i = 0; i < n; ++i) x.push_back(static_cast<double>(i + 1));
    CHECK(SumOf<double>(n, [&](std::int64_t i) { return x[static_cast<size_t>(i)]; }) ==
          static_cast<double>(n * (n + 1) / 2));
    for (std::int64_t top = 0; top < n; ++top) {
      std::vector<double> y(x.size(), -3.0);
      y[static_cast<size_t>(top)] = 2.0;
      REQUIRE(MaxOf(n, y.data()) == 2.0);
    }
  }
  CHECK(MaxOf<float>(0, nullptr) == -std::numeric_limits<float>::infinity());
}

}  // namespace
}  // namespace engine::backend::cpu
