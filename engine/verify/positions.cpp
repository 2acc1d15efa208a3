#include "engine/verify/positions.h"

#include <numeric>

namespace engine::verify {
namespace {

bool SpansStages(const plan::Instruction& instruction) {
  return instruction.collective() != plan::Collective::kNone && instruction.group().SpansStages();
}

}  // namespace

Positions::Positions(const plan::Plan& plan, std::int32_t program)
    : plan_(plan), program_(program), stages_(plan.stages.size()) {
  for (std::int32_t stage = 0; stage < Stages(); ++stage) {
    Position& position = At(stage);
    position.completed.assign(ProgramAt(stage).size(), false);
    for (const plan::Segment& segment : plan.stages[static_cast<size_t>(stage)].segments) {
      std::vector<size_t>& sites = position.sites.emplace_back();
      for (size_t i = 0; i < segment.instructions.size(); ++i) {
        if (SpansStages(segment.instructions[i])) sites.push_back(i);
      }
    }
  }
}

std::optional<std::int32_t> Positions::BlockedSend(std::int32_t stage) const {
  for (std::int32_t wait : Current(stage).waits) {
    if (!At(stage).completed[static_cast<size_t>(wait)]) return wait;
  }
  return std::nullopt;
}

bool Positions::HasSite(std::int32_t stage) const { return At(stage).site < Sites(stage).size(); }

const plan::Segment& Positions::SegmentAt(std::int32_t stage) const {
  return plan_.stages[static_cast<size_t>(stage)].segments[static_cast<size_t>(Current(stage).segment)];
}

const plan::Instruction& Positions::Site(std::int32_t stage) const {
  return SegmentAt(stage).instructions[Sites(stage)[At(stage).site]];
}

std::string Positions::SiteName(std::int32_t stage) const {
  return InstructionName(stage, SegmentAt(stage), Sites(stage)[At(stage).site]);
}

std::vector<std::int32_t> Positions::Members(std::int32_t stage) const {
  const plan::Group group = Site(stage).group();
  if (group.IsTie()) return group.holders;
  std::vector<std::int32_t> members(stages_.size());
  std::iota(members.begin(), members.end(), 0);
  return members;
}

bool Positions::Meets(std::int32_t stage, std::int32_t member) const {
  return At(member).here && Site(member).group() == Site(stage).group();
}

void Positions::Leave(std::int32_t stage) {
  At(stage).here = false;
  ++At(stage).site;
}

void Positions::StepOn(std::int32_t stage) {
  Position& position = At(stage);
  if (Current(stage).kind != plan::StepKind::kSend) position.completed[position.step] = true;
  ++position.step;
  position.site = 0;
}

}  // namespace engine::verify
