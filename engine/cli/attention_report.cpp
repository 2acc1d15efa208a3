#include "engine/cli/attention_report.h"

#include <algorithm>

#include "engine/backend/cuda/profile/scratch_attention.h"
#include "engine/base/units.h"

namespace engine::cli {
namespace {

// 0: none was timed.
double FastestMs(const AttentionContest& contest) {
  double fastest = 0;
  for (const ContestedKernels& kernels : contest.kernels) {
    if (!kernels.why_not.empty()) continue;
    fastest = fastest == 0 ? kernels.milliseconds : std::min(fastest, kernels.milliseconds);
  }
  return fastest;
}

double TflopsOf(const AttentionContest& contest, const ContestedKernels& kernels) {
  return AttentionFlops(contest.shape, contest.backward) / kernels.milliseconds / 1e9;
}

std::string_view ChoiceOf(const ContestedKernels& kernels) {
  if (kernels.chosen) return kernels.chosen_else ? "chosen" : "chosen where bits repeat";
  return kernels.chosen_else ? "chosen where bits need not repeat" : "";
}

}  // namespace

void MarkChosen(AttentionContest* contest, std::size_t rule, const std::vector<std::size_t>& rows,
                bool ContestedKernels::*mark) {
  std::vector<std::size_t> among = {rule};
  for (const std::size_t row : rows) {
    if (row != rule && contest->kernels[row].scratch_bytes <= contest->kernels[rule].scratch_bytes)
      among.push_back(row);
  }
  std::vector<double> milliseconds;
  milliseconds.reserve(among.size());
  for (const std::size_t row : among) milliseconds.push_back(contest->kernels[row].milliseconds);
  contest->kernels[among[backend::cuda::FastestWay(milliseconds)]].*mark = true;
}

std::string ToText(const AttentionContest& contest) {
  std::string text = fmt::format("{}: {}\n", contest.shape.text, contest.backward ? "backward" : "forward");
  const double fastest = FastestMs(contest);
  for (const ContestedKernels& kernels : contest.kernels) {
    if (!kernels.why_not.empty()) {
      text += fmt::format("  {:<24} cannot: {}\n", kernels.name, kernels.why_not);
      continue;
    }
    std::string line =
        fmt::format("  {:<24} {:>9.4f} ms {:>6.1f} TFLOP/s {:>6.3f} x fastest {:>11} scratch  {}",
                    kernels.name, kernels.milliseconds, TflopsOf(contest, kernels),
                    kernels.milliseconds / fastest, FormatBytes(kernels.scratch_bytes), ChoiceOf(kernels));
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

nlohmann::ordered_json ToJson(const AttentionContest& contest) {
  const double fastest = FastestMs(contest);
  nlohmann::ordered_json json = {{"shape", contest.shape.text},
                                 {"pass", contest.backward ? "backward" : "forward"},
                                 {"flops", AttentionFlops(contest.shape, contest.backward)},
                                 {"kernels", nlohmann::json::array()}};
  for (const ContestedKernels& kernels : contest.kernels) {
    nlohmann::ordered_json entry = {{"name", kernels.name}, {"repeats", kernels.repeats}};
    if (!kernels.why_not.empty()) {
      entry["why_not"] = kernels.why_not;
    } else {
      entry["ms"] = kernels.milliseconds;
      entry["tflops"] = TflopsOf(contest, kernels);
      entry["ratio"] = kernels.milliseconds / fastest;
      entry["scratch_bytes"] = kernels.scratch_bytes;
      entry["chosen"] = kernels.chosen;
      entry["chosen_else"] = kernels.chosen_else;
    }
    json["kernels"].push_back(std::move(entry));
  }
  return json;
}

}  // namespace engine::cli
