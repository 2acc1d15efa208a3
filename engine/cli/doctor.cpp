// `engine doctor`: what a run needs, what is here and what is missing.
#include "engine/cli/doctor.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/core_limit.h"
#include "engine/base/memory_limit.h"
#include "engine/base/print.h"
#include "engine/base/units.h"
#include "engine/cli/attention_contest.h"
#include "engine/cli/attention_shape.h"
#include "engine/cli/commands.h"
#include "engine/cli/device.h"
#include "engine/cli/network_report.h"
#include "engine/cli/recipe_options.h"

namespace engine::cli {
namespace {

const char* StateName(Finding::State state) {
  switch (state) {
    case Finding::State::kOk:
      return "ok";
    case Finding::State::kMissing:
      return "missing";
    case Finding::State::kTooOld:
      return "too old";
    case Finding::State::kFailed:
      return "failed";
  }
  return "";
}

Finding CpuFinding() {
  const CoreLimit limit = CoreLimitOfProcess();
  const std::string by = limit.limited_by.empty() ? "" : fmt::format(" ({})", limit.limited_by);
  return {.what = "CPU",
          .detail = fmt::format("{} core{}{}, {} of memory; computes in fp32", limit.cores,
                                limit.cores == 1 ? "" : "s", by, FormatBytes(MemoryOfProcess().bytes)),
          .needed = false};
}

// What a GPU run lacks.
std::vector<std::string> Lacking(const std::vector<Finding>& findings) {
  std::vector<std::string> lacking;
  for (const Finding& finding : findings) {
    if (finding.needed && finding.state != Finding::State::kOk) lacking.push_back(finding.what);
  }
  return lacking;
}

void PrintText(const std::vector<Finding>& findings, const std::vector<std::string>& lacking) {
  for (const Finding& finding : findings) {
    Print(stdout, "{:<9} {:<8} {}{}\n", finding.what, StateName(finding.state), finding.detail,
          finding.needed || finding.state == Finding::State::kOk ? "" : " (a run on one GPU does without)");
  }
  if (lacking.empty()) {
    Print(stdout, "a run on a GPU can start here\n");
  } else {
    Print(stdout, "no run on a GPU can start here, for want of: {}; --device cpu runs in fp32 on the CPU\n",
          fmt::join(lacking, ", "));
  }
}

void PrintJson(const std::vector<Finding>& findings, const std::vector<std::string>& lacking) {
  nlohmann::ordered_json json = {{"gpu_run_can_start", lacking.empty()},
                                 {"findings", nlohmann::json::array()}};
  for (const Finding& finding : findings) {
    json["findings"].push_back(nlohmann::ordered_json{{"what", finding.what},
                                                      {"state", StateName(finding.state)},
                                                      {"detail", finding.detail},
                                                      {"needed", finding.needed}});
  }
  Print(stdout, "{}\n", json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace

Finding FindingOf(std::string what, const absl::Status& status) {
  const Finding::State state = absl::IsNotFound(status)             ? Finding::State::kMissing
                               : absl::IsFailedPrecondition(status) ? Finding::State::kTooOld
                                                                    : Finding::State::kFailed;
  return {.what = std::move(what), .state = state, .detail = Message(status)};
}

void AddDoctorCommand(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("doctor", "Say what a run on this machine's GPUs needs, has and lacks");
  const auto contest = std::make_shared<ContestArguments>();
  command->add_flag("--json", contest->json, "Print it as one JSON object");
  CLI::Option* attention =
      command
          ->add_option(
              "--attention", contest->shapes,
              "Time attention's kernels on GPU 0 instead, forward and backward, for each SHAPE, as in " +
                  AttentionShapeHelp())
          ->type_name("SHAPE");
  command
      ->add_flag("--reference", contest->reference,
                 "With --attention: also the reference kernels where there are others")
      ->needs(attention);
  const auto networks = std::make_shared<NetworkArguments>();
  CLI::Option* network =
      command
          ->add_flag("--network", networks->wanted,
                     "Say instead which of this host's networks NCCL takes between hosts, by its settings "
                     "and its rules, and what is wrong with them")
          ->excludes(attention);
  command
      ->add_option("recipe", networks->recipe,
                   "With --network: what is needed, by its [parallelism], [cluster] and [launch]")
      ->type_name("RECIPE")
      ->needs(network);
  AddLoadOptions(command, &networks->load);
  command->footer(fmt::format(
      "Exit code 0 where a run on a GPU can start (--network: where nothing is wrong; --attention: where "
      "all was timed), {} where not; 2 wrong options",
      static_cast<int>(kNoDevice)));
  command->callback([contest, networks, exit_code] {
    if (networks->wanted) {
      networks->json = contest->json;
      *exit_code = PrintNetworks(*networks);
      return;
    }
    if (!contest->shapes.empty()) {
      *exit_code = PrintAttentionContests(*contest);
      return;
    }
    std::vector<Finding> findings = CudaFindings();
    findings.push_back(CpuFinding());
    findings.push_back(CacheFinding());
    const std::vector<std::string> lacking = Lacking(findings);
    contest->json ? PrintJson(findings, lacking) : PrintText(findings, lacking);
    *exit_code = lacking.empty() ? 0 : kNoDevice;
  });
}

}  // namespace engine::cli
