#include "engine/state/histograms.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/state/world.h"

namespace engine::train::testing {
namespace {

Histogram HistogramOf(const std::vector<float>& values) {
  Histogram histogram;
  histogram.Add(values);
  return histogram;
}

}  // namespace

TEST_CASE("histograms: over all ranks of any layout each weight and each gradient is counted once") {
  for (const std::vector<std::string>& layout : kLayouts) {
    INFO((layout.empty() ? "one rank" : layout[0]));
    const World world(layout);
    world.Initialize();
    world.Train(0, 2);
    std::map<std::pair<std::int32_t, bool>, Histogram> found;
    for (const auto& rank : world.ranks->executors()) {
      const auto parts = state::HistogramsOf(world.plan, *rank);
      Must(parts.status());
      for (const state::PartialHistogram& part : *parts)
        found[{part.parameter, part.is_gradient}].Add(part.histogram);
    }
    const auto parameters = static_cast<std::int32_t>(world.plan.parameters.size());
    CHECK(std::ssize(found) == 2 * parameters);
    for (std::int32_t parameter = 0; parameter < parameters; ++parameter) {
      for (const bool is_gradient : {false, true}) {
        INFO(world.plan.parameters[static_cast<size_t>(parameter)].name
             << (is_gradient ? ", its gradient" : ""));
        std::vector<float> whole;
        Must(is_gradient ? state::GatherGradient(world.plan, *world.ranks, parameter, &whole)
                         : state::GatherParameter(world.plan, *world.ranks, parameter, &whole));
        const Histogram expected = HistogramOf(whole);
        const Histogram& histogram = found[{parameter, is_gradient}];
        CHECK(histogram.count() == expected.count());
        CHECK(histogram.buckets() == expected.buckets());
        CHECK(histogram.min() == expected.min());
        CHECK(histogram.max() == expected.max());
        CHECK(histogram.sum_of_squares() == doctest::Approx(expected.sum_of_squares()).epsilon(1e-12));
        CHECK(histogram.sum_of_squares() > 0);
      }
    }
  }
}

}  // namespace engine::train::testing
