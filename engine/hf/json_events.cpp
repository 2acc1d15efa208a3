#include "engine/hf/json_events.h"

#include "engine/base/shown.h"
#include "engine/base/status.h"

namespace engine::hf {
namespace {

constexpr std::size_t kMostReasonBytes = 200;

// Without what the library puts in front: "[json.exception.parse_error.101] parse error at line 1, column 5: ".
std::string ReasonIn(std::string_view what) {
  for (const std::string_view front_ends : {": ", "] "}) {
    const std::size_t at = what.find(front_ends);
    if (at == std::string_view::npos) continue;
    return Shown(what.substr(at + front_ends.size()), kMostReasonBytes);
  }
  return Shown(what, kMostReasonBytes);
}

}  // namespace

// Integers beyond 64 bits come as these, too.
bool JsonEvents::number_float(double /*value*/, const std::string& text) { return Unexpected(Shown(text)); }

bool JsonEvents::string(std::string& value) { return Unexpected(fmt::format("\"{}\"", Shown(value))); }

bool JsonEvents::parse_error(std::size_t position, const std::string& /*token*/,
                             const nlohmann::json::exception& error) {
  return Fail("byte {} is not of a JSON object: {}", position, ReasonIn(error.what()));
}

absl::Status ReadJson(std::string_view text, std::string_view name, JsonEvents* events) {
  // The library takes a zero byte for the text's end.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos) {
    return InvalidArgument("{}: byte {} is zero, which JSON has nowhere", name, zero + 1);
  }
  if (nlohmann::json::sax_parse(text.begin(), text.end(), events)) return absl::OkStatus();
  return InvalidArgument("{}: {}", name, events->what_);
}

}  // namespace engine::hf
