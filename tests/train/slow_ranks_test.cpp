#include "engine/train/slow_ranks.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace engine::train {
namespace {

// Ranks that are told of, one list an iteration: "" or "3×1.5".
std::vector<std::string> Told(SlowRanks& slow, const std::vector<std::vector<double>>& iterations) {
  std::vector<std::string> told;
  for (const std::vector<double>& busy : iterations) {
    std::string& text = told.emplace_back();
    for (const SlowRanks::Slow& one : slow.Add(busy))
      text += std::to_string(one.rank) + "x" + std::to_string(one.factor).substr(0, 3);
  }
  return told;
}

using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("slow ranks: three of five iterations, told once, and again where it had recovered") {
  const std::vector<double> even = {100, 100, 100, 100}, slow = {100, 100, 100, 150};
  SlowRanks ranks;
  CHECK(Told(ranks, {slow, even, slow, even, slow, slow, slow}) == Texts{"", "", "", "", "3x1.5", "", ""});
  CHECK(Told(ranks, {even, even, even, even, even, slow, slow, slow}) ==
        Texts{"", "", "", "", "", "", "", "3x1.5"});
  SlowRanks seldom;
  CHECK(Told(seldom, {slow, even, even, even, slow, even, even, even, slow}) == Texts(9));
}

TEST_CASE("slow ranks: of two the faster is the measure; a few ms are nothing") {
  SlowRanks ranks;
  CHECK(Told(ranks, {{100, 140}, {100, 140}, {100, 140}}) == Texts{"", "", "1x1.4"});
  SlowRanks tiny;
  CHECK(Told(tiny, {{1, 5}, {1, 5}, {1, 5}}) == Texts(3));
  SlowRanks near;
  CHECK(Told(near, {{100, 129}, {100, 129}, {100, 129}}) == Texts(3));
  SlowRanks alone;
  CHECK(Told(alone, {{100}, {900}, {900}, {}}) == Texts(4));
}

}  // namespace engine::train
