// Caches of keys and values, and of latents: the sizes that have kernels in tiles, others, and products of few rows.
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
              std::vector<DType> dtypes, GpuCases* cases, std::vector<Input> more = {},
              Input::Kind cached = Input::kReal) {
  const auto samples = static_cast<std::int64_t>(s.positions.size());
  std::vector<std::int32_t> slots;
  for (std::int64_t b = 0; b < samples; ++b)
    slots.push_back(b == 1 ? -1 : static_cast<std::int32_t>(samples - 1 - b));
  std::vector<Input> inputs = {Make({samples, 1, s.heads, s.width}, Input::kReal),
                               Make({samples, 1, s.kv_heads, s.width}, Input::kReal),
                               Make({samples, 1, s.kv_heads, s.value_width}, Input::kReal),
                               Make({samples, s.rows, s.kv_heads, s.width}, cached),
                               Make({samples, s.rows, s.kv_heads, s.value_width}, cached),
                               Numbers({samples, 1}, s.positions),
                               Numbers({samples}, slots)};
  inputs.insert(inputs.end(), more.begin(), more.end());
  cases->push_back({.base = {&ops::kCachedAttention, label, std::move(inputs), attributes, s.rows + s.width},
                    .adjust = nullptr,
                    .dtypes = std::move(dtypes),
                    .extra = RoundedShares});
}

struct LatentSizes {
  std::int64_t samples, heads, width, shared_width, first, rest_width, rows;
};

// Positions from the first one to the last one of a slot, and one sample without a slot.
void AddLatents(const std::string& label, const LatentSizes& s, std::int64_t window,
                std::vector<DType> dtypes, GpuCases* cases, Input::Kind cached = Input::kReal) {
  std::vector<std::int32_t> positions;
  std::vector<std::int32_t> slots;
  for (std::int64_t b = 0; b < s.samples; ++b) {
    const std::int64_t last = window > 0 ? 3 * s.rows + 5 : s.rows - 1;
    positions.push_back(static_cast<std::int32_t>(b == 0 ? last : b * 7919 % (last + 1)));
    slots.push_back(b == 1 ? -1 : static_cast<std::int32_t>(s.samples - 1 - b));
  }
  Attributes attributes = {{"scale", 0.06}, {"first", s.first}};
  if (window > 0) attributes.Set("window", window);
  cases->push_back({.base = {&ops::kCachedLatentAttention,
                             label,
                             {Make({s.samples, 1, s.heads, s.width}, Input::kReal),
                              Make({s.samples, 1, s.heads, s.rest_width}, Input::kReal),
                              Make({s.samples, 1, s.width}, Input::kReal),
                              Make({s.samples, 1, 1, s.shared_width}, Input::kReal),
                              Make({s.samples, s.rows, s.width}, cached),
                              Make({s.samples, s.rows, 1, s.shared_width}, cached),
                              Numbers({s.samples, 1}, positions), Numbers({s.samples}, slots)},
                             attributes,
                             s.rows + s.width},
                    .adjust = nullptr,
                    .dtypes = std::move(dtypes),
                    .extra = RoundedShares});
}

void AddHeadProducts(GpuCases* cases) {
  for (const std::int64_t samples : {1, 3, 8, 19}) {
    for (const auto& [n, c] : {std::pair<std::int64_t, std::int64_t>{128, 512}, {24, 40}, {13, 30}}) {
      const std::int64_t first = n == 24 ? 0 : 64;
      cases->push_back({.base = {&ops::kHeadLinear,
                                 fmt::format("{} samples, {} × {}", samples, n, c),
                                 {Make({samples, 1, 3, c}, Input::kReal), Make({3, n, c}, Input::kReal)},
                                 {},
                                 c}});
      cases->push_back({.base = {&ops::kHeadLinear,
                                 fmt::format("{} samples, {} × {}, transposed", samples, n, c),
                                 {Make({samples, 1, 3, n + 64}, Input::kReal), Make({3, n, c}, Input::kReal)},
                                 {{"transposed", std::int64_t{1}}, {"first", first}},
                                 n}});
    }
  }
}

