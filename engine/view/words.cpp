#include "engine/view/words.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>

#include "engine/base/units.h"

namespace engine::view {
namespace {

constexpr double kLargestTime = 4e10;  // in the year 3237

std::time_t TimeOf(double unix_s) { return static_cast<std::time_t>(std::clamp(unix_s, 0.0, kLargestTime)); }

}  // namespace

std::string Duration(double seconds) {
  if (!std::isfinite(seconds)) return kUnknownText;
  seconds = std::max(seconds, 0.0);
  if (seconds < 0.9995) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 9.95) return fmt::format("{:.1f} s", seconds);
  if (seconds >= kLargestTime) return "ages";
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
  return fmt::format("{} d {:02} h", whole / 86400, whole / 3600 % 24);
}

std::string Milliseconds(double ms) {
  if (!std::isfinite(ms)) return kUnknownText;
  if (ms < 1e3) return fmt::format("{:.{}f} ms", ms, ms < 99.95 ? 1 : 0);
  return ms < 60e3 ? fmt::format("{:.2f} s", ms / 1e3) : Duration(ms / 1e3);
}

std::string Percent(double share) {
  return std::isfinite(share) ? fmt::format("{:.1f} %", share * 100) : kUnknownText;
}

std::string WithError(double value, double standard_error) {
  std::string text = Significant(value);
  if (std::isfinite(standard_error)) text += fmt::format(" ± {:.2g}", standard_error);
  return text;
}

std::string LossText(double loss) { return std::isfinite(loss) ? fmt::format("{:.4f}", loss) : kUnknownText; }

std::string Significant(double number) {
  return std::isfinite(number) ? fmt::format("{:.4g}", number) : kUnknownText;
}

std::string RateText(double per_second) {
  return std::isfinite(per_second) ? FormatCount(per_second) : kUnknownText;
}

std::string ClockText(double unix_s, double now_unix_s) {
  const std::tm then = fmt::localtime(TimeOf(unix_s));
  const std::tm now = fmt::localtime(TimeOf(now_unix_s));
  const bool today = then.tm_yday == now.tm_yday && then.tm_year == now.tm_year;
  return today ? fmt::format("{:%H:%M}", then) : fmt::format("{:%Y-%m-%d %H:%M}", then);
}

std::string UtcText(double unix_s) {
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(TimeOf(unix_s)));
}

}  // namespace engine::view
