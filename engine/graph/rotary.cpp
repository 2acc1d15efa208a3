#include "engine/graph/rotary.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

namespace engine::graph {
namespace {

double FloatOr(const Attributes& attributes, std::string_view name, double fallback) {
  return attributes.Has(name) ? attributes.Float(name) : fallback;
}

std::int64_t WidthOf(const Attributes& attributes, std::int64_t head) {
  return attributes.Int("width", head);
}

// θ_i
double PlainFrequency(double base, std::int64_t i, std::int64_t width) {
  return std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(width));
}

std::span<double> FillPlain(double base, std::int64_t width, RotaryTable* table) {
  const std::span<double> frequencies =
      std::span(table->frequencies).first(static_cast<std::size_t>(width / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i)
    frequencies[i] = PlainFrequency(base, static_cast<std::int64_t>(i), width);
  return frequencies;
}

double LlamaFrequency(double frequency, const Attributes& attributes) {
  const double factor = FloatOr(attributes, "factor", 1.0);
  if (factor == 1.0) return frequency;
  const double low = attributes.Float("low");
  const double high = attributes.Float("high");
  const double original = attributes.Float("original");
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength > original / low) return frequency / factor;
  if (wavelength < original / high) return frequency;
  const double smooth = (original / wavelength - low) / (high - low);
  return (1 - smooth) * frequency / factor + smooth * frequency;
}

void FillLlama(const Attributes& attributes, std::int64_t width, RotaryTable* table) {
  for (double& frequency : FillPlain(attributes.Float("base"), width, table))
    frequency = LlamaFrequency(frequency, attributes);
}

void FillLinear(const Attributes& attributes, std::int64_t width, RotaryTable* table) {
  for (double& frequency : FillPlain(attributes.Float("base"), width, table))
    frequency /= attributes.Float("factor");
}

void FillNtk(const Attributes& attributes, std::int64_t width, RotaryTable* table) {
  const double exponent = static_cast<double>(width) / static_cast<double>(width - 2);
  FillPlain(attributes.Float("base") * std::pow(attributes.Float("factor"), exponent), width, table);
}

void FillYarn(const Attributes& attributes, std::int64_t width, RotaryTable* table) {
  const double base = attributes.Float("base");
  const double stretch = attributes.Float("factor");
  const auto index_of = [&](double turns) {
    return static_cast<double>(width) *
           std::log(attributes.Float("original") / (2 * std::numbers::pi * turns)) / (2 * std::log(base));
  };
  double first = index_of(FloatOr(attributes, "beta_fast", 32.0));
  double last = index_of(FloatOr(attributes, "beta_slow", 1.0));
  if (attributes.Int("truncate", 1) != 0) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, static_cast<double>(width - 1));
  if (first == last) last += 0.001;
  const std::span<double> frequencies = FillPlain(base, width, table);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double slow = std::clamp((static_cast<double>(i) - first) / (last - first), 0.0, 1.0);
    frequencies[i] = (1 - slow) * frequencies[i] + slow * frequencies[i] / stretch;
  }
  table->factor = FloatOr(attributes, "attention_factor", stretch > 1 ? 0.1 * std::log(stretch) + 1 : 1.0);
}

// Calls take(i, λ_i) for each number of the list; how many there are, or −1 where one is no number above 0.
template <typename Take>
std::int64_t ForEachFactor(std::string_view list, const Take& take) {
  std::int64_t count = 0;
  const char* at = list.data();
  const char* const end = at + list.size();
  while (true) {
    double value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc() || !(value > 0) || (next != end && *next != ',')) return -1;
    take(count++, value);
    if (next == end) return count;
    at = next + 1;
  }
}

void FillLongRope(const Attributes& attributes, std::int64_t width, RotaryTable* table) {
  const std::span<double> frequencies = FillPlain(attributes.Float("base"), width, table);
  ForEachFactor(attributes.String("factors"),
                [&](std::int64_t i, double factor) { frequencies[static_cast<std::size_t>(i)] /= factor; });
  const double stretch = FloatOr(attributes, "factor", 1.0);
  const double grown =
      stretch > 1 ? std::sqrt(1 + std::log(stretch) / std::log(attributes.Float("original"))) : 1.0;
  table->factor = FloatOr(attributes, "attention_factor", grown);
}

absl::Status Accept(const Attributes&, std::int64_t) { return absl::OkStatus(); }

absl::Status CheckNtk(const Attributes&, std::int64_t width) {
  if (width > 2) return absl::OkStatus();
  return Internal("rotary scaling ntk of a width of {}: its exponent is width/(width - 2)", width);
}

absl::Status CheckLongRope(const Attributes& attributes, std::int64_t width) {
  const std::int64_t count = ForEachFactor(attributes.String("factors"), [](std::int64_t, double) {});
  if (count == width / 2) return absl::OkStatus();
  if (count < 0)
    return Internal("rotary factors \"{}\" are not all numbers above 0", attributes.String("factors"));
  return Internal("{} rotary factors for a width of {}, which has {} pairs", count, width, width / 2);
}

struct Scaling {
  std::string_view name;
  absl::Status (*check)(const Attributes&, std::int64_t width);
  void (*fill)(const Attributes&, std::int64_t width, RotaryTable*);
};
constexpr std::array kScalings = {
    Scaling{"llama3", Accept, FillLlama},
    Scaling{"linear", Accept, FillLinear},
    Scaling{"ntk", CheckNtk, FillNtk},
    Scaling{"yarn", Accept, FillYarn},
    Scaling{"longrope", CheckLongRope, FillLongRope},
};

const Scaling* FindScaling(const Attributes& attributes) {
  if (!attributes.Has("scaling")) return &kScalings.front();
  const auto* found = std::find_if(kScalings.begin(), kScalings.end(), [&](const Scaling& scaling) {
    return scaling.name == attributes.String("scaling");
  });
  return found == kScalings.end() ? nullptr : found;
}

}  // namespace

absl::Status CheckRotary(const Attributes& attributes, std::int64_t head) {
  const std::int64_t width = WidthOf(attributes, head);
  if (width < 2 || width % 2 != 0 || width > head || width / 2 > RotaryTable::kMaxHalf) {
    return Internal("rotary width {} of heads of {}: an even number up to {} is due", width, head,
                    std::min(head, 2 * RotaryTable::kMaxHalf));
  }
  const Scaling* scaling = FindScaling(attributes);
  if (scaling == nullptr) return Internal("there is no rotary scaling {}", attributes.String("scaling"));
  return scaling->check(attributes, width);
}

RotaryTable RotaryTableOf(const Attributes& attributes, std::int64_t head) {
  const absl::Status fits = CheckRotary(attributes, head);
  ENGINE_CHECK(fits.ok(), "{}", Message(fits));
  RotaryTable table;
  const std::int64_t width = WidthOf(attributes, head);
  table.half = width / 2;
  table.interleaved = attributes.Int("interleaved", 0) != 0;
  FindScaling(attributes)->fill(attributes, width, &table);
  return table;
}

}  // namespace engine::graph
