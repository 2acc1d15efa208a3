#include "engine/train/hta_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "engine/base/write_file.h"
#include "engine/predict/cost.h"

namespace engine::train {
namespace {

using nlohmann::json;

// Processes of the trace.
constexpr int kMeasured = 0;
constexpr int kPredicted = 1;
constexpr int kIterationsThread = 1000;  // behind all streams

std::string WorkName(const plan::Instruction* instruction) {
  if (instruction == nullptr) return "ncclKernel_transfer";
  const std::string kernel(instruction->kernel());
  return instruction->wire_bytes() > 0 ? "ncclKernel_" + kernel : kernel;
}

json Named(const char* what, int process, int thread, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", process}, {"tid", thread}, {"args", {{"name", name}}}};
}

json Slice(const std::string& name, const char* category, int process, int thread, double begin_us,
           double end_us) {
  return {{"name", name},   {"cat", category},         {"ph", "X"}, {"pid", process}, {"tid", thread},
          {"ts", begin_us}, {"dur", end_us - begin_us}};
}

json Work(const executor::InstructionTiming& timing, double offset_us, std::int64_t rank,
          std::size_t correlation) {
  json event = Slice(WorkName(timing.instruction), "kernel", kMeasured, timing.stream,
                     offset_us + 1e3 * timing.begin_ms, offset_us + 1e3 * timing.end_ms);
  event["args"] = {{"device", rank},
                   {"stream", timing.stream},
                   {"correlation", correlation},
                   {"microbatch", timing.microbatch}};
  if (timing.instruction != nullptr) event["args"]["instruction"] = timing.instruction->name;
  return event;
}

// Appends the iterations; an iteration begins where the one before ended.
void AppendMeasured(const std::vector<Timings>& iterations, std::int64_t rank, json& events) {
  double offset_us = 0;
  std::size_t correlation = 0;
  for (std::size_t i = 0; i < iterations.size(); ++i) {
    double end_us = offset_us;
    for (const executor::InstructionTiming& timing : iterations[i]) {
      end_us = std::max(end_us, offset_us + 1e3 * timing.end_ms);
      if (timing.part == executor::InstructionTiming::Part::kWait) continue;
      events.push_back(Work(timing, offset_us, rank, ++correlation));
    }
    events.push_back(Slice(fmt::format("ProfilerStep#{}", i), "user_annotation", kMeasured, kIterationsThread,
                           offset_us, end_us));
    offset_us = end_us;
  }
}

void AppendPredicted(const std::vector<predict::PlayedEvent>& predicted, std::int64_t stage, json& events) {
  if (!predicted.empty()) events.push_back(Named("process_name", kPredicted, 0, "predicted"));
  for (const predict::PlayedEvent& event : predicted) {
    if (event.stage != stage || event.part == predict::PlayedEvent::Part::kWait) continue;
    events.push_back(Slice(WorkName(event.instruction), "predicted", kPredicted, event.stream,
                           1e6 * event.begin_s, 1e6 * event.end_s));
  }
}

}  // namespace

std::string HtaTrace(const plan::Plan& plan, std::int64_t rank, const std::vector<Timings>& iterations,
                     const std::vector<predict::PlayedEvent>& predicted) {
  json events = json::array({Named("process_name", kMeasured, 0, fmt::format("measured, rank {}", rank)),
                             Named("thread_name", kMeasured, kIterationsThread, "iterations")});
  AppendMeasured(iterations, rank, events);
  AppendPredicted(predicted, plan.StageOfRank(rank), events);
  return fmt::format(
      "{{\"distributedInfo\": {{\"backend\": \"nccl\", \"rank\": {}, \"world_size\": {}}},\n"
      "\"displayTimeUnit\": \"ms\",\n\"traceEvents\": {}}}\n",
      rank, plan.mesh.world(), events.dump());
}

std::vector<predict::PlayedEvent> PredictedEvents(const plan::Plan& plan, const recipe::Cluster& cluster) {
  std::vector<predict::PlayedEvent> events;
  if (predict::CostModel(plan, cluster).Missing().empty()) predict::Predict(plan, cluster, &events);
  return events;
}

absl::Status WriteHtaTrace(const std::string& folder, const plan::Plan& plan, std::int64_t rank,
                           const std::vector<Timings>& iterations,
                           const std::vector<predict::PlayedEvent>& predicted) {
  const std::filesystem::path traces = std::filesystem::path(folder) / "traces";
  std::error_code error;
  std::filesystem::create_directories(traces, error);  // an error is the file's
  return WriteFile(traces / fmt::format("rank-{}.json", rank), HtaTrace(plan, rank, iterations, predicted));
}

}  // namespace engine::train
