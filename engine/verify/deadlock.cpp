#include "engine/verify/deadlock.h"

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "engine/verify/transfers.h"

namespace engine::verify {
namespace {

// Whom a stage waits for; empty when it is done.
std::vector<std::int32_t> WaitsFor(const Positions& at, std::int32_t stage) {
  if (at.Done(stage)) return {};
  const plan::Plan& plan = at.plan();
  const auto transfer_of = [&](const plan::Step& step) -> const plan::Transfer& {
    return plan.transfers[static_cast<size_t>(step.transfer)];
  };
  if (const auto send = at.BlockedSend(stage))
    return {ReceiverOf(plan, transfer_of(at.ProgramAt(stage)[static_cast<size_t>(*send)]))};
  const plan::Step& step = at.Current(stage);
  if (step.kind == plan::StepKind::kReceive) return {SenderOf(plan, transfer_of(step))};
  std::vector<std::int32_t> absent;
  for (std::int32_t member : at.Members(stage)) {
    if (!at.Meets(stage, member)) absent.push_back(member);
  }
  return absent;
}

// Of a stage: "waits at …".
std::string Where(const Positions& at, std::int32_t stage) {
  if (at.Done(stage)) return "has ended";
  const ProgramId id = {stage, at.program()};
  std::string text = fmt::format("waits at {}", StepText(at.plan(), id, at.StepAt(stage)));
  if (const auto send = at.BlockedSend(stage)) {
    text += fmt::format(" until {} is received", StepText(at.plan(), id, static_cast<size_t>(*send)));
  } else if (at.Current(stage).kind == plan::StepKind::kRun) {
    text += " in " + at.SiteName(stage);
  }
  return text;
}

// Breadth first from a stage along WaitsFor, to itself or to a stage that has ended.
std::vector<std::int32_t> ShortestWay(const Positions& at, std::int32_t from) {
  std::vector<std::int32_t> previous(static_cast<size_t>(at.Stages()), -1);
  std::deque<std::int32_t> queue = {from};
  while (!queue.empty()) {
    const std::int32_t stage = queue.front();
    queue.pop_front();
    for (std::int32_t next : WaitsFor(at, stage)) {
      const bool end = next == from || at.Done(next);
      if (!end && previous[static_cast<size_t>(next)] >= 0) continue;
      if (!end) {
        previous[static_cast<size_t>(next)] = stage;
        queue.push_back(next);
        continue;
      }
      std::vector<std::int32_t> way = {next};
      for (std::int32_t back = stage; back != from; back = previous[static_cast<size_t>(back)])
        way.push_back(back);
      way.push_back(from);
      std::reverse(way.begin(), way.end());
      return way;
    }
  }
  return {};
}

}  // namespace

absl::Status DeadlockAt(const Positions& at) {
  std::vector<std::int32_t> best;
  for (std::int32_t from = 0; from < at.Stages(); ++from) {
    if (at.Done(from)) continue;
    const std::vector<std::int32_t> way = ShortestWay(at, from);
    const bool better = best.empty() || (way.size() < best.size());
    if (!way.empty() && better) best = way;
  }
  std::string text;
  for (size_t i = 0; i + 1 < best.size(); ++i) {
    text += i == 0 ? fmt::format("stage {}", best[i]) : ", which";
    text += fmt::format(" {} for stage {}", Where(at, best[i]), best[i + 1]);
  }
  if (!best.empty() && at.Done(best.back())) text += ", which has ended";
  return Internal("deadlock: {}", text);
}

}  // namespace engine::verify
