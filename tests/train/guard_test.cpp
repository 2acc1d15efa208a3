// Which iterations a run goes back for, and how far: [guard]'s judgement, without a run.
#include "engine/train/guard.h"

#include <doctest/doctest.h>

#include <limits>

#include "engine/recipe/iteration_range.h"

namespace engine::train {
namespace {

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

IterationReport Trained(std::int64_t iteration, double loss, double norm = 1) {
  IterationReport report{.iteration = iteration, .loss = loss, .grad_norm = norm};
  report.nan = !std::isfinite(loss) || !std::isfinite(norm);
  return report;
}

recipe::Guard SpikeGuard() {
  recipe::Guard guard;
  guard.on_spike = "skip";
  guard.spike_window = 4;
  guard.spike_loss = 2;
  return guard;
}

// Mean 3, standard deviation √2 (of the squares 4, 0, 0, 4: 8 / 4), median of the norms 2.5.
checkpoint::GuardState FullWindow() {
  return {.losses = {1, 3, 3, 5}, .grad_norms = {1, 2, 3, 10}, .left_out = {}, .rewinds = 0};
}

TEST_CASE("guard: a loss is a spike above the mean and so many standard deviations of the window") {
  const double limit = 3 + 2 * std::sqrt(2.0);
  checkpoint::GuardState state = FullWindow();
  const auto bad = Judge(SpikeGuard(), Trained(9, std::nextafter(limit, 10)), &state);
  REQUIRE(bad);
  CHECK(bad->iteration == 9);
  CHECK(bad->why ==
        "iteration 9: loss 5.82843 is more than 2 standard deviations of 1.41421 above 3, the mean of 4 "
        "iterations");
  CHECK((state == FullWindow()));  // a spike is no part of what later ones are compared with
  CHECK_FALSE(Judge(SpikeGuard(), Trained(9, limit), &state));
  CHECK((state.losses == std::vector<double>{3, 3, 5, limit}));
  CHECK((state.grad_norms == std::vector<double>{2, 3, 10, 1}));
}

TEST_CASE("guard: a norm is a spike above so many times the median of the window") {
  recipe::Guard guard = SpikeGuard();
  guard.spike_loss = 0;
  guard.spike_grad_norm = 3;
  checkpoint::GuardState state = FullWindow();
  CHECK_FALSE(Judge(guard, Trained(9, 1e9, 7.5), &state));
  state = FullWindow();
  const auto bad = Judge(guard, Trained(9, 3, std::nextafter(7.5, 8)), &state);
  REQUIRE(bad);
  CHECK(bad->why == "iteration 9: gradient norm 7.5 is more than 3 times 2.5, the median of 4 iterations");
  guard.spike_window = 3;  // an odd number of values has one in the middle
  state = {.losses = {3, 3, 3}, .grad_norms = {9, 1, 2}, .left_out = {}, .rewinds = 0};
  CHECK(Judge(guard, Trained(9, 3, 6.1), &state));
  CHECK_FALSE(Judge(guard, Trained(9, 3, 6), &state));
}

TEST_CASE("guard: nothing is judged before the window is full, and skipped updates do not fill it") {
  checkpoint::GuardState state;
  for (std::int64_t i = 1; i <= 4; ++i)
    CHECK_FALSE(Judge(SpikeGuard(), Trained(i, i == 4 ? 1e6 : 1), &state));
  state = FullWindow();
  IterationReport skipped = Trained(9, 1e9);
  skipped.skipped = true;
  CHECK_FALSE(Judge(SpikeGuard(), skipped, &state));
  CHECK((state.losses == FullWindow().losses));
}

TEST_CASE("guard: a run ends by numbers that are not finite, and by too many skipped updates in a row") {
  recipe::Guard guard;
  guard.max_skips = 2;
  checkpoint::GuardState state;
  IterationReport skipped = Trained(9, 1);
  skipped.skipped = true;
  const auto ends = [&](const IterationReport& report) {
    CHECK_FALSE(Judge(guard, report, &state));
    return !EndOf(guard, report, state).ok();
  };
  CHECK_FALSE(ends(skipped));
  CHECK_FALSE(ends(Trained(9, 1)));
  CHECK_FALSE(ends(skipped));
  CHECK(ends(skipped));
  guard.max_skips = 0;
  CHECK_FALSE(ends(skipped));
  CHECK(ends(Trained(9, kNoNumber)));
}

TEST_CASE("guard: a number that is not finite is a reason of its own, or none of the guard's") {
  recipe::Guard guard;
  checkpoint::GuardState state;
  CHECK_FALSE(Judge(guard, Trained(3, kNoNumber), &state));  // the run ends for it
  for (const auto& [policy, act] :
       {std::pair("skip", BadIteration::Act::kSkip), std::pair("rewind", BadIteration::Act::kRewind)}) {
    guard.on_nonfinite = policy;
    const auto bad = Judge(guard, Trained(3, kNoNumber), &state);
    REQUIRE(bad);
    CHECK(bad->act == act);
    CHECK(bad->why == "iteration 3: loss nan and gradient norm 1");
    CHECK(Judge(guard, Trained(3, 1, std::numeric_limits<double>::infinity()), &state));
    CHECK_FALSE(Judge(guard, Trained(3, 1), &state));
  }
  CHECK((state == checkpoint::GuardState()));  // without on_spike nothing is remembered
}

TEST_CASE("guard: how far back, and what is left out") {
  recipe::Guard guard;
  guard.rewind_iterations = 5;
  guard.skip_batches = 2;
  const BadIteration skip{.iteration = 9, .act = BadIteration::Act::kSkip, .why = ""};
  CHECK(skip.LatestCheckpoint(guard) == 8);
  CHECK((skip.LeftOut(guard, 6) == recipe::IterationRange{9, 9}));
  const BadIteration rewind{.iteration = 9, .act = BadIteration::Act::kRewind, .why = ""};
  CHECK(rewind.LatestCheckpoint(guard) == 4);
  CHECK((rewind.LeftOut(guard, 4) == recipe::IterationRange{5, 11}));
  guard.rewind_iterations = 0;
  CHECK(rewind.LatestCheckpoint(guard) == 8);
  guard.rewind_iterations = 100;
  CHECK(rewind.LatestCheckpoint(guard) == 0);
}

TEST_CASE("guard: iterations that a recipe names") {
  recipe::Guard guard;
  guard.skip_iterations = {"7", "10-12"};
  CHECK((LeftOutBy(guard) == std::vector<recipe::IterationRange>{{7, 7}, {10, 12}}));
  for (const char* text : {"", "0", "-3", "5-", "7-6", "1 - 2", "x", "1-2-3", "99999999999999999999"}) {
    CAPTURE(text);
    CHECK_FALSE(recipe::ParseIterationRange(text));
  }
  CHECK(recipe::ParseIterationRange("6-6")->count() == 1);
}

}  // namespace
}  // namespace engine::train
