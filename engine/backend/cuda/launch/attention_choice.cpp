#include "engine/backend/cuda/launch/attention_choice.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "engine/backend/cuda/device/device.h"
#include "engine/backend/cuda/launch/attention_contest.h"
#include "engine/backend/cuda/libraries/libraries.h"
#include "engine/backend/cuda/profile/choice_file.h"

namespace engine::backend::cuda {
namespace {

// The version of our own kernels: a higher number after a change of their speed lets every shape be timed again.
constexpr int kOwnVersion = 8;

std::string TextOf(const AttentionShape& s) {
  return fmt::format("B{} S{} T{} H{} K{} E{} U{} window {} {}{}", s.batch, s.queries, s.keys, s.heads,
                     s.kv_heads, s.head, s.value_head, s.window, Name(s.dtype), s.packed ? " packed" : "");
}

// All that the choice depends on. Masks and forms of scores are not part of it: several kinds of kernels carry out only what
// cuDNN takes, which is causal attention without any.
std::string ChoiceKey(const Device& device, const std::string& cudnn, const LaunchArgs& args,
                      const AttentionShape& shape, bool backward) {
  std::string positions;
  if (!args.inputs[0].extent.dims.empty()) {
    for (const Interval& interval : args.inputs[0].extent.dims[1])
      positions += fmt::format(" {}+{}", interval.start, interval.length);
  }
  return fmt::format("{}\tcuDNN {}, own {}\t{} {} at{} scratch {}{}", device.properties().name, cudnn,
                     kOwnVersion, args.instruction->kernel(), TextOf(shape), positions, args.scratch.size(),
                     backward && device.deterministic() ? ", repeatable" : "");
}

// Milliseconds of each way; 0: it could not be timed.
absl::StatusOr<std::vector<double>> Time(Device& device, const LaunchArgs& args,
                                         const std::vector<AttentionWay>& ways) {
  std::vector<AttentionEntrant> entrants;
  entrants.reserve(ways.size());
  for (const AttentionWay& way : ways) entrants.push_back({way, &device});
  const AttentionTiming brief = {.rounds = 3, .round_ms = 20};
  ASSIGN_OR_RETURN(const std::vector<AttentionTime> times,
                   TimeAttention(args, entrants, brief, device.borrowed()));
  std::vector<double> milliseconds;
  milliseconds.reserve(times.size());
  for (const AttentionTime& time : times)
    milliseconds.push_back(time.why_not.empty() ? time.milliseconds : 0);
  return milliseconds;
}

}  // namespace

absl::StatusOr<AttentionWay> ChooseAttention(Device& device, const LaunchArgs& args,
                                             const AttentionShape& shape, bool backward) {
  const auto scratch_bytes = static_cast<std::int64_t>(args.scratch.size());
  const std::vector<AttentionWay> ways =
      AttentionWays(shape, backward, device.deterministic(), scratch_bytes);
  if (ways.size() == 1 || !device.choices().is_kept()) return ways[0];
  const absl::StatusOr<LoadedLibrary> cudnn = LoadCudnn();
  if (!cudnn.ok()) return ways[0];
  const auto find = [&](const std::string& choice) {
    return std::find_if(ways.begin(), ways.end(),
                        [&](const AttentionWay& way) { return AttributeOf(way.kernels) == choice; });
  };
  const ChoiceFile::IsGood is_good = [&](const std::string& choice) { return find(choice) != ways.end(); };
  const std::string key = ChoiceKey(device, cudnn->version, args, shape, backward);
  if (const std::optional<std::string> known = device.choices().Find(key, is_good)) return *find(*known);
  const absl::StatusOr<std::vector<double>> milliseconds = Time(device, args, ways);
  if (absl::IsResourceExhausted(milliseconds.status())) {  // the device is too full for a trial, now
    device.choices().Remember(key, std::string(AttributeOf(ways[0].kernels)));
    return ways[0];
  }
  RETURN_IF_ERROR(milliseconds.status());
  const AttentionWay& fastest = ways[FastestWay(*milliseconds)];
  const std::string choice(AttributeOf(fastest.kernels));
  if (std::find(milliseconds->begin(), milliseconds->end(), 0.0) != milliseconds->end()) {
    // Not in the file: what could not be timed now may be another time.
    device.choices().Remember(key, choice);
    return fastest;
  }
  ASSIGN_OR_RETURN(const std::string stands, device.choices().Keep(key, choice, is_good));
  return *find(stands);
}

std::int64_t CountKeptAttentions(const std::string& file) {
  return CountChoices(file, [](const std::string&, const std::string& choice) {
    return choice == AttributeOf(AttentionKernels::kOwn) || choice == AttributeOf(AttentionKernels::kCudnn);
  });
}

}  // namespace engine::backend::cuda
