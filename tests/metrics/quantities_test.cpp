#include "engine/metrics/quantities.h"

#include <regex>
#include <set>

#include "tests/metrics/sinks_testing.h"

namespace engine::metrics::testing {
namespace {

std::string SourceFile(const std::string& path) {
  return ReadFile(std::string(ENGINE_SOURCE_DIR) + "/" + path);
}

}  // namespace

TEST_CASE("each quantity has a name of its own in each form, and its unit in Prometheus' names") {
  std::set<std::string> tags;
  std::set<std::string> metrics;
  for (const Quantity* quantity : kQuantities) {
    if (quantity->tag != nullptr) CHECK(tags.insert(quantity->tag).second);
    if (quantity->metric == nullptr) continue;
    const std::string metric = quantity->metric;
    INFO(metric);
    CHECK(metrics.insert(metric).second);
    CHECK(metric.ends_with("_total") == (quantity->type == Quantity::Type::kCounter));
    CHECK(std::string(quantity->help).ends_with("."));
    CHECK(metric.find("_ms") == std::string::npos);
  }
}

TEST_CASE("docs/monitoring.md names each quantity's tag and metric, and docs/metrics.md its key") {
  const std::string monitoring = SourceFile("docs/monitoring.md");
  const std::string keys = SourceFile("docs/metrics.md");
  for (const Quantity* quantity : kQuantities) {
    for (const char* name : {quantity->tag, quantity->metric}) {
      if (name == nullptr) continue;
      INFO(name);
      CHECK(monitoring.find("`" + std::string(name)) != std::string::npos);
    }
    if (quantity->key != nullptr)
      CHECK(keys.find("`" + std::string(quantity->key) + "`") != std::string::npos);
  }
}

TEST_CASE("the Grafana dashboard asks for metrics that there are") {
  std::set<std::string> known = {"engine_iteration", "engine_build_info"};
  for (const Quantity* quantity : kQuantities) {
    if (quantity->metric == nullptr) continue;
    known.insert(quantity->metric);
    if (quantity->type != Quantity::Type::kHistogram) continue;
    for (const char* part : {"_bucket", "_sum", "_count"}) known.insert(std::string(quantity->metric) + part);
  }
  const std::string dashboard = SourceFile("docs/grafana-dashboard.json");
  const std::regex name("engine_[a-z_]+");
  int found = 0;
  for (std::sregex_iterator it(dashboard.begin(), dashboard.end(), name), end; it != end; ++it, ++found) {
    INFO(it->str());
    CHECK(known.contains(it->str()));
  }
  CHECK(found > 20);
}

}  // namespace engine::metrics::testing
