#include "engine/import/megatron_layer_pattern.h"

#include <fmt/format.h>

#include <charconv>
#include <string>
#include <system_error>
#include <utility>

#include "engine/base/diagnostic.h"
#include "engine/import/megatron_shell_words.h"

namespace engine::import {
namespace {

struct PatternValue {
  bool is_list = false;
  std::int64_t number = 0;
  std::vector<std::int64_t> list;
};

//   sum = product { "+" product }; product = item { "*" item }; item = digits | "(" sum ")" | "[" [ sum { "," sum } ] "]"
class PatternParser {
 public:
  PatternParser(std::string_view text, std::size_t most) : rest_(text), most_(most) {}

  std::optional<PatternValue> Whole() {
    std::optional<PatternValue> value = Sum(0);
    return rest_.empty() ? std::move(value) : std::nullopt;
  }

 private:
  static constexpr int kDeepest = 32;
  static constexpr std::int64_t kMostNumber = 1'000'000;

  bool Take(char c) {
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }

  std::optional<PatternValue> Sum(int depth) {
    std::optional<PatternValue> sum = Product(depth);
    while (sum && Take('+')) {
      std::optional<PatternValue> next = Product(depth);
      if (!next || next->is_list != sum->is_list) return std::nullopt;
      sum->number += next->number;
      sum->list.insert(sum->list.end(), next->list.begin(), next->list.end());
      if (!IsSmall(*sum)) return std::nullopt;
    }
    return sum;
  }

  std::optional<PatternValue> Product(int depth) {
    std::optional<PatternValue> product = Item(depth);
    while (product && Take('*')) {
      std::optional<PatternValue> next = Item(depth);
      if (!next || (next->is_list && product->is_list)) return std::nullopt;
      if (!next->is_list && !product->is_list) {
        product->number *= next->number;
      } else {
        product = Repeated(next->is_list ? next->list : product->list,
                           next->is_list ? product->number : next->number);
      }
      if (!product || !IsSmall(*product)) return std::nullopt;
    }
    return product;
  }

  std::optional<PatternValue> Item(int depth) {
    if (depth > kDeepest) return std::nullopt;
    if (Take('(')) {
      std::optional<PatternValue> inner = Sum(depth + 1);
      return inner && Take(')') ? std::move(inner) : std::nullopt;
    }
    if (Take('[')) return Rest(depth);
    PatternValue value;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value.number);
    if (error != std::errc() || !IsSmall(value) || rest_.front() == '-') return std::nullopt;
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return value;
  }

  // Of a list, behind its bracket. A comma may stand behind the last number, as in Python.
  std::optional<PatternValue> Rest(int depth) {
    PatternValue value;
    value.is_list = true;
    while (!Take(']')) {
      const std::optional<PatternValue> item = Sum(depth + 1);
      if (!item || item->is_list) return std::nullopt;
      value.list.push_back(item->number);
      if (!IsSmall(value) || (!Take(',') && (rest_.empty() || rest_.front() != ']'))) return std::nullopt;
    }
    return value;
  }

  std::optional<PatternValue> Repeated(const std::vector<std::int64_t>& list, std::int64_t times) const {
    PatternValue value;
    value.is_list = true;
    for (std::int64_t i = 0; i < times && !list.empty(); ++i) {
      value.list.insert(value.list.end(), list.begin(), list.end());
      if (!IsSmall(value)) return std::nullopt;
    }
    return value;
  }

  bool IsSmall(const PatternValue& value) const {
    return value.number <= kMostNumber && value.list.size() <= most_;
  }

  std::string_view rest_;
  std::size_t most_;
};

}  // namespace

std::optional<std::vector<std::int64_t>> EvaluateLayerList(std::string_view text, std::size_t most) {
  std::optional<PatternValue> value = PatternParser(text, most).Whole();
  if (!value || !value->is_list) return std::nullopt;
  return std::move(value->list);
}

std::optional<std::vector<std::int64_t>> LayersOfFlag(const MegatronArguments& arguments, const char* flag,
                                                      std::int64_t layers, const EveryNth& every) {
  constexpr std::int64_t kMostLayers = 2000;
  const std::optional<std::string> text = arguments.Text(flag);
  if (!text || layers < 1 || layers > kMostLayers) return std::nullopt;
  std::vector<std::int64_t> list;
  if (const std::optional<std::int64_t> n = ShellInteger(*text)) {
    if (*n < 1) {
      arguments.Error(flag, fmt::format("{} is {}", flag, *n), "at least 1, or a list such as ([0]*3+[1])*2");
      return std::nullopt;
    }
    for (std::int64_t layer = 0; layer < layers; ++layer)
      list.push_back((layer + every.first) % *n == 0 ? every.value : 1 - every.value);
    return list;
  }
  const auto evaluated = EvaluateLayerList(*text, kMostLayers);
  if (!evaluated) {
    arguments.Error(flag, fmt::format("{} '{}' is neither a number nor a list", flag, Shown(*text)),
                    "a list is written in digits, brackets, commas, + and *, without blanks: ([0]*3+[1])*2");
    return std::nullopt;
  }
  if (evaluated->size() != static_cast<std::size_t>(layers)) {
    arguments.Error(flag,
                    fmt::format("{} '{}' is a list of {}, and there are {} layers", flag, Shown(*text),
                                evaluated->size(), layers),
                    "an entry for each layer");
    return std::nullopt;
  }
  for (const std::int64_t entry : *evaluated) list.push_back(entry != 0 ? 1 : 0);
  return list;
}

std::size_t PeriodOf(const std::vector<std::int64_t>& list) {
  const auto repeats = [&](std::size_t period) {
    for (std::size_t i = period; i < list.size(); ++i) {
      if (list[i] != list[i - period]) return false;
    }
    return true;
  };
  std::size_t period = 1;
  while (!repeats(period)) ++period;
  return period;
}

}  // namespace engine::import
