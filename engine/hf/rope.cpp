// Rotary positions of a config.json. engine/graph/rotary.h has the formulas, which are those of transformers but for what is
// said here.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "engine/graph/op.h"
#include "engine/hf/features.h"

namespace engine::hf {
namespace {

using nlohmann::json;

// At 1 all features turn alike, and yarn divides by its logarithm.
constexpr double kLeastBase = 1.0001;
constexpr std::int64_t kMostPositions = std::int64_t{1} << 30;

// Sets "rotary/TABLE/KEY".
class TableWriter {
 public:
  TableWriter(Importing& in, std::string_view table) : in_(in), prefix_(fmt::format("rotary/{}/", table)) {}
  void Set(std::string_view key, double value) { in_.draft.Set(prefix_ + std::string(key), value); }
  void SetWhole(std::string_view key, std::int64_t value) {
    in_.draft.Set(prefix_ + std::string(key), value);
  }
  void SetWord(std::string_view key, std::string_view value) {
    in_.draft.SetWord(prefix_ + std::string(key), value);
  }
  void SetFlag(std::string_view key, bool value) { in_.draft.SetFlag(prefix_ + std::string(key), value); }
  void SetNumbers(std::string_view key, const std::vector<double>& values) {
    std::string list;
    for (const double value : values) list += fmt::format("{}{}", list.empty() ? "" : ", ", Decimal(value));
    in_.draft.SetToml(prefix_ + std::string(key), "[" + list + "]");
  }

