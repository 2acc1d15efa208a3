#include "engine/cli/color.h"

#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace engine::cli {
namespace {

std::string& Choice() {
  static std::string choice = "auto";
  return choice;
}

std::string_view Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

void SetColor(const std::string& when) { Choice() = when; }

bool UsesColor(std::FILE* stream) {
  if (Choice() != "auto") return Choice() == "always";
  if (!Variable("NO_COLOR").empty()) return false;
  const std::string_view force = Variable("CLICOLOR_FORCE");
  if (!force.empty() && force != "0") return true;
  return ::isatty(::fileno(stream)) == 1 && Variable("TERM") != "dumb";
}

}  // namespace engine::cli
