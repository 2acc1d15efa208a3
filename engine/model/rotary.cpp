#include "engine/model/rotary.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "engine/base/status.h"
#include "engine/graph/rotary.h"

namespace engine::model {

const std::vector<AttributeDef>& RotaryKeys() {
  static const std::vector<AttributeDef> keys = {
      {.name = "dim",
       .kind = AttributeKind::kShape,
       .doc = "The features of a head: \"E\".",
       .required = true},
      {.name = "base",
       .kind = AttributeKind::kNumber,
       .initial = "1e4",
       .doc = "Frequency i of d is base^(−2i/d).",
       .min = 1,
       .max = 1e15},
      {.name = "width",
       .kind = AttributeKind::kInteger,
       .doc = "How many features of a head are rotated, the first; left out: all.",
       .min = 2,
       .max = 512},
      {.name = "interleaved",
       .kind = AttributeKind::kFlag,
       .initial = "false",
       .doc = "Pairs are neighbours (GPT-J); else the two halves."},
      {.name = "at",
       .kind = AttributeKind::kValue,
       .initial = "positions",
       .doc = "Positions of the tokens, i32 [B, S]."},
      {.name = "scaling",
       .kind = AttributeKind::kWord,
       .initial = "none",
       .doc = "How the frequencies are scaled for longer sequences than the model was first trained on "
              "(engine/graph/rotary.h has the formulas).",
       .words = {"none", "llama3", "linear", "ntk", "yarn", "longrope"}},
      {.name = "factor",
       .kind = AttributeKind::kNumber,
       .initial = "1",
       .doc = "So many times longer.",
       .min = 1,
       .max = 1 << 20},
      {.name = "low",
       .kind = AttributeKind::kNumber,
       .initial = "1",
       .doc = "Of llama3: wavelengths over original / low are scaled in full.",
       .min = 0,
       .open = true},
      {.name = "high",
       .kind = AttributeKind::kNumber,
       .initial = "4",
       .doc = "Of llama3: wavelengths under original / high are not scaled.",
       .min = 0,
       .open = true},
      {.name = "original",
       .kind = AttributeKind::kNumber,
       .initial = "8192",
       .doc = "The sequence that the model was first trained on.",
       .min = 1,
       .max = 1 << 30},
      {.name = "beta_fast",
       .kind = AttributeKind::kNumber,
       .doc = "Of yarn: features that turn more often in `original` tokens are not scaled; left out: 32.",
       .min = 0,
       .open = true},
      {.name = "beta_slow",
       .kind = AttributeKind::kNumber,
       .doc = "Of yarn: features that turn less often are scaled in full; left out: 1.",
       .min = 0,
       .open = true},
      {.name = "truncate",
       .kind = AttributeKind::kFlag,
       .initial = "true",
       .doc = "Of yarn: the features between which it passes over are whole numbers."},
      {.name = "factors",
       .kind = AttributeKind::kNumbers,
       .doc = "Of longrope: by what each pair's frequency is divided."},
      {.name = "attention_factor",
       .kind = AttributeKind::kNumber,
       .doc = "Of yarn and longrope: factor of cos and sin; left out: 0.1·ln factor + 1, √(1 + ln factor / "
              "ln original).",
       .min = 1e-3,
       .max = 1e3},
  };
  return keys;
}

namespace {

// The keys that say how a kind scales, beside `factor`.
const std::vector<std::string_view>& KeysOf(const std::string& scaling) {
  static const std::vector<std::string_view> none,
      llama3 = {"low", "high", "original"},
      yarn = {"original", "beta_fast", "beta_slow", "truncate", "attention_factor"},
      longrope = {"original", "factors", "attention_factor"};
  return scaling == "llama3" ? llama3 : scaling == "yarn" ? yarn : scaling == "longrope" ? longrope : none;
}

absl::Status CheckKeys(StepContext& keys, const std::string& scaling) {
  if (scaling == "none" && keys.Number("factor") != 1) {
    return keys.ErrorIn("factor", "a factor needs to be told how it scales",
                        "scaling = \"linear\", or one of ntk, yarn, llama3, longrope");
  }
  const std::vector<std::string_view>& own = KeysOf(scaling);
  for (const std::string_view key :
       {"low", "high", "original", "beta_fast", "beta_slow", "truncate", "factors", "attention_factor"}) {
    const bool said = keys.Has(key) && keys.Get(key).node != nullptr;
    if (said && std::find(own.begin(), own.end(), key) == own.end())
      return keys.ErrorIn(key, fmt::format("the scaling {} has no {}", scaling, key));
  }
  if (scaling == "llama3" && keys.Number("low") >= keys.Number("high")) {
    return keys.ErrorIn(
        "low", fmt::format("low {} must be less than high {}", keys.Number("low"), keys.Number("high")),
        "Llama 3 has 1 and 4");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Rotary> RotaryOf(StepContext& keys) {
  const Sizes& dim = keys.Get("dim").sizes;
  if (dim.shape.rank() != 1 || dim.shape[0] % 2 != 0) {
    return keys.ErrorIn("dim",
                        fmt::format("pairs of features are rotated, and it is {}", dim.shape.ToString()),
                        "an even number of features");
  }
  const std::string& scaling = keys.Word("scaling");
  RETURN_IF_ERROR(CheckKeys(keys, scaling));
  graph::Attributes attributes = {{"rotary", std::int64_t{1}}, {"base", keys.Number("base")}};
  if (scaling == "none" || scaling == "llama3") {
    attributes.Set("factor", keys.Number("factor"));
    attributes.Set("low", keys.Number("low"));
    attributes.Set("high", keys.Number("high"));
    attributes.Set("original", keys.Number("original"));
  } else {
    attributes.Set("scaling", scaling);
    attributes.Set("factor", keys.Number("factor"));
    if (scaling == "yarn" || scaling == "longrope") attributes.Set("original", keys.Number("original"));
    for (const std::string_view key : {"beta_fast", "beta_slow", "attention_factor"}) {
      if (keys.Has(key)) attributes.Set(key, keys.Number(key));
    }
    if (!keys.Flag("truncate")) attributes.Set("truncate", std::int64_t{0});
    if (keys.Has("factors"))
      attributes.Set("factors", fmt::format("{}", fmt::join(keys.Get("factors").numbers, ",")));
  }
  if (keys.Has("width") && keys.Int("width") != dim.shape[0]) attributes.Set("width", keys.Int("width"));
  if (keys.Flag("interleaved")) attributes.Set("interleaved", std::int64_t{1});
  if (const absl::Status status = graph::CheckRotary(attributes, dim.shape[0]); !status.ok())
    return keys.Error(Message(status));
  return Rotary{.attributes = std::move(attributes), .positions = keys.Get("at").value};
}

}  // namespace engine::model
