// Problems of the ops over caches of generation.
#include "engine/ops/ops.h"
#include "tests/ops/case_inputs.h"
#include "tests/ops/cases.h"

namespace engine::ops_test {

using graph::Attributes;

namespace {

Input GivenOf(const Shape& shape, std::vector<std::int32_t> given) {
  Input input = Make(shape, Input::kGiven, 0);
  input.given = std::move(given);
  return input;
}

// The slot of each sample in a cache of three. Of two ranks that split samples the first has the first slot, and of one sample none, of
// three the first.
Input SlotsOf(std::vector<std::int32_t> slots) {
  Input input = Make({static_cast<std::int64_t>(slots.size())}, Input::kSlots, 3);
  input.given = std::move(slots);
  return input;
}

}  // namespace

// Caches: of sequences that begin, with padding; of steps of single tokens beside a sample that only fills the batch; and
// of windows in caches that have forgotten.
void AddCacheCases(std::vector<Case>* cases) {
  const Shape cache = {3, 8, 2, 5};
  const auto update = [&](const std::string& label, const Shape& x, std::vector<std::int32_t> positions,
                          std::vector<std::int32_t> slots) {
    cases->push_back(
        {&ops::kCacheUpdate,
         label,
         {Real(x), Real(cache), GivenOf({x[0], x[1]}, std::move(positions)), SlotsOf(std::move(slots))},
         {},
         1});
  };
  update("begins, padded", {1, 6, 2, 5}, {0, 1, 2, 3, 3, 3}, {2});
  update("goes round", {1, 11, 2, 5}, {4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}, {1});
  update("single tokens", {3, 1, 2, 5}, {7, 0, 12}, {0, -1, 2});
  cases->push_back({&ops::kCacheUpdate,
                    "latents",
                    {Real({1, 4, 6}), Real({3, 8, 6}), GivenOf({1, 4}, {0, 1, 2, 2}), SlotsOf({1})},
                    {},
                    1});
  const auto attend = [&](const std::string& label, std::vector<std::int32_t> positions,
                          Attributes attributes, std::vector<Input> more) {
    std::vector<Input> inputs = {Real({3, 1, 4, 5}), Real({3, 1, 2, 5}),
                                 Real({3, 1, 2, 7}), Real(cache),
                                 Real({3, 8, 2, 7}), GivenOf({3, 1}, std::move(positions)),
                                 SlotsOf({0, 2, -1})};
    inputs.insert(inputs.end(), more.begin(), more.end());
    cases->push_back({&ops::kCachedAttention, label, std::move(inputs), std::move(attributes), 64});
  };
  attend("plain", {5, 0, 3}, {{"scale", 0.4}}, {});
  cases->push_back(
      {&ops::kCachedAttention,
       "in e4m3",
       {Real({3, 1, 4, 5}), Real({3, 1, 2, 5}), Real({3, 1, 2, 7}), Make(cache, Input::kCached, 0),
        Make({3, 8, 2, 7}, Input::kCached, 0), GivenOf({3, 1}, {5, 0, 3}), SlotsOf({0, 2, -1})},
       {{"scale", 0.4}},
       64});
  cases->push_back({&ops::kCacheUpdate,
                    "in e4m3",
                    {Real({1, 6, 2, 5}), Make(cache, Input::kCached, 0), GivenOf({1, 6}, {0, 1, 2, 3, 3, 3}),
                     SlotsOf({2})},
                    {},
                    1});
  attend("a window in a cache that forgets", {21, 7, 3}, {{"scale", 0.4}, {"window", std::int64_t{6}}}, {});
  attend("caps, linear biases, sinks and biases of distances", {7, 2, 3},
         {{"scale", 0.4}, {"softcap", 2.0}, {"alibi", std::int64_t{1}}, {"distance", std::int64_t{3}}},
         {Real({4}), Real({4, 7})});
  attend("biases of pairs, caps, sinks", {7, 2, 3},
         {{"scale", 0.4}, {"softcap", 2.0}, {"pairs", std::int64_t{9}}}, {Real({4}), Real({4, 9, 9})});
  attend("biases of pairs, a window in a cache that forgets", {21, 7, 3},
         {{"scale", 0.4}, {"window", std::int64_t{6}}, {"pairs", std::int64_t{22}}}, {Real({4, 22, 22})});
  const auto attend_latents = [&](const std::string& label, std::vector<std::int32_t> positions,
                                  Attributes attributes) {
    cases->push_back(
        {&ops::kCachedLatentAttention,
         label,
         {Real({3, 1, 4, 6}), Real({3, 1, 4, 5}), Real({3, 1, 6}), Real({3, 1, 1, 2}), Real({3, 8, 6}),
          Real({3, 8, 1, 2}), GivenOf({3, 1}, std::move(positions)), SlotsOf({0, 2, -1})},
         std::move(attributes),
         64});
  };
  attend_latents("latents", {5, 0, 3}, {{"scale", 0.4}, {"first", std::int64_t{3}}});
  attend_latents("latents, a window in a cache that forgets", {21, 7, 3},
                 {{"scale", 0.4}, {"window", std::int64_t{6}}});
  cases->push_back({&ops::kCachedLatentAttention,
                    "latents in e4m3",
                    {Real({3, 1, 4, 6}), Real({3, 1, 4, 5}), Real({3, 1, 6}), Real({3, 1, 1, 2}),
                     Make({3, 8, 6}, Input::kCached, 0), Make({3, 8, 1, 2}, Input::kCached, 0),
                     GivenOf({3, 1}, {5, 0, 3}), SlotsOf({0, 2, -1})},
                    {{"scale", 0.4}, {"first", std::int64_t{3}}},
                    64});
  cases->push_back({&ops::kHeadLinear, "plain", {Real({2, 4, 4, 6}), Real({4, 3, 6})}, {}, 6});
  cases->push_back({&ops::kHeadLinear,
                    "transposed",
                    {Real({2, 4, 4, 5}), Real({4, 3, 6})},
                    {{"transposed", kOne}, {"first", kTwo}},
                    3});
  cases->push_back(
      {&ops::kTakeTokens, "rows", {Real({2, 5, 3}), GivenOf({2, 3}, {4, 0, 0, 1, 2, 4})}, {}, 1});
}

}  // namespace engine::ops_test
