// What a run measured last, in Prometheus' text format 0.0.4 (prometheus.io/docs/instrumenting/exposition_formats).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/metrics/sink.h"

namespace engine::metrics {

class PrometheusMetrics {
 public:
  explicit PrometheusMetrics(const RunDescription& run);

  // Takes the values of a record over. A gauge that is not finite is not there until it is again; of what counts up the last number stays.
  void Take(const Record& record);

  // Each metric with its help and type, every sample with the label `run`; ends in a line's end.
  std::string Text() const;

 private:
  struct Samples {
    const Quantity* quantity = nullptr;
    std::map<std::string, double> by_label;  // `name="…"`, or "" where a quantity has one value
    // Of a histogram: observations by bucket, each without those of the buckets before; their number and sum.
    std::vector<std::int64_t> buckets;
    std::int64_t count = 0;
    double sum = 0;
  };

  std::string run_label_;  // run="…"
  std::string build_label_;
  double iteration_ = 0;
  std::map<std::string, Samples> metrics_;  // by name
};

}  // namespace engine::metrics
