// Checks of options' values that the options' library does not have.
#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdlib>
#include <string>

namespace engine::cli {

// Refuses "nan", which a CLI::Range of real numbers takes.
inline std::string CheckIsNumber(const std::string& text) {
  return std::isnan(std::strtod(text.c_str(), nullptr)) ? text + " is no number" : "";
}

// Refuses a sign: where an option's numbers have none, the library takes "-1" as 2^64 − 1.
inline std::string CheckHasNoSign(const std::string& text) {
  return text.find('-') != std::string::npos ? text + " is below 0" : "";
}

}  // namespace engine::cli
