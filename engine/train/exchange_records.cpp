#include "engine/train/exchange_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace engine::train {

void ExchangeRecords::Take(std::int64_t iteration, std::vector<executor::TracedBytes> traced) {
  const auto before = before_.find(iteration);
  if (before == before_.end()) {
    before_.emplace(iteration, std::move(traced));
    while (static_cast<std::int64_t>(before_.size()) > most_) before_.erase(before_.begin());
    return;
  }
  if (first_) return;
  const auto is_same = [](const executor::TracedBytes& a, const executor::TracedBytes& b) {
    return a.hash == b.hash && a.exchange == b.exchange && a.got == b.got;
  };
  const auto [now, then] =
      std::mismatch(traced.begin(), traced.end(), before->second.begin(), before->second.end(), is_same);
  if (now == traced.end()) return;
  first_ = {
      .iteration = iteration, .place = now - traced.begin(), .exchange = now->exchange, .got = now->got};
}

std::string Blame(const std::vector<ExchangeVerdict>& ranks, bool one_program) {
  constexpr std::size_t kMostNamed = 8;
  std::vector<ExchangeVerdict> first;  // of the first iteration in which any differ
  for (const ExchangeVerdict& rank : ranks) {
    if (!rank.differs || (!first.empty() && rank.iteration > first.front().iteration)) continue;
    if (!first.empty() && rank.iteration < first.front().iteration) first.clear();
    first.push_back(rank);
  }
  if (first.empty())
    return "all that ranks gave and got was the same, so it went wrong behind that, on each rank alike";
  const auto got = [](const ExchangeVerdict& rank) { return rank.got; };
  const bool on_their_way = std::all_of(first.begin(), first.end(), got);
  if (!on_their_way) {
    std::erase_if(first, got);
  } else if (one_program) {
    const auto place = [](const ExchangeVerdict& a, const ExchangeVerdict& b) { return a.place < b.place; };
    const std::int64_t least = std::min_element(first.begin(), first.end(), place)->place;
    std::erase_if(first, [&](const ExchangeVerdict& rank) { return rank.place != least; });
  }
  std::string text;
  for (std::size_t i = 0; i < std::min(first.size(), kMostNamed); ++i) {
    const ExchangeVerdict& rank = first[i];
    text += fmt::format("{}rank {} ({}) {} other bits in iteration {}, in {}", i == 0 ? "" : "\n", rank.rank,
                        rank.host, rank.got ? "got" : "gave", rank.iteration, rank.exchange);
  }
  if (first.size() > kMostNamed) text += fmt::format("\nand so did {} more", first.size() - kMostNamed);
  return text + (on_their_way
                     ? ", though no rank had given any: they changed on their way, or in its memory"
                     : ", though all that it had got was the same: it computes or stores something wrong");
}

}  // namespace engine::train
