#include "engine/train/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "engine/base/write_file.h"
#include "engine/predict/cost.h"
#include "engine/predict/trace.h"

namespace engine::train {
namespace {

using Part = executor::InstructionTiming::Part;
using Played = predict::PlayedEvent::Part;
static_assert(static_cast<int>(Part::kRun) == static_cast<int>(Played::kRun) &&
              static_cast<int>(Part::kWait) == static_cast<int>(Played::kWait) &&
              static_cast<int>(Part::kFinish) == static_cast<int>(Played::kSum));

// A wait of a step for others: for what other stages send.
bool WaitsForStages(const executor::InstructionTiming& timing) {
  return timing.part == Part::kWait && timing.instruction == nullptr && timing.segment != nullptr;
}

std::string KernelOf(const executor::InstructionTiming& timing) {
  if (timing.part == Part::kWait) return WaitsForStages(timing) ? "waits for stages" : "waits for exchange";
  if (timing.instruction == nullptr) return "transfers";
  return std::string(timing.instruction->kernel()) + (timing.part == Part::kFinish ? ", rest" : "");
}

double PredictedSeconds(const predict::CostModel& costs, const executor::InstructionTiming& timing) {
  if (timing.part == Part::kWait || timing.instruction == nullptr) return 0;
  if (timing.part == Part::kFinish) return costs.FinishSeconds(*timing.instruction);
  // A pushed sum on the computation's stream is timed with its addition.
  const bool together = timing.instruction->stream == plan::kComputeStream;
  return costs.Seconds(*timing.instruction) + (together ? costs.FinishSeconds(*timing.instruction) : 0);
}

}  // namespace

std::string ProfileTable(const plan::Plan& plan, const std::vector<Timings>& iterations,
                         const recipe::Cluster& cluster) {
  const predict::CostModel costs(plan, cluster);
  const bool known = costs.Missing().empty();
  struct Row {
    std::string kernel;
    double launches = 0, measured_ms = 0, predicted_ms = 0;
  };
  std::map<std::string, Row> by_kernel;
  Row all{.kernel = "all"};
  double beside_ms = 0;
  double waited_ms = 0;
  for (const Timings& timings : iterations) {
    for (const executor::InstructionTiming& timing : timings) {
      const std::string kernel = KernelOf(timing);
      Row& row = by_kernel[kernel];
      row.kernel = kernel;
      const double took_ms = timing.end_ms - timing.begin_ms;
      const bool computes = timing.stream == plan::kComputeStream;
      if (!computes && timing.instruction != nullptr) beside_ms += took_ms;
      if (timing.part == Part::kWait && !WaitsForStages(timing)) waited_ms += took_ms;
      // What runs beside computation is no part of the sum.
      for (Row* r : {&row, computes ? &all : nullptr}) {
        if (r == nullptr) continue;
        r->launches += 1;
        r->measured_ms += took_ms;
        if (known) r->predicted_ms += 1e3 * PredictedSeconds(costs, timing);
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
  if (beside_ms > 0) {
    text += fmt::format(
        "beside computation: {:.3f} ms of exchange, for which computation waited {:.3f} ms, {:.1f} %\n",
        beside_ms / count, waited_ms / count, 100 * waited_ms / all.measured_ms);
  }
  return text;
}

std::string MeasuredTrace(const plan::Plan& plan, std::int64_t rank, const Timings& iteration) {
  std::vector<predict::PlayedEvent> events;
  for (const executor::InstructionTiming& timing : iteration) {
    events.push_back({.stage = static_cast<std::int32_t>(plan.StageOfRank(rank)),
                      .stream = timing.stream,
                      .begin_s = 1e-3 * timing.begin_ms,
                      .end_s = 1e-3 * timing.end_ms,
                      .segment = timing.segment,
                      .instruction = timing.instruction,
                      .microbatch = timing.microbatch,
                      .part = static_cast<predict::PlayedEvent::Part>(timing.part)});
  }
  return predict::ChromeTrace(events, rank == 0 ? "measured" : fmt::format("measured, rank {},", rank));
}

absl::StatusOr<std::string> WriteProfile(const std::string& folder, const plan::Plan& plan, std::int64_t rank,
                                         const std::vector<Timings>& iterations,
                                         const recipe::Cluster& cluster) {
  std::string table = ProfileTable(plan, iterations, cluster);
  const std::string which = rank == 0 ? "" : fmt::format("-{}", rank);
  const std::filesystem::path path = folder;
  RETURN_IF_ERROR(WriteFile(path / fmt::format("profile{}.txt", which), table));
  RETURN_IF_ERROR(
      WriteFile(path / fmt::format("trace{}.json", which), MeasuredTrace(plan, rank, iterations.back())));
  return table;
}

}  // namespace engine::train
