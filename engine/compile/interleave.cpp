#include "engine/compile/interleave.h"

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace engine::compile {
namespace {

constexpr size_t kNever = static_cast<size_t>(-1);

// Plays a segment with two lanes, and with a third that makes what is made of both.
class LanePlayer {
 public:
  LanePlayer(const plan::Segment& segment, const Rates& rates)
      : instructions_(segment.instructions), count_(segment.instructions.size()) {
    for (size_t i = 0; i < count_; ++i) {
      seconds_.push_back(EstimateSeconds(instructions_[i], rates));
      (instructions_[i].joint ? joint_ : own_).push_back(i);
    }
    reduction_.assign(count_ + 1, count_);
    gather_.assign(count_ + 1, count_);
    for (size_t i = count_; i-- > 0;) {
      const bool exchanges = instructions_[i].joint && plan::IsBehind(instructions_[i].stream);
      const bool gathers = exchanges && instructions_[i].collective == plan::Collective::kAllGather;
      reduction_[i] = exchanges && !gathers ? i : reduction_[i + 1];
      gather_[i] = gathers ? i : gather_[i + 1];
    }
    FindAhead();
    FindNeeds();
  }

  Interleaving Play() {
    while (true) {
      while (TakeExchanges()) continue;
      if (Done()) break;
      size_t best = kNever;
      for (size_t l = 0; l <= plan::kJointLane; ++l) {
        if (May(l) && (best == kNever || Sooner(l, best))) best = l;
      }
      if (best == kNever) return {};
      const size_t i = Next(best);
      const double start = Start(best);
      lanes_[best].unfinished.clear();
      Take(best);
      result_.exposed_s += start - computed_;
      result_.compute_s += seconds_[i];
      computed_ = start + seconds_[i];
    }
    for (const Lane& lane : lanes_) {
      const double wait = std::max(0.0, lane.ready - computed_);
      result_.exposed_s += wait;
      computed_ += wait;
    }
    return std::move(result_);
  }

 private:
  struct Lane {
    size_t taken = 0;  // of own_, or of joint_
    double ready = 0;  // when what its next computation waits for has been exchanged
    std::vector<std::pair<size_t, double>> unfinished = {};  // which exchange that is, each with its end
  };

  const std::vector<size_t>& ListOf(size_t l) const { return l == plan::kJointLane ? joint_ : own_; }
  bool Exhausted(size_t l) const { return lanes_[l].taken == ListOf(l).size(); }
  size_t Next(size_t l) const { return Exhausted(l) ? count_ : ListOf(l)[lanes_[l].taken]; }
  bool Done() const { return Exhausted(0) && Exhausted(1) && Exhausted(plan::kJointLane); }
  bool Exchanges(size_t l) const { return !Exhausted(l) && plan::IsBehind(instructions_[Next(l)].stream); }

  // Whether what its next instruction builds on is there, and what that overwrites is not needed again.
  bool May(size_t l) const {
    if (Exhausted(l)) return false;
    const size_t i = Next(l);
    if (l == plan::kJointLane) return i < Next(0) && i < Next(1);
    return needs_joint_[i] <= Next(plan::kJointLane) && (l == 1 ? i < Next(0) : needs_other_[i] <= Next(1));
  }

  double Start(size_t l) const {
    if (l != plan::kJointLane) return std::max(computed_, lanes_[l].ready);
    double start = computed_;
    if (!instructions_[Next(l)].reads_lanes()) return start;
    for (size_t other : {0, 1}) {
      for (const auto& [exchange, end] : lanes_[other].unfinished) {
        if (exchange < Next(l)) start = std::max(start, end);
      }
    }
    return start;
  }

  // Of what may start at once, that which comes to an exchange; what is made of both lanes fills the gaps,
  // but does not hold up two reductions to which the lanes have come, or parameters that they will read.
  double Preferred(size_t l) const {
    if (l != plan::kJointLane) return Start(l);
    const size_t second = reduction_[std::min(reduction_[Next(l)] + 1, count_)];
    const size_t come = std::min(Next(0), Next(1));
    return second < come || gather_[Next(l)] < come ? -1 : Start(l);
  }
  bool Sooner(size_t l, size_t than) const {
    if (Preferred(l) != Preferred(than)) return Preferred(l) < Preferred(than);
    return l != plan::kJointLane && ahead_[Next(l)] < ahead_[Next(than)];
  }

  void Take(size_t l) {
    result_.order.push_back(static_cast<std::uint8_t>(l));
    ++lanes_[l].taken;
  }

  // Exchange is handed over as soon as it is next, and costs computation nothing. Whether there was any.
  bool TakeExchanges() {
    bool any = false;
    for (size_t l = 0; l <= plan::kJointLane; ++l) {
      while (Exchanges(l) && May(l)) {
        TakeExchange(l);
        any = true;
      }
    }
    return any;
  }

  void TakeExchange(size_t l) {
    const size_t i = Next(l);
    const plan::Instruction& instruction = instructions_[i];
    Take(l);
    double& exchanged = exchanged_[instruction.stream == plan::kBucketStream];
    exchanged = std::max(exchanged, computed_) + seconds_[i];
    if (instruction.detached) return;
    lanes_[l].ready = exchanged;
    lanes_[l].unfinished.emplace_back(i, exchanged);
  }

  // Computation of a lane from each instruction to the next exchange that it waits for.
  void FindAhead() {
    ahead_.assign(count_ + 1, 0.0);
    for (size_t i = count_; i-- > 0;) {
      const plan::Instruction& instruction = instructions_[i];
      const bool exchanges = plan::IsBehind(instruction.stream);
      const double own = instruction.joint ? 0 : seconds_[i];
      ahead_[i] = exchanges ? (instruction.detached ? ahead_[i + 1] : 0) : own + ahead_[i + 1];
    }
  }

  // How far others must have come before a lane may write where values of both lanes lay side by side: what
  // is made of both, and lane 1 where its value lies in the bytes, until it has finished what it exchanges
  // there. And sums are added to in the order of instructions: the first overwrites what is there. And what
  // is gathered for both is there before either reads it.
  void FindNeeds() {
    struct Use {
      size_t by;
      const plan::BufferRef* ref;
    };
    needs_joint_.assign(count_ + 1, 0);
    needs_other_.assign(count_ + 1, 0);
    std::vector<Use> uses;
    absl::flat_hash_map<std::int32_t, size_t> sums;         // which joint one has added to a value
    absl::flat_hash_map<std::string_view, size_t> gathers;  // which joint one that is, by name
    for (size_t i = 0; i < count_; ++i) {
      const plan::Instruction& instruction = instructions_[i];
      if (instruction.joint && instruction.detached) gathers[instruction.name] = i;
      if (const auto gather = gathers.find(instruction.joins); gather != gathers.end())
        needs_joint_[i] = std::max(needs_joint_[i], gather->second + 1);
      for (const plan::BufferRef& output : instruction.outputs) {
        if (const auto sum = sums.find(output.value); sum != sums.end())
          needs_joint_[i] = std::max(needs_joint_[i], sum->second + 1);
        if (instruction.joint && output.value >= 0) sums[output.value] = i;
        if (output.lane_stride == 0) continue;
        for (const Use& use : uses) {
          if (!use.ref->Overlaps(output)) continue;
          const bool same = use.ref->offset == output.offset && use.ref->lane_stride == output.lane_stride;
          if (instructions_[use.by].joint) {
            needs_joint_[i] = std::max(needs_joint_[i], use.by + 1);
          } else if (!same) {
            needs_other_[i] = std::max(needs_other_[i], DoneBehind(use.by));
          }
        }
      }
      for (const auto* refs : {&instruction.inputs, &instruction.outputs}) {
        for (const plan::BufferRef& ref : *refs) {
          if (ref.lane_stride > 0) uses.push_back({i, &ref});
        }
      }
    }
  }

  // What a lane has come to when an instruction of it is done: exchange when the next computation waits for
  // it.
  size_t DoneBehind(size_t i) const {
    while (i < count_ && (instructions_[i].joint || plan::IsBehind(instructions_[i].stream))) ++i;
    return std::min(i + 1, count_);
  }

  const std::vector<plan::Instruction>& instructions_;
  const size_t count_;
  std::vector<double> seconds_;
  std::vector<size_t> own_, joint_;  // instructions of each lane, and of both
  std::vector<double> ahead_;
  std::vector<size_t> reduction_, gather_;         // the next that is joint, by instruction
  std::vector<size_t> needs_joint_, needs_other_;  // by instruction: which the others must have come to
  std::array<Lane, plan::kJointLane + 1> lanes_;
  Interleaving result_;
  double computed_ = 0;                   // until when, on computation's stream
  std::array<double, 2> exchanged_ = {};  // and on each of the streams beside it
};

}  // namespace

Interleaving Interleave(const plan::Segment& segment, const Rates& rates) {
  return LanePlayer(segment, rates).Play();
}

}  // namespace engine::compile
