#include "engine/predict/play.h"

#include <algorithm>
#include <cstdint>

#include "engine/predict/stage_player.h"

namespace engine::predict {
namespace {

// Lets the stages play in turn: each as far as it goes, again where a transfer has freed it, and where none goes on the
// collectives to which all of their stages have come.
class StagesPlayer {
 public:
  explicit StagesPlayer(const PlayInputs& inputs)
      : costs_(inputs.costs), meetings_(inputs), due_(inputs.plan.stages.size(), true) {
    stages_.reserve(due_.size());
    for (size_t s = 0; s < due_.size(); ++s)
      stages_.emplace_back(inputs, static_cast<std::int32_t>(s), &meetings_);
  }

  Played Play() {
    do {
      while (AdvanceAll()) {
      }
    } while (Meet());
    Played played{.stages = std::vector<StageTime>(stages_.size())};
    if (!std::all_of(stages_.begin(), stages_.end(), [](const StagePlayer& stage) { return stage.Ended(); }))
      return played;
    for (const StagePlayer& stage : stages_) played.end_s = std::max(played.end_s, stage.now());
    for (size_t s = 0; s < stages_.size(); ++s) {
      played.stages[s] = stages_[s].Time();
      played.stages[s].bubble_s += played.end_s - stages_[s].now();
      played.by_component.push_back(stages_[s].TimeByComponent());
    }
    return played;
  }

 private:
  // Whether there was a stage to advance.
  bool AdvanceAll() {
    bool moved = false;
    std::vector<std::int32_t> freed;
    for (size_t s = 0; s < stages_.size(); ++s) {
      while (due_[s]) {
        moved = true;
        due_[s] = false;
        freed.clear();
        stages_[s].Advance(&freed);
        for (std::int32_t stage : freed) due_[static_cast<size_t>(stage)] = true;
      }
    }
    return moved;
  }

  // The stages that take part in a collective over stages.
  std::vector<size_t> MembersOf(const plan::Group& group) const {
    std::vector<size_t> members;
    for (size_t s = 0; s < stages_.size(); ++s) {
      const bool holds = std::find(group.holders.begin(), group.holders.end(),
                                   static_cast<std::int32_t>(s)) != group.holders.end();
      if (holds || !group.IsTie()) members.push_back(s);
    }
    return members;
  }

  // Where all stages of a collective have come to it, it takes place. Whether one did.
  bool Meet() {
    bool moved = false;
    for (const StagePlayer& stage : stages_) {
      const plan::Instruction* mine = stage.Meeting();
      if (mine == nullptr) continue;
      const plan::Group group = mine->group();
      const std::vector<size_t> members = MembersOf(group);
      const bool all = std::all_of(members.begin(), members.end(), [&](size_t m) {
        const plan::Instruction* other = stages_[m].Meeting();
        return other != nullptr && other->group() == group;
      });
      if (!all) continue;
      double begin = 0;
      for (size_t m : members) begin = std::max(begin, stages_[m].now());
      const double seconds = costs_.Seconds(*mine);
      for (size_t m : members) {
        stages_[m].Meet(begin, seconds);
        due_[m] = true;
      }
      moved = true;
    }
    return moved;
  }

  const CostModel& costs_;
  TransferMeetings meetings_;
  std::vector<bool> due_;  // a stage's step may go on that could not before
  std::vector<StagePlayer> stages_;
};

}  // namespace

Played Play(const PlayInputs& inputs) { return StagesPlayer(inputs).Play(); }

}  // namespace engine::predict
