#include "engine/train/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/train/write_file.h"

namespace engine::train {

double PredictedSeconds(const plan::Instruction& instruction, const recipe::Cluster& cluster) {
  double bytes = 0;
  for (const auto* refs : {&instruction.inputs, &instruction.outputs}) {
    for (const plan::BufferRef& ref : *refs) bytes += static_cast<double>(ref.bytes());
  }
  const double arithmetic = cluster.matmul_flops > 0 ? instruction.flops / cluster.matmul_flops : 0;
  const double memory = cluster.memory_bandwidth > 0 ? bytes / cluster.memory_bandwidth : 0;
  return std::max(arithmetic, memory);
}

std::string ProfileTable(const std::vector<Timings>& iterations, const recipe::Cluster& cluster) {
  struct Row {
    std::string kernel;
    double launches = 0, measured_ms = 0, predicted_ms = 0;
  };
  std::map<std::string, Row> by_kernel;
  Row all{.kernel = "all"};
  for (const Timings& timings : iterations) {
    for (const executor::InstructionTiming& timing : timings) {
      Row& row = by_kernel[timing.instruction->kernel];
      row.kernel = timing.instruction->kernel;
      for (Row* r : {&row, &all}) {
        r->launches += 1;
        r->measured_ms += timing.end_ms - timing.begin_ms;
        r->predicted_ms += 1e3 * PredictedSeconds(*timing.instruction, cluster);
      }
    }
  }
  std::vector<Row> rows;
  rows.reserve(by_kernel.size() + 1);
  for (const auto& [kernel, row] : by_kernel) rows.push_back(row);
  std::sort(rows.begin(), rows.end(),
            [](const Row& a, const Row& b) { return a.measured_ms > b.measured_ms; });
  rows.push_back(all);
  const double count = static_cast<double>(iterations.size());
  std::string text = fmt::format("{:<24} {:>9} {:>12} {:>13} {:>7}\n", "kernel", "launches", "measured ms",
                                 "predicted ms", "ratio");
  for (const Row& row : rows) {
    const std::string ratio =
        row.predicted_ms > 0 ? fmt::format("{:.2f}", row.measured_ms / row.predicted_ms) : "-";
    text += fmt::format("{:<24} {:>9.0f} {:>12.3f} {:>13.3f} {:>7}\n", row.kernel, row.launches / count,
                        row.measured_ms / count, row.predicted_ms / count, ratio);
  }
  return text;
}

std::string ChromeTrace(const Timings& iteration) {
  nlohmann::json events = nlohmann::json::array();
  for (const executor::InstructionTiming& timing : iteration) {
    events.push_back({{"name", timing.instruction->name},
                      {"cat", timing.instruction->kernel},
                      {"ph", "X"},
                      {"pid", 0},
                      {"tid", 0},
                      {"ts", timing.begin_ms * 1e3},
                      {"dur", (timing.end_ms - timing.begin_ms) * 1e3},
                      {"args",
                       {{"kernel", timing.instruction->kernel},
                        {"segment", timing.segment->name},
                        {"microbatch", timing.microbatch}}}});
  }
  return nlohmann::json({{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}).dump();
}

absl::StatusOr<std::string> WriteProfile(const std::string& folder, const std::vector<Timings>& iterations,
                                         const recipe::Cluster& cluster) {
  std::string table = ProfileTable(iterations, cluster);
  RETURN_IF_ERROR(WriteFile(std::filesystem::path(folder) / "profile.txt", table));
  RETURN_IF_ERROR(WriteFile(std::filesystem::path(folder) / "trace.json", ChromeTrace(iterations.back())));
  return table;
}

}  // namespace engine::train
