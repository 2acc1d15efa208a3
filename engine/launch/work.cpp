#include "engine/launch/work.h"

#include <algorithm>
#include <utility>

namespace engine::launch {
namespace {

using Duration = WorkLimits::Duration;
using std::chrono::minutes;
using std::chrono::seconds;

struct WorkFacts {
  std::optional<Duration> at_first;  // until enough units are known; nullopt: no limit
  std::optional<Duration> least;     // once they are; nullopt: nothing is learned
};

// By Work. Ten minutes is what NCCL's watchdog of PyTorch gives a collective; NCCL's own start took 17 minutes on 2,048 GPUs before MegaScale
// made it short (Jiang et al., NSDI 2024).
constexpr std::array<WorkFacts, kWorks> kFacts = {{
    {std::nullopt, std::nullopt},  // kAlone
    {minutes(30), std::nullopt},   // kConnecting
    {minutes(10), seconds(5)},     // kIteration
    {minutes(10), seconds(5)},     // kEvaluation
    {minutes(10), std::nullopt},   // kData
    {minutes(10), std::nullopt},   // kFiles
    {minutes(60), minutes(10)},    // kSaving
}};

const WorkFacts& FactsOf(Work work) { return kFacts[static_cast<std::size_t>(work)]; }

}  // namespace

void WorkLimits::Begin(Work work, Clock::time_point now) {
  suspended_.reset();
  Units& units = units_[static_cast<std::size_t>(work_)];
  if (FactsOf(work_).least && !fixed_) {
    const auto took = std::chrono::ceil<Duration>(now - began_);
    if (units.last.size() < kKept) {
      units.last.push_back(took);
    } else {
      units.last[std::exchange(units.next, (units.next + 1) % kKept)] = took;
    }
    if (units.last.size() >= kLearnedAfter) {
      std::vector<Duration> sorted = units.last;
      const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
      std::nth_element(sorted.begin(), middle, sorted.end());
      units.median = *middle;
    }
  }
  work_ = work;
  began_ = now;
}

void WorkLimits::Suspend(Work work) { suspended_ = work; }

std::optional<Duration> WorkLimits::Limit() const {
  const WorkFacts& facts = FactsOf(work());
  if (!facts.at_first) return std::nullopt;
  if (fixed_) return work() == Work::kSaving || fixed_->count() == 0 ? std::nullopt : fixed_;
  const Units& units = units_[static_cast<std::size_t>(work())];
  if (!facts.least || units.last.size() < kLearnedAfter) return facts.at_first;
  return std::max(*facts.least, kMedians * units.median);
}

}  // namespace engine::launch
