// Caches of keys and values: the sizes of heads that have kernels in tiles, others, and products of few rows.
#include <algorithm>
#include <string>

#include "engine/base/philox.h"
#include "engine/ops/ops.h"
#include "tests/gpu/cases.h"

namespace engine::gpu_test {
namespace {

using graph::Attributes;
using ops_test::Input;

Input Numbers(const Shape& shape, std::vector<std::int32_t> given) {
  Input input = Make(shape, Input::kGiven);
  input.given = std::move(given);
  return input;
}

struct CacheSizes {
  std::int64_t heads, kv_heads, width, value_width, rows;
  std::vector<std::int32_t> positions;  // of single tokens, each of its own slot
};

// Probabilities are rounded to the dtype before they meet the values.
double RoundedShares(std::size_t output, DType dtype, const Tensors& inputs, const Tensors&) {
  if (output > 0) return 0;  // the caches, which are copies
  return dtype == DType::kF32 ? 2e-6 : 3 * UnitRoundoff(dtype) * ops_test::Scale(inputs[4]);
}

void AddCache(const std::string& label, const CacheSizes& s, const Attributes& attributes,
              std::vector<DType> dtypes, GpuCases* cases, std::vector<Input> more = {}) {
  const auto samples = static_cast<std::int64_t>(s.positions.size());
  std::vector<std::int32_t> slots;
  for (std::int64_t b = 0; b < samples; ++b)
    slots.push_back(b == 1 ? -1 : static_cast<std::int32_t>(samples - 1 - b));
  std::vector<Input> inputs = {Make({samples, 1, s.heads, s.width}, Input::kReal),
                               Make({samples, 1, s.kv_heads, s.width}, Input::kReal),
                               Make({samples, 1, s.kv_heads, s.value_width}, Input::kReal),
                               Make({samples, s.rows, s.kv_heads, s.width}, Input::kReal),
                               Make({samples, s.rows, s.kv_heads, s.value_width}, Input::kReal),
                               Numbers({samples, 1}, s.positions),
                               Numbers({samples}, slots)};
  inputs.insert(inputs.end(), more.begin(), more.end());
  cases->push_back({.base = {&ops::kCachedAttention, label, std::move(inputs), attributes, s.rows + s.width},
                    .adjust = nullptr,
                    .dtypes = std::move(dtypes),
                    .extra = RoundedShares});
}

void AddProducts(GpuCases* cases) {
  for (const std::int64_t rows : {1, 3, 8, 9, 16}) {
    for (const auto& [columns, terms] :
         {std::pair<std::int64_t, std::int64_t>{24, 40}, {130, 1024}, {64, 2056}}) {
      cases->push_back({.base = {&ops::kLinear,
                                 fmt::format("{} rows, {} × {}", rows, columns, terms),
                                 {Make({rows, terms}, Input::kReal), Make({columns, terms}, Input::kReal)},
                                 {{"in_dims", std::int64_t{1}}},
                                 terms},
                        .adjust = nullptr,
                        .dtypes = kNarrow});
    }
  }
}

}  // namespace

GpuCases CacheCases() {
  GpuCases cases;
  for (const ops_test::Case& common : ops_test::AllCases()) {
    if (common.op == &ops::kCacheUpdate || common.op == &ops::kTakeTokens) cases.push_back({.base = common});
    if (common.op == &ops::kCachedAttention) cases.push_back({.base = common, .extra = RoundedShares});
  }
  const Attributes plain = {{"scale", 0.125}};
  for (const auto& [width, value_width] : {std::pair<std::int64_t, std::int64_t>{64, 64},
                                           {80, 80},
                                           {96, 96},
                                           {128, 128},
                                           {192, 128},
                                           {256, 256}}) {
    AddCache(fmt::format("heads of {} and {}", width, value_width),
             {4, 2, width, value_width, 320, {319, 5, 0, 63, 64, 200}}, plain, kNarrow, &cases);
  }
  AddCache("one head of keys for 20", {20, 1, 64, 64, 200, {199, 7, 100}}, plain, kNarrow, &cases);
  AddCache("as many heads of keys", {3, 3, 128, 128, 700, {699, 0, 350, 1}}, plain, kNarrow, &cases);
  AddCache("one chunk", {64, 64, 64, 64, 96, {95, 0, 40, 1, 9, 10, 11, 12, 80}}, plain, kNarrow, &cases);
  AddCache("more chunks than a block has room for factors of", {2, 1, 64, 64, 20000, {19999, 3, 300}}, plain,
           {DType::kBF16}, &cases);
  AddCache("a window that has gone round", {4, 2, 64, 64, 128, {1000, 3, 127, 128, 64}},
           {{"scale", 0.125}, {"window", std::int64_t{100}}}, kNarrow, &cases);
  AddCache("caps, linear biases, sinks and biases of distances", {4, 2, 64, 64, 256, {255, 3, 100, 0}},
           {{"scale", 0.125}, {"softcap", 3.0}, {"alibi", std::int64_t{1}}, {"distance", std::int64_t{9}}},
           kNarrow, &cases, {Make({4}, Input::kReal), Make({4, 19}, Input::kReal)});
  AddCache("other heads", {6, 2, 72, 72, 300, {299, 3, 120}}, plain, kFloats, &cases);
  AddProducts(&cases);
  return cases;
}

}  // namespace engine::gpu_test
