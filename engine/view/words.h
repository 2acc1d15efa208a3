// Numbers and times as people read them, for the terminal and the page.
#pragma once

#include <cstdint>
#include <string>

namespace engine::view {

inline constexpr const char* kUnknownText = "–";

std::string Duration(double seconds);  // "420 ms", "4.2 s", "42 s", "3 min 20 s", "2 h 05 min", "3 d 04 h"
std::string Milliseconds(double ms);   // the same of milliseconds, with one more digit
std::string Percent(double share);     // "41.2 %"
// "0.3258 ± 0.0065"; without an error that is known the value alone.
std::string WithError(double value, double standard_error);
std::string LossText(double loss);        // "2.1034"
std::string Significant(double number);   // four digits: "0.6123", "7.515e-04"
std::string RateText(double per_second);  // "8.82K"

// By the clock of this place: "14:03" of a time today, else "2026-11-26 14:03".
std::string ClockText(double unix_s, double now_unix_s);
// "2026-11-26 14:03:22 UTC"
std::string UtcText(double unix_s);

}  // namespace engine::view