void AddLatentCases(GpuCases* cases) {
  for (const std::int64_t heads : {5, 16, 20, 64, 70, 128}) {
    AddLatents(fmt::format("latents, {} heads", heads), {4, heads, 512, 64, 0, 192, 320}, 0, kNarrow, cases);
    AddLatents(fmt::format("latents, {} heads, one chunk", heads), {4, heads, 512, 64, 128, 192, 64}, 0,
               kNarrow, cases);
  }
  AddLatents("latents, chunks of several tiles", {20, 16, 512, 64, 0, 192, 1000}, 0, kNarrow, cases);
  AddLatents("latents, several chunks of several tiles, of many heads", {12, 128, 512, 64, 0, 192, 700}, 0,
             {DType::kBF16}, cases);
  AddLatents("latents, a window that has gone round", {5, 16, 512, 64, 0, 192, 128}, 100, kNarrow, cases);
  AddLatents("latents of other sizes", {4, 6, 72, 12, 3, 20, 300}, 0, kFloats, cases);
  AddLatents("latents, queries off 16 bytes", {4, 6, 512, 64, 4, 68, 100}, 50, kFloats, cases);
  for (const std::int64_t heads : {5, 20, 70}) {
    AddLatents(fmt::format("latents in e4m3, {} heads", heads), {4, heads, 512, 64, 0, 192, 320}, 0, kNarrow,
               cases, Input::kCached);
  }
  AddLatents("latents in e4m3, chunks of several tiles", {20, 16, 512, 64, 0, 192, 1000}, 0, kNarrow, cases,
             Input::kCached);
  AddLatents("latents in e4m3, a window that has gone round", {5, 16, 512, 64, 0, 192, 128}, 100, kNarrow,
             cases, Input::kCached);
  AddLatents("latents in e4m3 of other sizes", {4, 6, 72, 12, 3, 20, 300}, 0, kFloats, cases, Input::kCached);
  AddHeadProducts(cases);
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
    if (common.op == &ops::kHeadLinear) cases.push_back({.base = common});
    if (common.op == &ops::kCachedAttention || common.op == &ops::kCachedLatentAttention)
      cases.push_back({.base = common, .extra = RoundedShares});
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
    AddCache(fmt::format("in e4m3, heads of {} and {}", width, value_width),
             {4, 2, width, value_width, 320, {319, 5, 0, 63, 64, 200}}, plain, kNarrow, &cases, {},
             Input::kCached);
  }
  AddCache("in e4m3, as many heads of keys", {3, 3, 128, 128, 700, {699, 0, 350, 1}}, plain, kNarrow, &cases,
           {}, Input::kCached);
  AddCache("in e4m3, one chunk", {64, 64, 64, 64, 96, {95, 0, 40, 1, 9, 10, 11, 12, 80}}, plain, kNarrow,
           &cases, {}, Input::kCached);
  AddCache("in e4m3, a window that has gone round", {4, 2, 64, 64, 128, {1000, 3, 127, 128, 64}},
           {{"scale", 0.125}, {"window", std::int64_t{100}}}, kNarrow, &cases, {}, Input::kCached);
  AddCache("in e4m3, other heads", {6, 2, 72, 72, 300, {299, 3, 120}}, plain, kFloats, &cases, {},
           Input::kCached);
  // Heads with keys of their own, whose kernels read them without tensor cores.
  for (const std::int64_t width : {8, 40, 64, 72, 80, 96, 128, 192, 256}) {
    for (const Input::Kind cached : {Input::kReal, Input::kCached}) {
      AddCache(fmt::format("own keys of {}{}", width, cached == Input::kCached ? " in e4m3" : ""),
               {3, 3, width, width, 700, {699, 0, 350, 1, 63, 64, 128}}, plain, kNarrow, &cases, {}, cached);
    }
  }
  AddCache("own keys, a window that has gone round", {3, 3, 64, 64, 128, {1000, 3, 127, 128, 64}},
           {{"scale", 0.125}, {"window", std::int64_t{100}}}, kNarrow, &cases);
  AddCache("own keys, one chunk and a window that has gone round",
           {300, 300, 64, 64, 128, {1000, 3, 127, 128, 64}},
           {{"scale", 0.125}, {"window", std::int64_t{128}}}, {DType::kBF16}, &cases);
  for (const std::int64_t heads : {4, 300}) {
    AddCache(fmt::format("own keys of {} heads, caps, linear biases, sinks and biases of distances", heads),
             {heads, heads, 64, 64, 256, {255, 3, 100, 0}},
             {{"scale", 0.125}, {"softcap", 3.0}, {"alibi", std::int64_t{1}}, {"distance", std::int64_t{9}}},
             kNarrow, &cases, {Make({heads}, Input::kReal), Make({heads, 19}, Input::kReal)});
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
  AddLatentCases(&cases);
  return cases;
}

}  // namespace engine::gpu_test
