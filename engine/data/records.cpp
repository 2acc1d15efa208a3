#include "engine/data/records.h"

#include <simdjson.h>

#include <algorithm>

#include "engine/base/json.h"
#include "engine/base/status.h"
#include "engine/data/jinja/json.h"

namespace engine::data {
namespace {

// A line of JSON as a value. InvalidArgument is located, "file:line:column: error: …".
absl::StatusOr<jinja::Value> ReadLine(std::string_view line, const std::string& path, std::int64_t number,
                                      simdjson::dom::parser* parser) {
  simdjson::dom::element element;
  simdjson::error_code error = parser->allocate(std::max<std::size_t>(line.size(), 32), kMostJsonDepth);
  if (error == simdjson::SUCCESS) error = parser->parse(line.data(), line.size()).get(element);
  if (error == simdjson::SUCCESS) {
    absl::StatusOr<jinja::Value> value = jinja::FromJson(element);
    if (value.ok()) return value;
    return InvalidArgument("{}:{}: error: {}", path, number, Message(value.status()));
  }
  RETURN_IF_ERROR(ParseJson(line, path, number).status());  // says more
  return InvalidArgument("{}:{}: error: {}", path, number, simdjson::error_message(error));
}

}  // namespace

std::string InnerMessage(const absl::Status& status) {
  std::string message = Message(status);
  constexpr std::string_view kError = ": error: ";
  if (const std::size_t at = message.find(kError); at != std::string::npos)
    message.replace(at, kError.size(), ": ");
  return message;
}

absl::Status VisitJsonRecords(const TextPlace& place, std::string_view contents, const RecordVisitor& visit) {
  simdjson::dom::parser parser;
  for (std::int64_t number = place.first_line; !contents.empty(); ++number) {
    const std::string_view line = contents.substr(0, contents.find('\n'));
    contents.remove_prefix(std::min(line.size() + 1, contents.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    ASSIGN_OR_RETURN(const jinja::Value record, ReadLine(line, place.path, number, &parser));
    if (const absl::Status status = visit(record); !status.ok())
      return InvalidArgument("{}:{}: error: {}", place.path, number, InnerMessage(status));
  }
  return absl::OkStatus();
}

}  // namespace engine::data
