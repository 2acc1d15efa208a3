#include "engine/data/blend.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "engine/base/status.h"

namespace engine::data {
namespace {

// numpy.sum of float64 (pairwise_sum in numpy/core/src/umath/loops_utils.h.src): the last bit of a weight
// decides ties in the blend, so the order of additions is kept.
double PairwiseSum(std::span<const double> values) {
  constexpr std::size_t kLanes = 8;
  constexpr std::size_t kBlock = 128;
  if (values.size() > kBlock) {
    const std::size_t half = values.size() / 2 / kLanes * kLanes;
    return PairwiseSum(values.first(half)) + PairwiseSum(values.subspan(half));
  }
  double sum = 0.0;
  std::size_t done = 0;
  if (values.size() >= kLanes) {
    std::array<double, kLanes> lane;
    std::copy_n(values.begin(), kLanes, lane.begin());
    for (done = kLanes; done + kLanes <= values.size(); done += kLanes) {
      for (std::size_t i = 0; i < kLanes; ++i) lane[i] += values[done + i];
    }
    sum = ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
  }
  for (; done < values.size(); ++done) sum += values[done];
  return sum;
}

}  // namespace

absl::StatusOr<std::vector<double>> NormalizeWeights(std::span<const double> weights) {
  for (double weight : weights) {
    // The greedy rule would draw from a data set of weight 0 too, whenever all others are exactly on their
    // shares.
    if (!std::isfinite(weight) || weight <= 0.0) {
      return InvalidArgument(
          "weight {} of a data set must be finite and above 0; leave out what is not wanted", weight);
    }
  }
  const double sum = PairwiseSum(weights);
  if (!std::isfinite(sum)) return InvalidArgument("the weights of {} data sets overflow", weights.size());
  std::vector<double> normalized(weights.begin(), weights.end());
  for (double& weight : normalized) weight /= sum;
  return normalized;
}

std::int64_t BlendTarget(std::int64_t size, double weight) {
  return static_cast<std::int64_t>(std::ceil(static_cast<double>(size) * weight));
}

std::int64_t BlendBuiltSize(std::int64_t target) {
  constexpr double kSurplus = 0.005;
  return static_cast<std::int64_t>(std::ceil(static_cast<double>(target) * (1.0 + kSurplus)));
}

// Takes one sample after the other from the data set that lags most behind its share. A lag is share · samples taken − samples of it.
//
// Data sets of equal shares take turns: of them the one with the fewest samples lags most, the first of equals. So a group of them is
// looked at as one. Of the groups only those are looked at that lag by `level_` or more (due_): while one does, no other lags more.
// The others wait for the sample at which they will lag so much, in a wheel of lists by that number. Where none is due the
// level was too high, and where many are it is too low; it decides how long this takes and never what comes out.
class Blend::Dealer {
 public:
  // `counts`: how many samples of each data set are among the first `next`.
  Dealer(std::span<const double> shares, std::int64_t next, std::span<const std::uint32_t> counts)
      : next_(next), sets_(shares.size()), wheel_(kSlots, kNone) {
    std::iota(sets_.begin(), sets_.end(), std::int16_t{0});
    const auto share = [&](std::size_t at) { return shares[static_cast<std::size_t>(sets_[at])]; };
    const auto count = [&](std::size_t at) { return counts[static_cast<std::size_t>(sets_[at])]; };
    std::stable_sort(sets_.begin(), sets_.end(), [&](std::int16_t a, std::int16_t b) {
      return shares[static_cast<std::size_t>(a)] < shares[static_cast<std::size_t>(b)];
    });
    for (std::size_t begin = 0; begin < sets_.size();) {
      std::size_t end = begin;
      while (end < sets_.size() && share(end) == share(begin)) ++end;
      std::size_t turn = begin;  // the first that has as few as the last
      while (count(turn) != count(end - 1)) ++turn;
      groups_.push_back({.share = share(begin),
                         .interval = 1 / share(begin),
                         .count = static_cast<double>(count(turn)),
                         .begin = begin,
                         .turn = turn,
                         .end = end});
      begin = end;
    }
    Lower();
  }

  std::int64_t next() const { return next_; }

  void Counts(std::vector<std::uint32_t>* counts) const {
    counts->resize(sets_.size());
    for (const Group& group : groups_) {
      for (std::size_t at = group.begin; at < group.end; ++at)
        (*counts)[static_cast<std::size_t>(sets_[at])] =
            static_cast<std::uint32_t>(group.count) + (at < group.turn ? 1 : 0);
    }
  }

