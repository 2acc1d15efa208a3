// metrics.jsonl: one JSON object a line (docs/metrics.md).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/metrics/append_file.h"
#include "engine/metrics/sink.h"

namespace engine::metrics {

class Jsonl : public Sink {
 public:
  // Of a run that is resumed after `iteration`, later lines are cut off first, as those iterations will run again, and
  // so is what a killed run wrote by half. The file stays the same one, so that a program that follows it goes on.
  static absl::StatusOr<std::unique_ptr<Jsonl>> Open(const std::string& path, std::int64_t iteration);

  std::string Name() const override { return "metrics.jsonl"; }
  absl::Status Write(const Record& record) override;

 private:
  explicit Jsonl(std::string path) : file_(std::move(path)) {}

  AppendFile file_;
};

}  // namespace engine::metrics
