#include "engine/metrics/quantities.h"

#include <regex>
#include <set>

#include "tests/metrics/sinks_testing.h"

namespace engine::metrics::testing {
namespace {

std::string SourceFile(const std::string& path) {
  return ReadFile(std::string(ENGINE_SOURCE_DIR) + "/" + path);
}

std::string Quoted(const char* name, const std::string& behind) {
  return name == nullptr ? "" : "`" + (name + behind) + "`";
}

// A quantity's row in the table of names, by its entry in kQuantities.
std::string RowOf(const Quantity& quantity) {
  using Each = Quantity::Each;
  const std::string label =
      quantity.each == Each::kName ? "{name}" : (quantity.each == Each::kRank ? "{rank}" : "");
  return fmt::format("| {} | {}{} | {}{} |\n", Quoted(quantity.key, ""),
                     Quoted(quantity.tag, quantity.each == Each::kName ? "NAME" : ""),
                     quantity.over_samples ? " \\*" : "", Quoted(quantity.metric, label),
                     quantity.type == Quantity::Type::kHistogram ? ", histogram" : "");
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

TEST_CASE("docs/monitoring.md has a row for each quantity, and no others, and docs/metrics.md its key") {
  const std::string keys = SourceFile("docs/metrics.md");
  std::string rows = "| metrics.jsonl | TensorBoard, W&B | Prometheus |\n|---|---|---|\n";
  for (const Quantity* quantity : kQuantities) {
    rows += RowOf(*quantity);
    if (quantity->key != nullptr)
      CHECK(keys.find("`" + std::string(quantity->key) + "`") != std::string::npos);
  }
  const std::string monitoring = SourceFile("docs/monitoring.md");
  const std::size_t table = monitoring.find("| metrics.jsonl |");
  REQUIRE(table != std::string::npos);
  CHECK(monitoring.substr(table) == rows);
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
