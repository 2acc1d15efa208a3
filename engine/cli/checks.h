// Checks of options' values that the options' library does not have.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <system_error>

namespace engine::cli {

// Refuses "nan", which a CLI::Range of real numbers takes.
inline std::string CheckIsNumber(const std::string& text) {
  return std::isnan(std::strtod(text.c_str(), nullptr)) ? text + " is no number" : "";
}

// Refuses what is no number of 64 bits without a sign: the library takes "-1" as 2^64 − 1, and larger numbers as that.
inline std::string CheckIsSeed(const std::string& text) {
  std::uint64_t seed = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, seed);
  return error == std::errc() && stop == end ? ""
                                             : text + " is no whole number from 0 to 18446744073709551615";
}

}  // namespace engine::cli
