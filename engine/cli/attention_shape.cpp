#include "engine/cli/attention_shape.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>
#include <optional>

#include "engine/ops/fused.h"
#include "engine/ops/ops.h"

namespace engine::cli {
namespace {

constexpr std::string_view kShapeExample = "batch=8,length=1024,heads=20,head=64";

// ---------------------------------------------------------------------------------------------------- one key

// What a key's value must be, where it is not; null: it was read.
using ReadValue = const char* (*)(std::string_view value, AskedAttention* shape);

// The whole text as a number.
template <typename Number>
std::optional<Number> NumberOf(std::string_view text) {
  Number number{};
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && rest == end ? std::optional(number) : std::nullopt;
}

constexpr std::int64_t kMostOfShape = std::int64_t{1} << 24;

std::optional<std::int64_t> CountOf(std::string_view text) {
  const std::optional<std::int64_t> count = NumberOf<std::int64_t>(text);
  return count && *count >= 1 && *count <= kMostOfShape ? count : std::nullopt;
}

template <std::int64_t AskedAttention::*member>
const char* ReadCount(std::string_view value, AskedAttention* shape) {
  const std::optional<std::int64_t> count = CountOf(value);
  if (!count) return "a number from 1 to 16777216";
  shape->*member = *count;
  return nullptr;
}

template <bool AskedAttention::*member>
const char* ReadSwitch(std::string_view value, AskedAttention* shape) {
  if (value != "0" && value != "1") return "1 or 0";
  shape->*member = value == "1";
  return nullptr;
}

const char* ReadMask(std::string_view value, AskedAttention* shape) {
  if (value != "causal" && value != "none") return "causal or none";
  shape->causal = value == "causal";
  return nullptr;
}

const char* ReadDType(std::string_view value, AskedAttention* shape) {
  if (value != "bf16" && value != "fp16") return "bf16 or fp16";
  shape->dtype = value == "bf16" ? DType::kBF16 : DType::kF16;
  return nullptr;
}

const char* ReadSoftcap(std::string_view value, AskedAttention* shape) {
  const std::optional<double> number = NumberOf<double>(value);
  if (!number || !(*number > 0) || !std::isfinite(*number)) return "a number above 0";
  shape->softcap = *number;
  return nullptr;
}

const char* ReadDropout(std::string_view value, AskedAttention* shape) {
  const std::optional<double> number = NumberOf<double>(value);
  if (!number || !(*number >= 0 && *number < 1)) return "a number from 0 to below 1";
  shape->dropout = *number;
  return nullptr;
}

const char* ReadDocuments(std::string_view value, AskedAttention* shape) {
  shape->documents.clear();
  for (std::size_t at = 0; at <= value.size();) {
    const std::size_t plus = std::min(value.find('+', at), value.size());
    const std::optional<std::int64_t> count = CountOf(value.substr(at, plus - at));
    if (!count) return "lengths with + between them, as in 300+700";
    shape->documents.push_back(*count);
    at = plus + 1;
  }
  return nullptr;
}

struct ShapeKey {
  std::string_view name;
  ReadValue read;
  bool needed = false;
  bool is_switch = false;       // its name alone turns it on
  std::string_view value = {};  // one that help shows beside the name
};
constexpr std::array kShapeKeys = {
    ShapeKey{"batch", ReadCount<&AskedAttention::batch>},
    ShapeKey{"length", ReadCount<&AskedAttention::length>, true},
    ShapeKey{"heads", ReadCount<&AskedAttention::heads>, true},
    ShapeKey{"head", ReadCount<&AskedAttention::head>, true},
    ShapeKey{"kv_heads", ReadCount<&AskedAttention::kv_heads>},
    ShapeKey{"value_head", ReadCount<&AskedAttention::value_head>},
    ShapeKey{"keys", ReadCount<&AskedAttention::keys>},
    ShapeKey{"mask", ReadMask, false, false, "none"},
    ShapeKey{"window", ReadCount<&AskedAttention::window>},
    ShapeKey{"softcap", ReadSoftcap},
    ShapeKey{"dropout", ReadDropout},
    ShapeKey{"alibi", ReadSwitch<&AskedAttention::alibi>, false, true},
    ShapeKey{"distance", ReadCount<&AskedAttention::distance>},
    ShapeKey{"pairs", ReadCount<&AskedAttention::pairs>},
    ShapeKey{"sinks", ReadSwitch<&AskedAttention::sinks>, false, true},
    ShapeKey{"packed", ReadSwitch<&AskedAttention::packed>, false, true},
    ShapeKey{"dtype", ReadDType, false, false, "fp16"},
    ShapeKey{"documents", ReadDocuments, false, false, "300+724"},
};

std::string AllShapeKeys() {
  std::string names;
  for (const ShapeKey& key : kShapeKeys) names += fmt::format("{}{}", names.empty() ? "" : ", ", key.name);
  return names;
}

bool IsInExample(const ShapeKey& key) {
  return kShapeExample.find(fmt::format("{}=", key.name)) != std::string_view::npos;
}

absl::Status ReadShapeKey(std::string_view word, AskedAttention* shape, std::vector<std::string_view>* seen) {
  word.remove_prefix(std::min(word.find_first_not_of(' '), word.size()));
  word = word.substr(0, word.find_last_not_of(' ') + 1);
  if (word.empty()) return InvalidArgument("a key is missing between two commas or behind the last one");
  const std::size_t equals = word.find('=');
  const std::string_view name = word.substr(0, equals);
  const auto* key =
      std::find_if(kShapeKeys.begin(), kShapeKeys.end(), [&](const ShapeKey& k) { return k.name == name; });
  if (key == kShapeKeys.end())
    return InvalidArgument("there is no key '{}'; there are {}; an example: {}", name, AllShapeKeys(),
                           kShapeExample);
  if (std::find(seen->begin(), seen->end(), name) != seen->end())
    return InvalidArgument("'{}' stands twice", name);
  seen->push_back(name);
  const bool alone = equals == std::string_view::npos;
  const std::string_view value = !alone ? word.substr(equals + 1) : key->is_switch ? "1" : "";
  const char* wanted = key->read(value, shape);
  if (wanted == nullptr) return absl::OkStatus();
  return InvalidArgument("{} must be {}, found '{}'", name, wanted, value);
}

// ------------------------------------------------------------------------------------------- all together

struct ShapeRule {
  bool (*broken)(const AskedAttention& s);
  std::string (*what)(const AskedAttention& s);
};
// Of any tensor, in all: more than any GPU holds, and nothing overflows.
constexpr double kMostElements = 0x1p40;
constexpr std::array kShapeRules = {
    ShapeRule{[](const AskedAttention& s) {
                const auto longest = static_cast<double>(std::max(s.length, s.keys));
                const auto widest = static_cast<double>(std::max(s.head, s.value_head));
                return static_cast<double>(s.batch) * longest * static_cast<double>(s.heads) * widest >
                       kMostElements;
              },
              [](const AskedAttention&) { return std::string("tensors of more than 2^40 elements"); }},
    ShapeRule{[](const AskedAttention& s) { return s.heads % s.kv_heads != 0; },
              [](const AskedAttention& s) {
                return fmt::format("{} heads are no multiple of {} kv_heads", s.heads, s.kv_heads);
              }},
    ShapeRule{[](const AskedAttention& s) { return s.causal && s.keys < s.length; },
              [](const AskedAttention& s) {
                return fmt::format(
                    "a causal mask needs at least as many keys as queries, found keys={} and length={}",
                    s.keys, s.length);
              }},
    ShapeRule{[](const AskedAttention& s) { return !s.causal && s.window > 0; },
              [](const AskedAttention&) { return std::string("a window needs mask=causal"); }},
    ShapeRule{[](const AskedAttention& s) { return !s.causal && s.alibi; },
              [](const AskedAttention&) { return std::string("alibi needs mask=causal"); }},
    ShapeRule{[](const AskedAttention& s) { return !s.documents.empty() && s.keys != s.length; },
              [](const AskedAttention&) {
                return std::string("documents need as many keys as queries: leave keys out");
              }},
    ShapeRule{[](const AskedAttention& s) {
                return !s.documents.empty() &&
                       std::accumulate(s.documents.begin(), s.documents.end(), std::int64_t{0}) != s.length;
              },
              [](const AskedAttention& s) {
                return fmt::format("documents must fill length={}, these have {} tokens in all", s.length,
                                   std::accumulate(s.documents.begin(), s.documents.end(), std::int64_t{0}));
              }},
    ShapeRule{
        [](const AskedAttention& s) {
          return s.packed &&
                 (s.keys != s.length || s.value_head != s.head || s.sinks || s.distance > 0 || s.pairs > 0);
        },
        [](const AskedAttention&) {
          return std::string(
              "packed tensors have keys and values of the queries' sizes, and no sinks or trained biases");
        }},
    ShapeRule{[](const AskedAttention& s) { return s.pairs > 0 && (s.pairs < s.keys || s.distance > 0); },
              [](const AskedAttention& s) {
                return fmt::format(
                    "pairs={} are the places of at least keys={}, and there is no distance beside them",
                    s.pairs, s.keys);
              }},
};

absl::StatusOr<AskedAttention> ReadShape(std::string_view text) {
  AskedAttention shape;
  shape.text = text;
  std::vector<std::string_view> seen;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    RETURN_IF_ERROR(ReadShapeKey(text.substr(at, comma - at), &shape, &seen));
    at = comma + 1;
  }
  for (const ShapeKey& key : kShapeKeys) {
    if (key.needed && std::find(seen.begin(), seen.end(), key.name) == seen.end())
      return InvalidArgument("'{}' is missing; an example: {}", key.name, kShapeExample);
  }
  if (shape.keys == 0) shape.keys = shape.length;
  if (shape.kv_heads == 0) shape.kv_heads = shape.heads;
  if (shape.value_head == 0) shape.value_head = shape.head;
  for (const ShapeRule& rule : kShapeRules) {
    if (rule.broken(shape)) return InvalidArgument("{}", rule.what(shape));
  }
  return shape;
}

// Keys that queries at the positions [keys − queries, keys) see.
double PairsOf(const AskedAttention& s, std::int64_t queries, std::int64_t keys) {
  const auto sum_to = [](std::int64_t n) { return static_cast<double>(n) * static_cast<double>(n + 1) / 2; };
  if (!s.causal) return static_cast<double>(queries) * static_cast<double>(keys);
  const std::int64_t first = keys - queries;  // keys that the first query sees beside its own
  const std::int64_t window = s.window > 0 ? std::min(s.window, keys) : keys;
  const std::int64_t growing = std::max(window - first, std::int64_t{0});  // queries that see all before them
  const double full = static_cast<double>(queries - std::min(growing, queries)) * static_cast<double>(window);
  return growing > 0 ? sum_to(std::min(window, keys)) - sum_to(first) + full : full;
}

}  // namespace

