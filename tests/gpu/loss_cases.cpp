// Cases of what stands behind the head: losses and their gradients, scores of tokens, the largest logits.
#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <string>

#include "engine/ops/ops.h"
#include "tests/gpu/cases.h"

namespace engine::gpu_test {

using graph::Attributes;
using ops_test::Input;

GpuCases LossCases() {
  GpuCases cases;
  AddCommon({&ops::kCrossEntropy, &ops::kCrossEntropyGrad, &ops::kLossWeight, &ops::kLossSum,
             &ops::kTokenScore, &ops::kTopLogits},
            &cases);
  struct Vocabulary {
    std::int64_t columns, classes;
  };
  for (const Vocabulary& v :
       {Vocabulary{50, 47}, {1000, 997}, {1000, 1000}, {50304, 50257}, {128256, 128000}}) {
    const Shape rows = {2, 3};
    const Shape logits = {2, 3, v.columns};
    const Input labels = Make(rows, Input::kLabels, v.classes);
    // With ties, logits and targets are small integers, many of which are equal.
    for (const bool ties : {false, true}) {
      const std::string label = fmt::format("{} of {} columns{}", v.classes, v.columns, ties ? ", ties" : "");
      cases.push_back({.base = {&ops::kTokenScore,
                                label,
                                {{logits}, labels, {rows}, {rows}},
                                {{"classes", v.classes}},
                                1,
                                true}});
      if (!ties) continue;
      cases.back().adjust = [](Tensors* inputs) {
        for (const size_t i : {0, 3}) {
          Tensor& tensor = (*inputs)[i];
          for (std::int64_t e = 0; e < tensor.elements(); ++e) tensor.Set(e, std::round(2 * tensor.Get(e)));
        }
      };
    }
    // Three samples of two tokens each, many of whose logits are equal in 16 bits.
    for (const std::int64_t count : {1, 46, 128}) {
      if (count > v.classes) continue;
      cases.push_back({.base = {&ops::kTopLogits,
                                fmt::format("{} of {} classes of {} columns", count, v.classes, v.columns),
                                {{{3, 2, v.columns}}, Make({3}, Input::kPositive)},
                                {{"classes", v.classes}, {"count", count}},
                                v.columns / 128 + 16,
                                true}});
    }
    for (const bool more : {false, true}) {
      Attributes attributes = {{"classes", v.classes}};
      if (more) {
        attributes.Set("smoothing", 0.2);
        attributes.Set("z_loss", 0.05);
      }
      const std::string label =
          fmt::format("{} of {} columns{}", v.classes, v.columns, more ? ", smoothed, z-loss" : "");
      // At least 128 threads share a row, so that the longest chain of additions is a 128th of it.
      const std::int64_t terms = v.columns / 128 + 16;
      cases.push_back({.base = {&ops::kCrossEntropy, label, {{logits}, labels}, attributes, terms, true}});
      cases.push_back(
          {.base = {
               &ops::kCrossEntropyGrad, label, {{logits}, labels, {rows}, {rows}}, attributes, 16, true}});
    }
  }
  // Columns [200, 300) of a vocabulary of 400, of which 250 are classes.
  const Shape rows = {2, 41};
  const Input labels = Make(rows, Input::kLabels, 250);
  const auto slice = [](Tensors* inputs) {
    Extent extent;
    extent.dims = {{Interval{0, 2}}, {Interval{0, 41}}, {Interval{200, 100}}};
    Tensor logits({{2, 41, 100}, DType::kF64}, extent, {2, 41, 400});
    for (std::int64_t i = 0; i < logits.elements(); ++i) logits.Set(i, (*inputs)[0].Get(i));
    (*inputs)[0] = logits;
  };
  for (const bool more : {false, true}) {
    Attributes attributes = {{"classes", std::int64_t{250}}};
    if (more) {
      attributes.Set("smoothing", 0.2);
      attributes.Set("z_loss", 0.05);
    }
    const std::string label = std::string("a slice of the classes") + (more ? ", smoothed, z-loss" : "");
    cases.push_back({.base = {&ops::kCrossEntropy, label, {{{2, 41, 100}}, labels}, attributes, 16}});
    cases.back().adjust = slice;
    cases.push_back(
        {.base = {&ops::kCrossEntropyGrad, label, {{{2, 41, 100}}, labels, {rows}, {rows}}, attributes, 16}});
    cases.back().adjust = slice;
  }
  cases.push_back({.base = {&ops::kTokenScore,
                            "a slice of the classes",
                            {{{2, 41, 100}}, labels, {rows}, {rows}},
                            {{"classes", std::int64_t{250}}},
                            1}});
  cases.back().adjust = slice;
  cases.push_back({.base = {&ops::kTopLogits,
                            "a slice of the classes",
                            {{{2, 41, 100}}, Make({2}, Input::kPositive)},
                            {{"classes", std::int64_t{250}}, {"count", std::int64_t{20}}},
                            16}});
  cases.back().adjust = slice;
  // In half of the warps all logits are larger than any in the others, so that many come into question.
  for (const std::int64_t count : {1, 46, 128}) {
    cases.push_back({.base = {&ops::kTopLogits,
                              fmt::format("{} of 5000 classes that lie in lumps", count),
                              {{{2, 1, 5000}}, Make({2}, Input::kPositive)},
                              {{"classes", std::int64_t{4990}}, {"count", count}},
                              64,
                              true}});
    cases.back().adjust = [](Tensors* inputs) {
      Tensor& logits = (*inputs)[0];
      for (std::int64_t e = 0; e < logits.elements(); ++e)
        logits.Set(e, logits.Get(e) + (e % 5000 % 256 >= 128 ? 4 : 0));
    };
  }
  // Vocabularies of more groups than a block has slots; all logits equal, or each a hundred times: the lowest ids count.
  struct Many {
    const char* what;
    std::int64_t classes;
    std::function<double(std::int64_t column, double logit)> logit;
  };
  for (const Many& of : {Many{"as they are", 400000, [](std::int64_t, double logit) { return logit; }},
                         Many{"all equal", 50257, [](std::int64_t, double) { return 1.0; }},
                         Many{"all equal", 9000, [](std::int64_t, double) { return 1.0; }},
                         Many{"each of 500 often", 50257,
                              [](std::int64_t column, double) { return static_cast<double>(column % 500); }},
                         Many{"the last ones largest", 9000, [](std::int64_t column, double) {
                                return static_cast<double>(column / 64);
                              }}}) {
    for (const std::int64_t count : {1, 128}) {
      cases.push_back({.base = {&ops::kTopLogits,
                                fmt::format("{} of {} classes, {}", count, of.classes, of.what),
                                {{{2, 1, of.classes + 7}}, Make({2}, Input::kPositive)},
                                {{"classes", of.classes}, {"count", count}},
                                of.classes / 128 + 16,
                                true}});
      cases.back().adjust = [of](Tensors* inputs) {
        Tensor& logits = (*inputs)[0];
        for (std::int64_t e = 0; e < logits.elements(); ++e)
          logits.Set(e, of.logit(e % (of.classes + 7), logits.Get(e)));
      };
    }
  }
  const Shape tokens = {8, 1021};
  const Input many = Make(tokens, Input::kLabels, 1000);
  cases.push_back({.base = {&ops::kLossWeight, "8168 tokens", {many}, {{"scale", 0.3}}, 1}});
  for (const double z_loss : {0.0, 0.05}) {
    Attributes attributes = {{"scale", 0.3}};
    if (z_loss > 0) attributes.Set("z_loss", z_loss);
    const std::string label = std::string("8168 tokens") + (z_loss > 0 ? ", z-loss" : "");
    cases.push_back({.base = {&ops::kLossSum, label, {{tokens}, {tokens}, many}, attributes, 8}});
  }
  return cases;
}

}  // namespace engine::gpu_test
