#include "engine/train/histograms.h"

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/json.h"
#include "engine/state/histograms.h"
#include "engine/train/texts_of_ranks.h"

namespace engine::train {
namespace {

using state::PartialHistogram;

std::string ToText(const std::vector<PartialHistogram>& histograms) {
  nlohmann::json json = nlohmann::json::array();
  for (const PartialHistogram& of : histograms)
    json.push_back({of.parameter, of.is_gradient, of.histogram.ToText()});
  return json.dump();
}

absl::StatusOr<std::vector<PartialHistogram>> FromText(const std::string& text) {
  ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(text, "a rank's histograms"));
  std::vector<PartialHistogram> histograms;
  for (const nlohmann::json& of : json) {
    ASSIGN_OR_RETURN(Histogram histogram, Histogram::FromText(of[2].get<std::string>()));
    histograms.push_back({of[0].get<std::int32_t>(), of[1].get<bool>(), std::move(histogram)});
  }
  return histograms;
}

}  // namespace

bool HistogramsDue(const recipe::Recipe& recipe, std::int64_t iteration) {
  const std::int64_t interval = recipe.logging.histogram_interval;
  return interval > 0 && recipe.logging.Has("tensorboard") && iteration % interval == 0;
}

absl::Status TellHistograms(const RunContext& run, const Position& position) {
  const std::string key = fmt::format("histograms after iteration {}", position.iteration);
  run.Begin(launch::Work::kAlone, key);
  std::vector<std::vector<PartialHistogram>> ranks(run.ranks->executors().size());
  RETURN_IF_ERROR(run.ranks->Run([&](executor::RankExecutor& rank) -> absl::Status {
    ASSIGN_OR_RETURN(ranks[run.IndexOf(rank)], state::HistogramsOf(run.plan, rank));
    return absl::OkStatus();
  }));
  if (run.processes != nullptr) {
    ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                     TextsOfRanks(key, run.Leads() ? "" : ToText(ranks[0]), *run.device.rank,
                                  run.plan.mesh.world(), *run.processes));
    for (const std::string& text : texts) {
      ASSIGN_OR_RETURN(ranks.emplace_back(), FromText(text));
    }
  }
  if (run.reporter == nullptr) return absl::OkStatus();
  std::map<std::pair<bool, std::int32_t>, Histogram> whole;  // in the order in which they are told
  for (const std::vector<PartialHistogram>& rank : ranks) {
    for (const PartialHistogram& of : rank) whole[{of.is_gradient, of.parameter}].Add(of.histogram);
  }
  HistogramReport report{.iteration = position.iteration, .consumed_samples = position.consumed_samples};
  for (auto& [which, histogram] : whole) {
    const auto& [is_gradient, parameter] = which;
    report.histograms.emplace_back(fmt::format("{}/{}", is_gradient ? "gradients" : "weights",
                                               run.plan.parameters[static_cast<std::size_t>(parameter)].name),
                                   std::move(histogram));
  }
  run.reporter->Histograms(report);
  return absl::OkStatus();
}

}  // namespace engine::train
