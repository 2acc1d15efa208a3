#include "engine/compile/interleave.h"

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <array>

namespace engine::compile {
namespace {

constexpr size_t kNever = static_cast<size_t>(-1);
constexpr size_t kBothHalves = static_cast<size_t>(plan::Half::kBoth);

// Plays the items with two halves, and with a third participant that makes what is made of both.
class HalvesPlayer {
 public:
  explicit HalvesPlayer(const std::vector<TurnItem>& items) : items_(items), count_(items.size()) {
    for (size_t i = 0; i < count_; ++i) (items_[i].both ? both_ : own_).push_back(i);
    reduction_.assign(count_ + 1, count_);
    gather_.assign(count_ + 1, count_);
    for (size_t i = count_; i-- > 0;) {
      const bool exchanges = items_[i].both && IsBehind(i);
      const bool gathers = exchanges && At(i).collective() == plan::Collective::kAllGather;
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
      for (size_t h = 0; h <= kBothHalves; ++h) {
        if (May(h) && (best == kNever || Sooner(h, best))) best = h;
      }
      if (best == kNever) return {};
      const size_t i = Next(best);
      const double start = Start(best);
      parts_[best].unfinished.clear();
      Take(best);
      result_.exposed_s += start - computed_;
      result_.compute_s += items_[i].seconds;
      computed_ = start + items_[i].seconds;
    }
    for (const Part& part : parts_) {
      const double wait = std::max(0.0, part.ready - computed_);
      result_.exposed_s += wait;
      computed_ += wait;
    }
    return std::move(result_);
  }

 private:
  struct Part {
    size_t taken = 0;  // of own_, or of both_
    double ready = 0;  // when what its next computation waits for has been exchanged
    std::vector<std::pair<size_t, double>> unfinished = {};  // which exchange that is, each with its end
  };

  const plan::Instruction& At(size_t i) const { return *items_[i].instruction; }
  bool IsBehind(size_t i) const { return plan::IsBehind(At(i).stream); }
  const std::vector<size_t>& ListOf(size_t h) const { return h == kBothHalves ? both_ : own_; }
  bool Exhausted(size_t h) const { return parts_[h].taken == ListOf(h).size(); }
  size_t Next(size_t h) const { return Exhausted(h) ? count_ : ListOf(h)[parts_[h].taken]; }
  bool Done() const { return Exhausted(0) && Exhausted(1) && Exhausted(kBothHalves); }
  bool Exchanges(size_t h) const { return !Exhausted(h) && IsBehind(Next(h)); }

  // Whether what its next instruction builds on is there, and what that overwrites is not needed again.
  bool May(size_t h) const {
    if (Exhausted(h)) return false;
    const size_t i = Next(h);
    if (h == kBothHalves) return i < Next(0) && i < Next(1);
    return needs_both_[i] <= Next(kBothHalves) && (h == 1 ? i < Next(0) : needs_other_[i] <= Next(1));
  }

  double Start(size_t h) const {
    if (h != kBothHalves) return std::max(computed_, parts_[h].ready);
    double start = computed_;
    if (At(Next(h)).op() == nullptr) return start;  // of buffers that the halves share
    for (size_t other : {0, 1}) {
      for (const auto& [exchange, end] : parts_[other].unfinished) {
        if (exchange < Next(h)) start = std::max(start, end);
      }
    }
    return start;
  }

  // Of what may start at once, that which comes to an exchange; what is made of both halves fills the gaps,
  // but does not hold up two reductions to which the halves have come, or parameters that they will read.
  double Preferred(size_t h) const {
    if (h != kBothHalves) return Start(h);
    const size_t second = reduction_[std::min(reduction_[Next(h)] + 1, count_)];
    const size_t come = std::min(Next(0), Next(1));
    return second < come || gather_[Next(h)] < come ? -1 : Start(h);
  }
  bool Sooner(size_t h, size_t than) const {
    if (Preferred(h) != Preferred(than)) return Preferred(h) < Preferred(than);
    return h != kBothHalves && ahead_[Next(h)] < ahead_[Next(than)];
  }

  void Take(size_t h) {
    result_.order.push_back({.half = static_cast<plan::Half>(h), .item = Next(h)});
    ++parts_[h].taken;
  }