  // Sample next().
  Place Deal() {
    Arrive();
    const auto due_groups = static_cast<std::int64_t>(due_.size());
    if (due_groups > kMostDue && next_ - moved_ >= due_groups)
      Raise();  // which may leave as many, if they lag alike
    std::size_t at = due_.empty() ? 0 : MostLagging();
    if (due_.empty() || LagOf(due_[at]) < level_) {
      Lower();
      at = MostLagging();
    }
    Due& due = due_[at];
    const Place place = {due.set, static_cast<std::int64_t>(due.count)};
    Group& group = groups_[due.group];
    ++next_;
    if (++group.turn == group.end) {
      group.turn = group.begin;
      group.count += 1;
      due.count = group.count;
      if (const std::int64_t when = When(group); when > Now()) {
        Wait(due.group, when);
        due = due_.back();
        due_.pop_back();
        return place;
      }
    }
    due.set = sets_[group.turn];
    return place;
  }

 private:
  static constexpr std::int32_t kNone = -1;
  static constexpr std::size_t kSlots = 4096;
  static constexpr std::size_t kKept = 20;  // groups that are due after the level was moved
  static constexpr std::int64_t kMostDue = 2 * kKept;

  struct Group {  // data sets of one share
    double share = 0;
    double interval = 0;    // how many samples are taken while one of each of them is
    double count = 0;       // of each from `turn` on; below 2^53
    std::size_t begin = 0;  // sets_[begin, end)
    std::size_t turn = 0;   // whose turn it is; those before it have one more
    std::size_t end = 0;
    std::int64_t when = 0;  // while it waits
    std::int32_t next_of_slot = kNone;
  };
  struct Due {  // what is needed of a group that is due
    double share = 0;
    double count = 0;
    std::int16_t set = 0;
    std::uint32_t group = 0;
  };

  // The number of samples by which shares are multiplied: those taken so far, but one before the first, as in Megatron's rule.
  std::int64_t Now() const { return std::max<std::int64_t>(next_, 1); }
  double LagOf(const auto& of) const { return of.share * static_cast<double>(Now()) - of.count; }

  // The first sample at which the group may lag by the level, or an earlier one: by more than rounding moves a lag.
  std::int64_t When(const Group& group) const {
    constexpr double kNever = 1e18;
    const double when = (level_ - 1e-12 + group.count) * group.interval * (1 - 1e-14) - 0.01;
    return static_cast<std::int64_t>(std::clamp(when, 0.0, kNever));
  }

  void Wait(std::uint32_t index, std::int64_t when) {
    std::int32_t& slot = wheel_[static_cast<std::size_t>(when) % kSlots];
    groups_[index].when = when;
    groups_[index].next_of_slot = std::exchange(slot, static_cast<std::int32_t>(index));
  }

  void Put(std::uint32_t index) {
    const Group& group = groups_[index];
    if (const std::int64_t when = When(group); when > Now()) return Wait(index, when);
    due_.push_back({group.share, group.count, sets_[group.turn], index});
  }

  // Takes the groups that have waited for this sample among those that are due.
  void Arrive() {
    const std::int64_t now = Now();
    std::int32_t& slot = wheel_[static_cast<std::size_t>(now) % kSlots];
    std::int32_t index = std::exchange(slot, kNone);
    while (index != kNone) {
      Group& group = groups_[static_cast<std::size_t>(index)];
      const std::int32_t behind = group.next_of_slot;
      if (group.when <= now) {
        Put(static_cast<std::uint32_t>(index));
      } else {  // in another round of the wheel
        group.next_of_slot = std::exchange(slot, index);
      }
      index = behind;
    }
  }

  // The group that is due and lags most, of equals that with the first data set. Which one it is no processor can foresee, so
  // that it is not asked one by one.
  std::size_t MostLagging() const {
    constexpr std::size_t kTogether = 64;
    const auto drawn = static_cast<double>(Now());
    double most = -std::numeric_limits<double>::infinity();
    std::size_t found = 0;
    for (std::size_t begin = 0; begin < due_.size(); begin += kTogether) {
      const std::size_t some = std::min(kTogether, due_.size() - begin);
      const Due* due = due_.data() + begin;
      std::array<double, kTogether> lags;
      std::array<double, 2> of_two = {most, most};
      for (std::size_t i = 0; i < some; ++i) {
        lags[i] = due[i].share * drawn - due[i].count;
        of_two[i % 2] = std::max(of_two[i % 2], lags[i]);
      }
      const double largest = std::max(of_two[0], of_two[1]);
      std::uint64_t equal = 0;
      for (std::size_t i = 0; i < some; ++i) equal |= static_cast<std::uint64_t>(lags[i] == largest) << i;
      for (; equal != 0; equal &= equal - 1) {
        const std::size_t at = begin + static_cast<std::size_t>(std::countr_zero(equal));
        if (largest > most || due_[at].set < due_[found].set) found = at;
        most = largest;
      }
    }
    return found;
  }

