// GET /metrics, from a thread that does nothing else: a scrape never waits for training, nor training for a scrape.
#pragma once

#include <mutex>
#include <string>
#include <thread>

#include "engine/launch/socket.h"
#include "engine/metrics/prometheus.h"
#include "engine/metrics/sink.h"

namespace engine::metrics {

class PrometheusListener : public Sink {
 public:
  // Listens there from the first record on. Port 0: any that is free.
  PrometheusListener(launch::Endpoint endpoint, const RunDescription& run)
      : endpoint_(std::move(endpoint)), metrics_(run) {}
  ~PrometheusListener() override { Stop(); }
  PrometheusListener(const PrometheusListener&) = delete;
  PrometheusListener& operator=(const PrometheusListener&) = delete;

  std::string Name() const override { return "logging.prometheus.port"; }
  bool PutsOutEach() const override { return false; }
  void Take(const Record& record) override;
  absl::Status Write(const Record& record) override;
  absl::Status Close(bool succeeded) override;

  int port() const { return launch::PortOf(socket_); }  // after the first record

 private:
  absl::Status Listen();
  void Serve();
  void Stop();

  launch::Endpoint endpoint_;
  launch::Descriptor socket_;
  launch::Descriptor stop_;  // an eventfd: readable when the thread is to end
  std::mutex mutex_;
  PrometheusMetrics metrics_;  // under mutex_
  std::thread thread_;
};

}  // namespace engine::metrics
