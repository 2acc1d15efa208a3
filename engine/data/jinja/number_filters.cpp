// Filters that make numbers.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "engine/data/jinja/filters.h"
#include "engine/data/jinja/text.h"

namespace engine::jinja {
namespace {

// The text as Python's int() and float() take it: without white space around it and "_" between digits; empty where "_" is elsewhere.
std::string NumberText(const std::string& text) {
  const std::string_view inside = Strip(text, nullptr, true, true);
  std::string digits;
  for (std::size_t i = 0; i < inside.size(); ++i) {
    const auto is_digit = [&](std::size_t at) {
      return at < inside.size() && inside[at] >= '0' && inside[at] <= '9';
    };
    if (inside[i] != '_') {
      digits += inside[i];
    } else if (i == 0 || !is_digit(i - 1) || !is_digit(i + 1)) {
      return "";
    }
  }
  if (digits.starts_with('+') && !digits.starts_with("+-")) digits.erase(0, 1);
  return digits;
}

template <typename T>
std::optional<T> Read(const std::string& text) {
  T number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || read.ec != std::errc() || read.ptr != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<std::int64_t> Truncated(double number) {
  constexpr double kEnd = 9223372036854775808.0;
  if (!(number >= -kEnd && number < kEnd)) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

Value IntOf(Interpreter& in, Place place, const Value& self, const Arguments& a) {
  const Value otherwise = a.values[0].is_undefined() ? Value(std::int64_t{0}) : a.values[0];
  if (!a.values[1].is_undefined() && !AreEqual(a.values[1], Value(std::int64_t{10})))
    return in.Fail(place, "the filter \"int\" reads decimal numbers alone");
  if (self.is_undefined()) return in.Fail(place, "an undefined value is no number");
  if (self.is_integer()) return self.integer();
  std::optional<std::int64_t> number;
  if (const std::string* text = self.text()) {
    const std::string digits = NumberText(*text);
    number = Read<std::int64_t>(digits);
    if (const std::optional<double> real = Read<double>(digits); !number.has_value() && real.has_value())
      number = Truncated(*real);
    const bool is_whole = !digits.empty() && digits.find_first_not_of("-0123456789") == std::string::npos &&
                          digits.find('-', 1) == std::string::npos && digits != "-";
    if (!number.has_value() && is_whole) return in.Fail(place, "the number does not fit into 64 bits");
  } else if (const double* real = self.real()) {
    number = Truncated(*real);
    if (!number.has_value() && std::isfinite(*real))
      return in.Fail(place, "the number does not fit into 64 bits");
  }
  return number.has_value() ? Value(*number) : otherwise;
}

Value FloatOf(Interpreter& in, Place place, const Value& self, const Arguments& a) {
  Value otherwise = a.values[0].is_undefined() ? Value(0.0) : a.values[0];
  if (self.is_undefined()) return in.Fail(place, "an undefined value is no number");
  if (self.is_number()) return self.number();
  if (self.text() == nullptr) return otherwise;
  const std::optional<double> number = Read<double>(NumberText(*self.text()));
  return number.has_value() ? Value(*number) : otherwise;
}

Value AbsOf(Interpreter& in, Place place, const Value& self, const Arguments&) {
  if (const double* real = self.real()) return std::fabs(*real);
  if (!self.is_integer())
    return in.Fail(place, fmt::format("the filter \"abs\" is not for a {}", TypeName(self)));
  if (self.integer() >= 0) return self.integer();
  return in.Arithmetic(place, "-", Value(std::int64_t{0}), self);
}

Value RoundOf(Interpreter& in, Place place, const Value& self, const Arguments& a) {
  constexpr std::int64_t kMostDigits = 300;
  const std::int64_t digits = a.values[0].is_integer() ? a.values[0].integer() : 0;
  const std::string method = a.values[1].is_undefined() ? "common" : in.TextOf(place, a.values[1]);
  if (!self.is_number())
    return in.Fail(place, fmt::format("the filter \"round\" is not for a {}", TypeName(self)));
  if (digits < 0 || digits > kMostDigits)
    return in.Fail(place, "the filter \"round\" leaves 0 to 300 digits");
  if (method == "ceil" || method == "floor") {
    const double scale = std::pow(10.0, static_cast<double>(digits));
    const double scaled = self.number() * scale;
    if (!std::isfinite(scaled)) return in.Fail(place, "the number is too large to round");
    return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale;
  }
  if (method != "common")
    return in.Fail(place, "the filter \"round\" has the methods common, ceil and floor");
  if (self.is_integer()) return self.integer();
  if (!std::isfinite(*self.real())) return self;
  return *Read<double>(fmt::format("{:.{}f}", *self.real(), digits));  // rounds to even, as Python does
}

}  // namespace

const std::vector<Builtin>& NumberFilters() {
  static const std::vector<Builtin> filters = {
      {"int", {"default", "base"}, 0, IntOf},
      {"float", {"default"}, 0, FloatOf},
      {"abs", {}, 0, AbsOf},
      {"round", {"precision", "method"}, 0, RoundOf},
  };
  return filters;
}

}  // namespace engine::jinja