  // Sets the level to the lag of the kKept-th of these groups.
  void SetLevel(const auto& groups) {
    lags_.clear();
    for (const auto& group : groups) lags_.push_back(LagOf(group));
    const auto at = lags_.begin() + static_cast<std::ptrdiff_t>(kKept - 1);
    std::nth_element(lags_.begin(), at, lags_.end(), std::greater<>());
    level_ = *at;
  }

  void Lower() {
    level_ = -std::numeric_limits<double>::infinity();
    if (std::ssize(groups_) > kMostDue) SetLevel(groups_);
    due_.clear();
    std::fill(wheel_.begin(), wheel_.end(), kNone);
    for (std::uint32_t index = 0; index < groups_.size(); ++index) Put(index);
    moved_ = next_;
  }

  void Raise() {
    SetLevel(due_);
    const std::vector<Due> before = std::exchange(due_, {});
    for (const Due& due : before) Put(due.group);
    moved_ = next_;
  }

  std::int64_t next_;
  std::vector<std::int16_t> sets_;  // by shares
  std::vector<Group> groups_;
  double level_ = 0;
  std::vector<Due> due_;
  std::int64_t moved_ = 0;  // the sample before which the level was moved
  std::vector<std::int32_t> wheel_;
  std::vector<double> lags_;
};

struct Blend::Block {
  std::int64_t number = 0;
  std::vector<std::int16_t> datasets;
  std::vector<std::uint32_t> samples;
};

Blend::Blend(std::vector<double> shares, std::int64_t size)
    // With many data sets blocks are large, so that counts take less memory than a quarter of a byte a sample.
    : shares_(std::move(shares)),
      size_(size),
      block_(std::max<std::int64_t>(1 << 14, 16 * static_cast<std::int64_t>(shares_.size()))),
      counts_({std::vector<std::uint32_t>(shares_.size(), 0)}) {}
Blend::~Blend() = default;

absl::StatusOr<std::unique_ptr<Blend>> Blend::Make(std::span<const double> weights, std::int64_t size) {
  if (weights.size() > std::numeric_limits<std::int16_t>::max()) {
    return InvalidArgument("{} data sets in one blend, at most {} are possible", weights.size(),
                           std::numeric_limits<std::int16_t>::max());
  }
  if (weights.empty()) return InvalidArgument("a blend of no data sets");
  constexpr std::int64_t kMaxSamples = std::int64_t{1} << 32;
  if (size < 0 || size > kMaxSamples) {
    return ResourceExhausted("a blend of {} samples; at most {} are possible", size, kMaxSamples);
  }
  ASSIGN_OR_RETURN(std::vector<double> shares, NormalizeWeights(weights));
  return std::unique_ptr<Blend>(new Blend(std::move(shares), size));
}

Blend::Place Blend::At(std::int64_t i) const {
  const std::int64_t number = i / block_;
  const std::shared_ptr<const Block> block = [&] {
    const std::lock_guard lock(mutex_);
    for (const auto& recent : recent_)
      if (recent->number == number) return recent;
    return Deal(number);
  }();
  const auto at = static_cast<std::size_t>(i % block_);
  return {block->datasets[at], block->samples[at]};
}

std::shared_ptr<const Blend::Block> Blend::Deal(std::int64_t number) const {
  const auto begin_of = [this](std::int64_t n) { return n * block_; };
  const auto last = static_cast<std::int64_t>(counts_.size()) - 1;
  const std::int64_t from = std::min(number, last);
  if (dealer_ == nullptr || dealer_->next() < begin_of(from) || dealer_->next() > begin_of(number)) {
    dealer_ = std::make_unique<Dealer>(shares_, begin_of(from), counts_[static_cast<std::size_t>(from)]);
  }
  while (dealer_->next() < begin_of(number)) {
    for (std::int64_t i = 0; i < block_; ++i) dealer_->Deal();
    if (dealer_->next() == begin_of(static_cast<std::int64_t>(counts_.size())))
      dealer_->Counts(&counts_.emplace_back());
  }
  const auto block = std::make_shared<Block>();
  block->number = number;
  const auto samples = static_cast<std::size_t>(std::min(block_, size_ - begin_of(number)));
  block->datasets.resize(samples);
  block->samples.resize(samples);
  for (std::size_t i = 0; i < samples; ++i) {
    const Place place = dealer_->Deal();
    block->datasets[i] = place.dataset;
    block->samples[i] = static_cast<std::uint32_t>(place.sample);
  }
  if (dealer_->next() == begin_of(static_cast<std::int64_t>(counts_.size())))
    dealer_->Counts(&counts_.emplace_back());
  // As many as splits and threads at most need at a time.
  constexpr std::size_t kRecent = 4;
  if (recent_.size() == kRecent) recent_.erase(recent_.begin());
  recent_.push_back(block);
  return block;
}

}  // namespace engine::data
