#include "engine/plan/schedule.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <tuple>

#include "engine/base/status.h"

namespace engine::plan {
namespace {

// "F0.1 B0.0 W0.0": microbatch.chunk of the stage, as the worked examples of Megatron-LM's schedule write it.
std::string Text(const std::vector<Turn>& turns, int stages) {
  std::string text;
  for (const Turn& turn : turns) {
    text += fmt::format("{}{}{}.{}", text.empty() ? "" : " ", &"F\0B\0W"[2 * static_cast<int>(turn.pass)],
                        turn.microbatch, turn.chunk / stages);
  }
  return text;
}

}  // namespace

TEST_CASE("interleaved schedule: worked examples of 4 stages, 2 chunks each, 8 microbatches") {
  CHECK(Text(InterleavedOneForwardOneBackward(4, 2, 0, 8), 4) ==
        "F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 F3.1 F4.0 F5.0 F6.0 B0.1 F7.0 B1.1 F4.1 B2.1 F5.1 B3.1 F6.1 B0.0 "
        "F7.1 B1.0 "
        "B2.0 B3.0 B4.1 B5.1 B6.1 B7.1 B4.0 B5.0 B6.0 B7.0");
  CHECK(Text(InterleavedOneForwardOneBackward(4, 2, 3, 8), 4) ==
        "F0.0 F1.0 F2.0 F3.0 F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 F3.1 B3.1 F4.0 B0.0 F5.0 B1.0 F6.0 B2.0 F7.0 B3.0 "
        "F4.1 B4.1 "
        "F5.1 B5.1 F6.1 B6.1 F7.1 B7.1 B4.0 B5.0 B6.0 B7.0");
}

TEST_CASE("1F1B: warmup, alternation, and as many microbatches in flight as stages that follow") {
  CHECK(Text(OneForwardOneBackward(4, 3, 3), 4) == "F0.0 B0.0 F1.0 B1.0 F2.0 B2.0");
  CHECK(Text(OneForwardOneBackward(4, 1, 4), 4) == "F0.0 F1.0 F2.0 B0.0 F3.0 B1.0 B2.0 B3.0");
  for (int stages : {1, 2, 4, 8}) {
    for (int microbatches : {1, 3, 8, 20}) {
      for (int stage = 0; stage < stages; ++stage) {
        int held = 0;
        int most = 0;
        for (const Turn& turn : OneForwardOneBackward(stages, stage, microbatches)) {
          held += turn.pass == Pass::kBackward ? -1 : 1;
          most = std::max(most, held);
        }
        CHECK(held == 0);
        CHECK(most == std::min(stages - stage, microbatches));
      }
    }
  }
}

TEST_CASE("zero bubble: 1F1B's passes in their order, stage r's weights passes r behind") {
  CHECK(Text(ZeroBubble(4, 0, 4), 4) == "F0.0 F1.0 F2.0 F3.0 B0.0 W0.0 B1.0 W1.0 B2.0 W2.0 B3.0 W3.0");
  CHECK(Text(ZeroBubble(4, 2, 4), 4) == "F0.0 F1.0 B0.0 F2.0 B1.0 F3.0 B2.0 W0.0 B3.0 W1.0 W2.0 W3.0");
  CHECK(Text(ZeroBubble(4, 3, 2), 4) == "F0.0 B0.0 F1.0 B1.0 W0.0 W1.0");
  for (int stages : {1, 2, 4, 8}) {
    for (int microbatches : {1, 3, 8, 20}) {
      for (int stage = 0; stage < stages; ++stage) {
        std::vector<Turn> others;
        std::vector<int> passes(static_cast<size_t>(microbatches), 0);
        int held = 0;
        int most = 0;
        for (const Turn& turn : ZeroBubble(stages, stage, microbatches)) {
          CHECK(turn.chunk == stage);
          CHECK(passes[static_cast<size_t>(turn.microbatch)]++ == static_cast<int>(turn.pass));
          held += turn.pass == Pass::kForward ? 1 : turn.pass == Pass::kWeights ? -1 : 0;
          most = std::max(most, held);
          if (turn.pass != Pass::kWeights) others.push_back(turn);
        }
        CHECK(Text(others, stages) == Text(OneForwardOneBackward(stages, stage, microbatches), stages));
        CHECK(passes == std::vector<int>(passes.size(), 3));
        CHECK(held == 0);
        CHECK(most == std::min(stages, microbatches));
      }
    }
  }
}

namespace {

// When the last stage to end does, if passes take so long and values no time to travel.
double Length(int stages, int microbatches, const double (&times)[3]) {
  std::vector<std::vector<Turn>> turns;
  for (int s = 0; s < stages; ++s) turns.push_back(ZeroBubble(stages, s, microbatches));
  std::vector<size_t> next(turns.size(), 0);
  std::vector<double> free(turns.size(), 0.0);
  std::map<std::tuple<Pass, int, int>, double> end;  // of a pass of a stage on a microbatch
  const auto ready = [&](int stage, const Turn& turn) {
    std::tuple<Pass, int, int> before = {Pass::kBackward, stage, turn.microbatch};
    if (turn.pass == Pass::kForward && stage == 0) return 0.0;
    if (turn.pass == Pass::kForward) before = {Pass::kForward, stage - 1, turn.microbatch};
    if (turn.pass == Pass::kBackward && stage + 1 == stages) std::get<0>(before) = Pass::kForward;
    if (turn.pass == Pass::kBackward && stage + 1 < stages) std::get<1>(before) = stage + 1;
    const auto it = end.find(before);
    return it == end.end() ? -1.0 : it->second;
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (int s = 0; s < stages; ++s) {
      const size_t stage = static_cast<size_t>(s);
      for (; next[stage] < turns[stage].size(); ++next[stage]) {
        const Turn& turn = turns[stage][next[stage]];
        const double at = ready(s, turn);
        if (at < 0) break;
        free[stage] = std::max(at, free[stage]) + times[static_cast<int>(turn.pass)];
        end[{turn.pass, s, turn.microbatch}] = free[stage];
        progress = true;
      }
    }
  }
  CHECK(end.size() == static_cast<size_t>(3 * stages * microbatches));
  return *std::max_element(free.begin(), free.end());
}

}  // namespace

TEST_CASE("zero bubble: the bubble is (p − 1)·(F + B − W)") {
  constexpr double kTimes[][3] = {{1, 1, 1}, {2, 2, 1}, {2, 3, 2}, {1, 2, 1}, {4, 5, 3}};
  for (const auto& times : kTimes) {
    const auto& [forward, backward, weights] = times;
    for (int stages : {1, 2, 3, 4, 8}) {
      for (int microbatches : {stages, stages + 1, 2 * stages, 32}) {
        const double busy = microbatches * (forward + backward + weights);
        CHECK(Length(stages, microbatches, times) == busy + (stages - 1) * (forward + backward - weights));
      }
    }
  }
}

TEST_CASE("every schedule runs each microbatch through each chunk once, forward before backward") {
  for (int chunks : {2, 3}) {
    for (int stage = 0; stage < 4; ++stage) {
      std::set<std::pair<int, int>> forward;
      std::set<std::pair<int, int>> backward;
      for (const Turn& turn : InterleavedOneForwardOneBackward(4, chunks, stage, 12)) {
        const std::pair<int, int> key = {turn.chunk, turn.microbatch};
        CHECK(turn.chunk % 4 == stage);
        const bool back = turn.pass == Pass::kBackward;
        CHECK((back ? backward : forward).insert(key).second);
        if (back) CHECK(forward.contains(key));
      }
      CHECK(forward.size() == static_cast<size_t>(12 * chunks));
      CHECK(backward == forward);
      CHECK(ForwardOnly(4, chunks, stage, 10).size() == static_cast<size_t>(10 * chunks));
    }
  }
}

TEST_CASE("balanced cut: as good as the best of all cuts") {
  for (std::uint32_t round = 0; round < 60; ++round) {
    std::uint32_t draw = round * 2654435761U + 1;
    const auto next = [&](std::uint32_t below) {
      draw = draw * 1664525U + 1013904223U;
      return (draw >> 8) % below;
    };
    const int items = 1 + static_cast<int>(next(9));
    const int parts = 1 + static_cast<int>(next(static_cast<std::uint32_t>(items)));
    const double extra = next(20);
    std::vector<double> costs(static_cast<size_t>(items));
    for (double& cost : costs) cost = 1 + next(10);
    const auto dearest = [&](const std::vector<std::int64_t>& counts) {
      double most = 0;
      size_t at = 0;
      for (size_t p = 0; p < counts.size(); ++p) {
        double sum = p + 1 == counts.size() ? extra : 0;
        for (std::int64_t i = 0; i < counts[p]; ++i) sum += costs[at++];
        most = std::max(most, sum);
      }
      return most;
    };
    double best = 1e300;
    for (int mask = 0; mask < (1 << (items - 1)); ++mask) {
      std::vector<std::int64_t> counts = {1};
      for (int i = 0; i + 1 < items; ++i) {
        if ((mask >> i) & 1) counts.push_back(0);
        ++counts.back();
      }
      if (static_cast<int>(counts.size()) == parts) best = std::min(best, dearest(counts));
    }
    const std::vector<std::int64_t> cut = BalancedCut(costs, parts, extra);
    CHECK(static_cast<int>(cut.size()) == parts);
    CHECK(*std::min_element(cut.begin(), cut.end()) >= 1);
    CHECK(std::accumulate(cut.begin(), cut.end(), std::int64_t{0}) == items);
    CHECK(dearest(cut) == best);
  }
  CHECK(BalancedCut(std::vector<double>(8, 1.0), 4, 0.0) == std::vector<std::int64_t>{2, 2, 2, 2});
  CHECK(BalancedCut(std::vector<double>(8, 2.0), 2, 4.0) == std::vector<std::int64_t>{5, 3});
}

}  // namespace engine::plan
