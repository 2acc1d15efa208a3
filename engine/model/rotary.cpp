#include "engine/model/rotary.h"

#include "engine/base/status.h"

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
      {.name = "at",
       .kind = AttributeKind::kValue,
       .initial = "positions",
       .doc = "Positions of the tokens, i32 [B, S]."},
      {.name = "scaling",
       .kind = AttributeKind::kWord,
       .initial = "none",
       .doc = "How the frequencies are scaled for longer sequences than the model was first trained on.",
       .words = {"none", "llama3"}},
      {.name = "factor",
       .kind = AttributeKind::kNumber,
       .initial = "1",
       .doc = "By how much low frequencies are slowed.",
       .min = 1,
       .max = 1 << 20},
      {.name = "low",
       .kind = AttributeKind::kNumber,
       .initial = "1",
       .doc = "Of llama3: wavelengths over original / low are scaled in full.",
       .min = 1e-6,
       .max = 1e6},
      {.name = "high",
       .kind = AttributeKind::kNumber,
       .initial = "4",
       .doc = "Of llama3: wavelengths under original / high are not scaled.",
       .min = 1e-6,
       .max = 1e6},
      {.name = "original",
       .kind = AttributeKind::kNumber,
       .initial = "8192",
       .doc = "The sequence that the model was first trained on.",
       .min = 1,
       .max = 1 << 30},
  };
  return keys;
}

absl::StatusOr<Rotary> RotaryOf(StepContext& keys) {
  const Sizes& dim = keys.Get("dim").sizes;
  if (dim.shape.rank() != 1 || dim.shape[0] % 2 != 0) {
    return keys.ErrorIn("dim",
                        fmt::format("pairs of features are rotated, and it is {}", dim.shape.ToString()),
                        "an even number of features");
  }
  const bool scaled = keys.Word("scaling") == "llama3";
  if (!scaled && keys.Number("factor") != 1)
    return keys.ErrorIn("factor", "a factor needs to be told how it scales", "scaling = \"llama3\"");
  if (scaled && keys.Number("low") >= keys.Number("high")) {
    return keys.ErrorIn(
        "low", fmt::format("low {} must be less than high {}", keys.Number("low"), keys.Number("high")),
        "Llama 3 has 1 and 4");
  }
  return Rotary{.attributes = {{"rotary", std::int64_t{1}},
                               {"base", keys.Number("base")},
                               {"factor", keys.Number("factor")},
                               {"low", keys.Number("low")},
                               {"high", keys.Number("high")},
                               {"original", keys.Number("original")}},
                .positions = keys.Get("at").value};
}

}  // namespace engine::model
