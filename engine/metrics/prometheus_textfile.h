// A file that Prometheus' node exporter reads (--collector.textfile.directory), for hosts on which no port may be opened.
#pragma once

#include <chrono>
#include <string>

#include "engine/metrics/prometheus.h"
#include "engine/metrics/sink.h"

namespace engine::metrics {

class PrometheusTextfile : public Sink {
 public:
  // `path` ends in .prom; its folder has to be there. A reader never sees a half: the file is written under another name
  // and renamed. That is done once a second at most, and when the run is over.
  PrometheusTextfile(std::string path, const RunDescription& run) : path_(std::move(path)), metrics_(run) {}

  std::string Name() const override { return "logging.prometheus.textfile"; }
  bool PutsOutEach() const override { return false; }
  void Take(const Record& record) override { metrics_.Take(record); }
  absl::Status Write(const Record& record) override;
  absl::Status Close(bool succeeded) override;

 private:
  absl::Status WriteText();

  std::string path_;
  PrometheusMetrics metrics_;
  std::chrono::steady_clock::time_point due_ = {};
};

}  // namespace engine::metrics
