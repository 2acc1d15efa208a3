// What tests of sinks share: a run, records of it, files.
#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "engine/metrics/sink.h"
#include "tests/data/file_size_limit.h"
#include "tests/data/temp_dir.h"

namespace engine::metrics::testing {

using data::FileSizeLimit;
using data::ReadFile;
using data::TempDir;

inline RunDescription TestRun(std::int64_t resumed_iteration = 0) {
  return {.name = "quick",
          .resumed_iteration = resumed_iteration,
          .resumed_samples = 8 * resumed_iteration,
          .begin_unix_seconds = 1000,
          .host = "h",
          .version = "1.2",
          .plan_hash = "abc",
          .settings = {{"model.layers", std::int64_t{12}},
                       {"lr", 0.5},
                       {"kind", std::string("sgd")},
                       {"fp8", true}},
          .texts = {{"recipe", "text"}}};
}

inline Record IterationRecord(std::int64_t iteration, std::vector<Measurement> values) {
  return {.iteration = iteration,
          .consumed_samples = 8 * iteration,
          .unix_seconds = 1000 + static_cast<double>(iteration),
          .values = std::move(values)};
}

inline Record LossRecord(std::int64_t iteration, double loss) {
  return IterationRecord(iteration, {{&kLoss, loss}});
}

// What Sinks does with a record.
inline absl::Status TakeAndWrite(Sink& sink, const Record& record) {
  sink.Take(record);
  return sink.Write(record);
}

// Bytes of a file of hexadecimal digits, line by line.
inline std::vector<std::string> HexLines(const std::string& name) {
  std::ifstream file(std::string(ENGINE_SOURCE_DIR) + "/tests/metrics/golden/" + name);
  REQUIRE(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    std::string bytes;
    for (std::size_t i = 0; i + 1 < line.size(); i += 2)
      bytes.push_back(static_cast<char>(std::strtol(line.substr(i, 2).c_str(), nullptr, 16)));
    lines.push_back(bytes);
  }
  return lines;
}

// So a failed comparison prints digits.
inline std::string ToHex(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

}  // namespace engine::metrics::testing
