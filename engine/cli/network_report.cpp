#include "engine/cli/network_report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/base/print.h"
#include "engine/base/status.h"
#include "engine/cli/device.h"
#include "engine/cli/recipe_options.h"
#include "engine/health/judge_networks.h"
#include "engine/jobs/job_file.h"
#include "engine/model/load.h"

namespace engine::cli {
namespace {

health::NetworkNeeds NeedsOf(const recipe::Recipe& recipe, const jobs::Job& job) {
  constexpr double kBitsOfByte = 8;
  return {.hosts = job.all_nodes(),
          .network = recipe.launch.network,
          .host_gigabits = recipe.cluster.inter_node_bandwidth * static_cast<double>(job.ranks_per_node) *
                           kBitsOfByte / 1e9};
}

void PrintFindings(const std::vector<health::NetworkFinding>& findings) {
  std::size_t width = 0;
  for (const health::NetworkFinding& finding : findings) width = std::max(width, finding.what.size());
  for (const health::NetworkFinding& finding : findings)
    Print(stdout, "{:<{}} {:<5} {}\n", finding.what, width, finding.is_well ? "ok" : "wrong", finding.detail);
}

}  // namespace

int PrintNetworks(const NetworkArguments& arguments) {
  health::NetworkNeeds needs;
  if (!arguments.recipe.empty()) {
    const recipe::LoadResult result = model::Load(arguments.recipe, arguments.load);
    PrintDiagnostics(result.diagnostics);
    if (!result.ok()) return 1;
    const absl::StatusOr<jobs::Job> job = jobs::JobOf(result.recipe, "slurm");
    if (!job.ok()) {
      Print(stderr, "{}\n", Message(job.status()));
      return 1;
    }
    needs = NeedsOf(result.recipe, *job);
  }
  const health::NcclSettings settings = health::FindNcclSettings();
  const std::vector<health::NetworkFinding> findings =
      health::JudgeNetworks(health::FindNetworks(health::PluginName(settings)), settings, needs);
  const bool is_well = std::all_of(findings.begin(), findings.end(),
                                   [](const health::NetworkFinding& finding) { return finding.is_well; });
  if (arguments.json) {
    nlohmann::ordered_json json = {{"nothing_wrong", is_well}, {"findings", nlohmann::json::array()}};
    for (const health::NetworkFinding& finding : findings) {
      json["findings"].push_back(nlohmann::ordered_json{
          {"what", finding.what}, {"state", finding.is_well ? "ok" : "wrong"}, {"detail", finding.detail}});
    }
    Print(stdout, "{}\n", json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    PrintFindings(findings);
  }
  return is_well ? 0 : kNoDevice;
}

}  // namespace engine::cli