  // Exchange is handed over as soon as it is next, and costs computation nothing. Whether there was any.
  bool TakeExchanges() {
    bool any = false;
    for (size_t h = 0; h <= kBothHalves; ++h) {
      while (Exchanges(h) && May(h)) {
        TakeExchange(h);
        any = true;
      }
    }
    return any;
  }

  void TakeExchange(size_t h) {
    const size_t i = Next(h);
    Take(h);
    double& exchanged = exchanged_[At(i).stream == plan::kBucketStream];
    exchanged = std::max(exchanged, computed_) + items_[i].seconds;
    if (At(i).detached()) return;
    parts_[h].ready = exchanged;
    parts_[h].unfinished.emplace_back(i, exchanged);
  }

  // Computation of a half from each instruction to the next exchange that it waits for.
  void FindAhead() {
    ahead_.assign(count_ + 1, 0.0);
    for (size_t i = count_; i-- > 0;) {
      const double own = items_[i].both ? 0 : items_[i].seconds;
      ahead_[i] = IsBehind(i) ? (At(i).detached() ? ahead_[i + 1] : 0) : own + ahead_[i + 1];
    }
  }

  // How far others must have come before a half may write where values of both halves lay side by side: what
  // is made of both, and the second half where its value lies in the bytes, until it has finished what it
  // exchanges there. And sums are added to in the order of instructions: the first overwrites what is there.
  // And what is gathered for both is there before either reads it.
  void FindNeeds() {
    struct Use {
      size_t by;
      const BesidePlace* place;
    };
    needs_both_.assign(count_ + 1, 0);
    needs_other_.assign(count_ + 1, 0);
    std::vector<Use> uses;
    absl::flat_hash_map<std::int32_t, size_t> sums;     // which one of both has added to a value
    absl::flat_hash_map<std::int32_t, size_t> gathers;  // which one that is, by bucket
    for (size_t i = 0; i < count_; ++i) {
      const plan::Instruction& instruction = At(i);
      const bool both = items_[i].both;
      if (both && instruction.detached()) gathers[instruction.AsBucketExchange()->bucket] = i;
      if (const auto gather = gathers.find(instruction.waits_for_bucket); gather != gathers.end())
        needs_both_[i] = std::max(needs_both_[i], gather->second + 1);
      for (const plan::BufferRef& output : instruction.outputs) {
        if (const auto sum = sums.find(output.value); sum != sums.end())
          needs_both_[i] = std::max(needs_both_[i], sum->second + 1);
        if (both && output.value >= 0) sums[output.value] = i;
      }
      for (const BesidePlace& write : items_[i].writes) {
        for (const Use& use : uses) {
          if (!use.place->Overlaps(write)) continue;
          const bool same = use.place->offset == write.offset && use.place->stride == write.stride;
          if (items_[use.by].both) {
            needs_both_[i] = std::max(needs_both_[i], use.by + 1);
          } else if (!same) {
            needs_other_[i] = std::max(needs_other_[i], DoneBehind(use.by));
          }
        }
      }
      for (const auto* places : {&items_[i].reads, &items_[i].writes}) {
        for (const BesidePlace& place : *places) uses.push_back({i, &place});
      }
    }
  }

  // What a half has come to when an instruction of it is done: exchange when the next computation waits for
  // it.
  size_t DoneBehind(size_t i) const {
    while (i < count_ && (items_[i].both || IsBehind(i))) ++i;
    return std::min(i + 1, count_);
  }

  const std::vector<TurnItem>& items_;
  const size_t count_;
  std::vector<size_t> own_, both_;  // items of each half, and of both
  std::vector<double> ahead_;
  std::vector<size_t> reduction_, gather_;        // the next that is of both, by item
  std::vector<size_t> needs_both_, needs_other_;  // by item: which the others must have come to
  std::array<Part, kBothHalves + 1> parts_;
  Interleaving result_;
  double computed_ = 0;                   // until when, on computation's stream
  std::array<double, 2> exchanged_ = {};  // and on each of the streams beside it
};

}  // namespace

Interleaving Interleave(const std::vector<TurnItem>& items) { return HalvesPlayer(items).Play(); }

}  // namespace engine::compile