 private:
  Importing& in_;
  std::string prefix_;
};

// What a scaling's keys are read with.
struct Scaling {
  ConfigKeys& keys;
  Importing& in;
  TableWriter& table;
  std::int64_t positions;
  double original;  // as the file says it, or `positions`
  bool says_original;
};

std::optional<double> Needed(Scaling& s, std::string_view key, double least, double most) {
  const bool there = s.keys.Has(key);
  const std::optional<double> value = s.keys.Number(key, least, most);
  if (!there) s.keys.Refuse(key, "this scaling needs it");
  return value;
}

void ReadLinear(Scaling& s) {
  s.table.SetWord("scaling", "linear");
  if (const auto factor = Needed(s, "factor", 1, 1 << 20)) s.table.Set("factor", *factor);
}

void ReadLlama3(Scaling& s) {
  s.table.SetWord("scaling", "llama3");
  const auto factor = Needed(s, "factor", 1, 1 << 20);
  const auto low = Needed(s, "low_freq_factor", 1e-6, 1e6);
  const auto high = Needed(s, "high_freq_factor", 1e-6, 1e6);
  if (!factor || !low || !high) return;
  s.table.Set("factor", *factor);
  s.table.Set("low", *low);
  s.table.Set("high", *high);
  s.table.Set("original", s.original);
}

// mscale as DeepSeek has it: 0.1·m·ln(factor) + 1.
double Stretch(double factor, double m) { return factor <= 1 ? 1 : 0.1 * m * std::log(factor) + 1; }

void ReadYarn(Scaling& s) {
  s.table.SetWord("scaling", "yarn");
  const bool has_factor = s.keys.Has("factor");
  const auto said = s.keys.Number("factor", 1, 1 << 20);
  const double ratio = static_cast<double>(s.positions) / s.original;
  if (has_factor && !said) return;
  if (!said && !(ratio >= 1)) return s.keys.Refuse("factor", "this scaling needs it");
  const double factor = said.value_or(ratio);
  s.table.Set("factor", factor);
  s.table.Set("original", s.original);
  if (s.says_original && said && ratio != factor) {
    s.in.notes.push_back(
        fmt::format("factor = {}: releases 4 of transformers take max_position_embeddings / "
                    "original_max_position_embeddings = {} in its place; this is the factor that is said",
                    factor, ratio));
  }
  for (const auto& [theirs, ours] : {std::pair<std::string_view, std::string_view>{"beta_fast", "beta_fast"},
                                     {"beta_slow", "beta_slow"}}) {
    if (const auto beta = s.keys.Number(theirs, 1e-6, 1e6)) s.table.Set(ours, *beta);
  }
  if (const auto truncate = s.keys.Flag("truncate"); truncate && !*truncate)
    s.table.SetFlag("truncate", false);
  const auto m = s.keys.Number("mscale", 0, 1e3), m_all = s.keys.Number("mscale_all_dim", 0, 1e3);
  if (const auto given = s.keys.Number("attention_factor", 1e-3, 1e3)) {
    s.table.Set("attention_factor", *given);
  } else if (m.value_or(0) != 0 && m_all.value_or(0) != 0) {
    s.table.Set("attention_factor", Stretch(factor, *m) / Stretch(factor, *m_all));
  }
}

void ReadLongRope(Scaling& s) {
  s.table.SetWord("scaling", "longrope");
  const auto short_factors = s.keys.Numbers("short_factor", 1e-6, 1e9);
  const auto long_factors = s.keys.Numbers("long_factor", 1e-6, 1e9);
  if (!s.keys.Has("short_factor")) s.keys.Refuse("short_factor", "this scaling needs it");
  if (!s.keys.Has("long_factor")) s.keys.Refuse("long_factor", "this scaling needs it");
  s.keys.Number("factor", 0, 1 << 20);  // transformers takes the ratio of lengths where there are both
  const double ratio = std::max(1.0, static_cast<double>(s.positions) / s.original);
  if (!short_factors || !long_factors) return;
  s.table.SetNumbers("factors", s.in.long_sequences ? *long_factors : *short_factors);
  s.table.Set("factor", ratio);
  s.table.Set("original", s.original);
  if (const auto given = s.keys.Number("attention_factor", 1e-3, 1e3))
    s.table.Set("attention_factor", *given);
  if (*short_factors != *long_factors) {
    s.in.notes.push_back(fmt::format(
        "longrope: positions are turned by short_factor, as transformers does for sequences of up to "
        "{:g} tokens; for longer ones put long_factor into rotary.factors",
        s.original));
  }
}

void ReadDynamic(Scaling& s) {
  s.keys.Number("factor", 0, 1 << 20);
  s.keys.Number("alpha", 0, 1e9);
  s.in.notes.push_back(fmt::format(
      "dynamic scaling: it changes nothing for sequences of up to max_position_embeddings = {} tokens, and "
      "longer ones would be turned otherwise than by transformers",
      s.positions));
}

std::optional<double> OriginalOf(ConfigKeys& keys, std::optional<double> top) {
  const auto own = keys.Number("original_max_position_embeddings", 1, kMostPositions);
  return top ? top : own;
}

}  // namespace

void ReadRotaryTable(ConfigKeys& keys, Importing& in, const RopeOptions& options, std::int64_t positions,
                     std::optional<double> original) {
  TableWriter table(in, options.table);
  table.Set("base", keys.Number("rope_theta", kLeastBase, 1e15).value_or(options.theta));
  const double partial = keys.Number("partial_rotary_factor", 0, 1).value_or(options.partial);
  const std::int64_t head = in.Dim(options.head);
  const auto width = static_cast<std::int64_t>(static_cast<double>(head) * partial);
  if (options.whole && width != head) {
    return in.Problem(fmt::format("{} = {}: this family rotates whole heads", options.partial_key, partial));
  }
  if (in.draft.Dim(options.head) && (width < 2 || width % 2 != 0)) {
    in.Problem(fmt::format(
        "{} of a head's {} features would be rotated: an even number from 2 on is supported", width, head));
  }
  if (width != head || options.blocks_say_width) table.SetWhole("width", width);
  const auto old_type = keys.Word("type");
  std::string type = keys.Word("rope_type").value_or(old_type.value_or("default"));
  if (options.long_names && (type == "su" || type == "yarn")) type = "longrope";
  original = OriginalOf(keys, original);
  Scaling scaling{.keys = keys,
                  .in = in,
                  .table = table,
                  .positions = positions,
                  .original = original.value_or(static_cast<double>(positions)),
                  .says_original = original.has_value()};
  if (type == "linear") {
    ReadLinear(scaling);
  } else if (type == "llama3") {
    ReadLlama3(scaling);
  } else if (type == "yarn") {
    ReadYarn(scaling);
  } else if (type == "longrope") {
    ReadLongRope(scaling);
  } else if (type == "dynamic") {
    ReadDynamic(scaling);
  } else if (type == "default") {
    for (const std::string_view unused :
         {"factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow"}) {
      if (keys.Has(unused))
        keys.Refuse(unused, "plain rotary positions have none; rope_type says which scaling it is");
    }
  } else {
    return keys.Refuse(keys.Has("rope_type") ? "rope_type" : "type",
                       "it is none of default, linear, dynamic, llama3, yarn, longrope");
  }
  for (const std::string& key : keys.Rest())
    keys.Refuse(key, fmt::format("what it asks for is not known of {}", type));
}

std::optional<Rotation> RotationOfLayer(const GraphView& view, std::string_view stack, std::int64_t layer) {
  for (const std::string_view op : {"qkv_split", "rotate"}) {
    const graph::Node* node = view.FindInLayer(stack, layer, op);
    if (node == nullptr || !node->attributes.Has("base")) continue;
    const Shape& shape = view.graph().value(node->inputs[0]).type.shape;
    return Rotation{.attributes = &node->attributes, .head = shape[shape.rank() - 1]};
  }
  return std::nullopt;
}

std::int64_t LongestSequence(const recipe::Recipe& recipe) {
  return std::max({recipe.model.max_positions, recipe.data.sequence_length, std::int64_t{1}});
}

namespace {

std::vector<double> NumbersOf(const std::string& list) {
  std::vector<double> numbers;
  for (std::size_t at = 0; at < list.size();) {
    const std::size_t comma = std::min(list.find(',', at), list.size());
    numbers.push_back(std::strtod(list.substr(at, comma - at).c_str(), nullptr));
    at = comma + 1;
  }
  return numbers;
}

// A whole number as one, as configs have lengths.
json Length(double value) {
  if (value == std::floor(value) && std::fabs(value) < 1e15) return static_cast<std::int64_t>(value);
  return value;
}

}  // namespace

json RopeScalingOf(const Rotation& rotation, Exporting& out) {
  const graph::Attributes& a = *rotation.attributes;
  const std::string kind = a.Has("scaling") ? a.String("scaling") : "llama3";
  const double factor = a.Has("factor") ? a.Float("factor") : 1;
  if (a.Int("interleaved", 0) != 0) {
    out.problems.emplace_back("pairs of neighbouring features are rotated (interleaved)");
    return nullptr;
  }
  if (kind == "llama3") {
    if (factor == 1) return nullptr;
    return {{"rope_type", "llama3"},
            {"factor", factor},
            {"low_freq_factor", a.Float("low")},
            {"high_freq_factor", a.Float("high")},
            {"original_max_position_embeddings", Length(a.Float("original"))}};
  }
  if (kind == "linear") return {{"rope_type", "linear"}, {"factor", factor}};
  if (kind == "yarn") {
    json scaling = {{"rope_type", "yarn"},
                    {"factor", factor},
                    {"original_max_position_embeddings", Length(a.Float("original"))}};
    for (const char* key : {"beta_fast", "beta_slow", "attention_factor"}) {
      if (a.Has(key)) scaling[key] = a.Float(key);
    }
    if (a.Int("truncate", 1) == 0) scaling["truncate"] = false;
    return scaling;
  }
  if (kind == "longrope") {
    json scaling = {{"rope_type", "longrope"},
                    {"short_factor", NumbersOf(a.String("factors"))},
                    {"long_factor", NumbersOf(a.String("factors"))},
                    {"original_max_position_embeddings", Length(a.Float("original"))}};
    if (a.Has("attention_factor")) scaling["attention_factor"] = a.Float("attention_factor");
    return scaling;
  }
  out.problems.push_back(fmt::format("the rotary scaling {} is none that a config has", kind));
  return nullptr;
}

namespace {

void ReadRope(Importing& in, const RopeOptions& given) {
  RopeOptions options = given;
  const std::int64_t positions =
      in.keys.Whole("max_position_embeddings", 1, kMostPositions).value_or(options.positions);
  options.theta = in.keys.Number(options.theta_key, kLeastBase, 1e15).value_or(options.theta);
  options.partial = in.keys.Number(options.partial_key, 0, 1).value_or(options.partial);
  const std::optional<double> original =
      in.keys.Number("original_max_position_embeddings", 1, kMostPositions);
  const json none = json::object();
  const json* table = &none;
  std::string name = "rope_parameters";
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const json* found = in.keys.Take(key);
    if (found == nullptr) continue;
    if (!found->is_object()) {
      in.keys.Refuse(key, "it must be an object");
      continue;
    }
    if (table != &none && *table != *found)
      return in.keys.Refuse(key, "there is rope_scaling too, and it says something else");
    table = found;
    name = key;
  }
  ConfigKeys keys(*table, name + ".", in.problems);
  ReadRotaryTable(keys, in, options, positions, original);
  for (const std::string_view more : options.more_tables) {
    if (!in.problems->empty()) return;
    const std::size_t notes = in.notes.size();
    RopeOptions same = options;
    same.table = more;
    ConfigKeys again(*table, name + ".", in.problems);
    ReadRotaryTable(again, in, same, positions, original);
    in.notes.resize(notes);  // they would be the same once more
  }
}

// The longest sequence: what the recipe says of it, else what a scaling was made for, else what it trains on.
std::int64_t PositionsOf(const recipe::Recipe& recipe, const std::optional<Rotation>& rotation) {
  if (rotation && rotation->attributes->Has("original")) {
    const graph::Attributes& a = *rotation->attributes;
    const double factor = a.Has("factor") ? a.Float("factor") : 1;
    if (factor > 1) return static_cast<std::int64_t>(std::llround(factor * a.Float("original")));
  }
  return LongestSequence(recipe);
}

void WriteRope(Exporting& out, const RopeOptions& options) {
  const std::optional<Rotation> rotation = RotationOfLayer(out.graph, options.stack, 0);
  if (!rotation) {
    out.problems.emplace_back("there are no rotary positions in its first layer");
    return;
  }
  const graph::Attributes& a = *rotation->attributes;
  out.config["max_position_embeddings"] = PositionsOf(out.recipe, rotation);
  out.config[std::string(options.theta_key)] = a.Float("base");
  const json scaling = RopeScalingOf(*rotation, out);
  out.config["rope_scaling"] = scaling;
  if (scaling.is_object() && scaling.value("rope_type", "") == "longrope")
    out.config["original_max_position_embeddings"] = scaling["original_max_position_embeddings"];
  const std::int64_t width = a.Int("width", rotation->head);
  if (width != rotation->head || options.partial != 1)
    out.config[std::string(options.partial_key)] =
        static_cast<double>(width) / static_cast<double>(rotation->head);
}

}  // namespace

Feature Rope(const RopeOptions& options) {
  return {.keys = {"max_position_embeddings", "rope_parameters", "rope_scaling",
                   "original_max_position_embeddings", options.theta_key, options.partial_key},
          .read = [options](Importing& in) { ReadRope(in, options); },
          .write = [options](Exporting& out) { WriteRope(out, options); }};
}

}  // namespace engine::hf
