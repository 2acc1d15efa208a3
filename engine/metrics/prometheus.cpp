#include "engine/metrics/prometheus.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

namespace engine::metrics {
namespace {

// Upper bounds of a histogram's buckets, in seconds: from a step of a toy model to a checkpoint of a large one.
constexpr std::array kBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,  0.1,   0.25,  0.5,   1.0,
                                2.5,   5.0,    10.0,  25.0, 50.0,  100.0, 250.0, 500.0, 1000.0};

std::string Label(std::string_view name, std::string_view value) {
  std::string text = fmt::format("{}=\"", name);
  for (const char c : value) {
    if (c == '\n') {
      text += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') text += '\\';
    text += c;
  }
  return text + '"';
}

std::string LabelOf(const Measurement& measured) {
  switch (measured.quantity->each) {
    case Quantity::Each::kOne:
      return "";
    case Quantity::Each::kName:
      return Label("name", measured.name);
    case Quantity::Each::kRank:
      return Label("rank", measured.name);
  }
  return "";
}

std::string_view NameOf(Quantity::Type type) {
  constexpr std::array<std::string_view, 3> kNames = {"gauge", "counter", "histogram"};
  return kNames[static_cast<std::size_t>(type)];
}

std::string Head(std::string_view name, std::string_view help, std::string_view type) {
  return fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
}

std::string Sample(std::string_view name, std::string_view labels, double value) {
  return fmt::format("{}{{{}}} {}\n", name, labels, value);
}

}  // namespace

PrometheusMetrics::PrometheusMetrics(const RunDescription& run)
    : run_label_(Label("run", run.name)),
      build_label_(Label("version", run.version) + "," + Label("plan", run.plan_hash)),
      iteration_(static_cast<double>(run.resumed_iteration)) {}

void PrometheusMetrics::Take(const Record& record) {
  iteration_ = static_cast<double>(record.iteration);
  for (const Measurement& measured : record.values) {
    const Quantity& quantity = *measured.quantity;
    if (quantity.metric == nullptr) continue;
    if (!std::isfinite(measured.value)) {
      const auto known = metrics_.find(quantity.metric);
      if (known == metrics_.end() || quantity.type != Quantity::Type::kGauge) continue;
      known->second.by_label.erase(LabelOf(measured));
      if (known->second.by_label.empty()) metrics_.erase(known);
      continue;
    }
    const double value = measured.value * quantity.metric_factor;
    Samples& samples = metrics_[quantity.metric];
    samples.quantity = &quantity;
    if (quantity.type != Quantity::Type::kHistogram) {
      samples.by_label[LabelOf(measured)] = value;
      continue;
    }
    samples.buckets.resize(kBounds.size() + 1);
    ++samples.buckets[static_cast<std::size_t>(std::lower_bound(kBounds.begin(), kBounds.end(), value) -
                                               kBounds.begin())];
    ++samples.count;
    samples.sum += value;
  }
}

std::string PrometheusMetrics::Text() const {
  std::string text = Head("engine_build_info", "The program and the plan that it runs.", "gauge") +
                     Sample("engine_build_info", run_label_ + "," + build_label_, 1) +
                     Head("engine_iteration", "The last iteration that is over.", "gauge") +
                     Sample("engine_iteration", run_label_, iteration_);
  for (const auto& [name, samples] : metrics_) {
    text += Head(name, samples.quantity->help, NameOf(samples.quantity->type));
    for (const auto& [label, value] : samples.by_label) {
      text += Sample(name, label.empty() ? run_label_ : run_label_ + "," + label, value);
    }
    if (samples.buckets.empty()) continue;
    std::int64_t below = 0;
    for (std::size_t b = 0; b < samples.buckets.size(); ++b) {
      below += samples.buckets[b];
      const std::string bound = b < kBounds.size() ? fmt::format("{}", kBounds[b]) : "+Inf";
      text += Sample(name + "_bucket", run_label_ + "," + Label("le", bound), static_cast<double>(below));
    }
    text += Sample(name + "_sum", run_label_, samples.sum);
    text += Sample(name + "_count", run_label_, static_cast<double>(samples.count));
  }
  return text;
}

}  // namespace engine::metrics