std::string AttentionShapeHelp() {
  std::string others;
  for (const ShapeKey& key : kShapeKeys) {
    if (IsInExample(key)) continue;
    others += fmt::format("{}{}{}{}", others.empty() ? "" : ", ", key.name, key.value.empty() ? "" : "=",
                          key.value);
  }
  return fmt::format("{}; besides {}", kShapeExample, others);
}

absl::StatusOr<AskedAttention> ParseAttentionShape(std::string_view text) {
  absl::StatusOr<AskedAttention> shape = ReadShape(text);
  if (!shape.ok()) return WithContext(shape.status(), fmt::format("--attention '{}'", text));
  return shape;
}

double UnmaskedPairs(const AskedAttention& shape) {
  if (shape.documents.empty()) return PairsOf(shape, shape.length, shape.keys);
  double pairs = 0;
  for (const std::int64_t length : shape.documents) pairs += PairsOf(shape, length, length);
  return pairs;
}

double AttentionFlops(const AskedAttention& shape, bool backward) {
  const auto elements =
      static_cast<double>((backward ? 3 : 1) * shape.head + (backward ? 2 : 1) * shape.value_head);
  return 2 * elements * static_cast<double>(shape.batch * shape.heads) * UnmaskedPairs(shape);
}

absl::StatusOr<AttentionLaunch> AttentionLaunchOf(const AskedAttention& s, bool backward) {
  AttentionLaunch launch;
  launch.attributes = {{"scale", 1 / std::sqrt(static_cast<double>(s.head))},
                       {"window", s.window},
                       {"dropout", s.dropout},
                       {"softcap", s.softcap},
                       {"alibi", std::int64_t{s.alibi ? 1 : 0}}};
  if (s.distance > 0) launch.attributes.Set("distance", s.distance);
  if (s.pairs > 0) launch.attributes.Set("pairs", s.pairs);
  if (!s.causal) launch.attributes.Set("mask", std::string("none"));
  if (s.dropout > 0) launch.attributes.Set("stream", std::string("core"));
  launch.first_position = s.keys - s.length;
  const graph::TensorType q = {{s.batch, s.length, s.heads, s.head}, s.dtype};
  const graph::TensorType k = {{s.batch, s.keys, s.kv_heads, s.head}, s.dtype};
  const graph::TensorType v = {{s.batch, s.keys, s.kv_heads, s.value_head}, s.dtype};
  const graph::TensorType qkv = {{s.batch, s.length, s.kv_heads, s.heads / s.kv_heads + 2, s.head}, s.dtype};
  const graph::TensorType positions = {{s.batch, s.length}, DType::kI32};
  const graph::TensorType o = {{s.batch, s.length, s.heads, s.value_head}, s.dtype};
  const graph::TensorType lse = {{s.batch, s.length, s.heads}, DType::kF32};
  launch.op = s.packed ? (backward ? &ops::kAttentionPackedGrad : &ops::kAttentionPacked)
                       : (backward ? &ops::kAttentionGrad : &ops::kAttention);
  launch.inputs = s.packed ? std::vector{qkv, positions} : std::vector{q, k, v, positions};
  if (!s.documents.empty()) launch.inputs.push_back({{s.batch, s.length, 2}, DType::kI32});
  if (backward) launch.inputs.insert(launch.inputs.end(), {o, lse, o});
  if (s.sinks) launch.inputs.push_back({{s.heads}, s.dtype});
  if (s.distance > 0) launch.inputs.push_back({{s.heads, 2 * s.distance + 1}, s.dtype});
  if (s.pairs > 0) launch.inputs.push_back({{s.heads, s.pairs, s.pairs}, s.dtype});
  ASSIGN_OR_RETURN(launch.outputs, launch.op->infer(launch.inputs, launch.attributes));
  return launch;
}

}  // namespace engine::cli
