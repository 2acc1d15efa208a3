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
  // so is what a killed run wrote by half. The file stays the same one, so that a program that follows it goes on. The first
  // line that follows says that the run was resumed.
  static absl::StatusOr<std::unique_ptr<Jsonl>> Open(const std::string& path, std::int64_t iteration);

  std::string Name() const override { return "metrics.jsonl"; }
  absl::Status Write(const Record& record) override;

 private:
  Jsonl(std::string path, std::int64_t iteration) : file_(std::move(path)), resumed_iteration_(iteration) {}

  AppendFile file_;
  std::int64_t resumed_iteration_;  // which no line says yet; 0: none is to say it
};

}  // namespace engine::metrics
