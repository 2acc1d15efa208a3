// Renders templates for tests/oracles/templates.py: reads lines {"template": TEXT, "variables": OBJECT}, and prints a line for each,
// {"text": TEXT, "generated": [[begin, end], …]} or {"error": TEXT}. The time is that of the script's clock, 26 July 2024, 12:34:56.
#include <simdjson.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/base/status.h"
#include "engine/data/jinja/json.h"
#include "engine/data/jinja/template.h"

namespace {

absl::StatusOr<engine::jinja::Rendered> Render(const std::string& line) {
  simdjson::dom::parser parser;
  simdjson::dom::element request;
  simdjson::dom::element variables;
  std::string_view text;
  if (parser.parse(line).get(request) != simdjson::SUCCESS ||
      request["template"].get(text) != simdjson::SUCCESS ||
      request["variables"].get(variables) != simdjson::SUCCESS)
    return engine::InvalidArgument("the line is no request");
  ASSIGN_OR_RETURN(const engine::jinja::Value values, engine::jinja::FromJson(variables));
  ASSIGN_OR_RETURN(const auto compiled, engine::jinja::Template::Parse(text, "template"));
  engine::jinja::RenderOptions options;
  options.now = {.tm_sec = 56,
                 .tm_min = 34,
                 .tm_hour = 12,
                 .tm_mday = 26,
                 .tm_mon = 6,
                 .tm_year = 124,
                 .tm_wday = 5,
                 .tm_yday = 207,
                 .tm_isdst = 0,
                 .tm_gmtoff = 0,
                 .tm_zone = nullptr};
  return compiled.Render(*values.dict(), options);
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const absl::StatusOr<engine::jinja::Rendered> rendered = Render(line);
    nlohmann::json answer;
    if (rendered.ok()) {
      answer = {{"text", rendered->text}, {"generated", rendered->generated}};
    } else {
      answer = {{"error", engine::Message(rendered.status())}};
    }
    std::cout << answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n" << std::flush;
  }
}
