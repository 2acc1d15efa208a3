#include "engine/predict/trace.h"

#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

namespace engine::predict {
namespace {

// By Stream.
constexpr std::array kStreamNames = {"computation",         "send to next",      "receive from previous",
                                     "send to previous",    "receive from next", "exchange",
                                     "exchange of buckets", "copies of the host"};
static_assert(kStreamNames.size() == plan::kStreams);

nlohmann::json NameOf(const char* what, std::int32_t stage, std::int32_t stream, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", stage}, {"tid", stream}, {"args", {{"name", name}}}};
}

std::string_view Transfers(std::int32_t stream) {
  const bool sends = stream == plan::kSendNext || stream == plan::kSendPrevious;
  return sends ? "send" : stream == plan::kComputeStream ? "exchange" : "receive";
}

nlohmann::json EventJson(const PlayedEvent& event) {
  constexpr std::array kParts = {"", ".wait", ".sum"};
  const plan::Instruction* instruction = event.instruction;
  const std::string_view kernel = instruction != nullptr ? instruction->kernel() : Transfers(event.stream);
  const std::string name =
      instruction != nullptr ? instruction->name : fmt::format("{} of {}", kernel, event.microbatch);
  nlohmann::json arguments = {{"kernel", kernel}, {"microbatch", event.microbatch}};
  if (event.segment != nullptr) arguments["segment"] = event.segment->name;
  if (instruction != nullptr && instruction->wire_bytes() > 0) arguments["bytes"] = instruction->wire_bytes();
  return {{"name", name + kParts[static_cast<size_t>(event.part)]},
          {"cat", kernel},
          {"ph", "X"},
          {"pid", event.stage},
          {"tid", event.stream},
          {"ts", event.begin_s * 1e6},
          {"dur", (event.end_s - event.begin_s) * 1e6},
          {"args", std::move(arguments)}};
}

}  // namespace

std::string ChromeTrace(std::span<const PlayedEvent> events, const std::string& process) {
  nlohmann::json list = nlohmann::json::array();
  std::set<std::pair<std::int32_t, std::int32_t>> threads;
  for (const PlayedEvent& event : events) threads.insert({event.stage, event.stream});
  std::int32_t named = -1;
  for (const auto& [stage, stream] : threads) {
    if (stage != named)
      list.push_back(NameOf("process_name", stage, 0, fmt::format("{} stage {}", process, stage)));
    named = stage;
    list.push_back(NameOf("thread_name", stage, stream, kStreamNames[static_cast<size_t>(stream)]));
  }
  for (const PlayedEvent& event : events) list.push_back(EventJson(event));
  return nlohmann::json({{"traceEvents", std::move(list)}, {"displayTimeUnit", "ms"}}).dump();
}

}  // namespace engine::predict
