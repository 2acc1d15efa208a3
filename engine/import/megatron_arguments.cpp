#include "engine/import/megatron_arguments.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <system_error>
#include <utility>

#include "engine/import/megatron_shell_words.h"

namespace engine::import {

const MegatronArgument* MegatronArguments::Find(std::string_view name) const {
  const MegatronArgument* found = nullptr;
  for (const MegatronArgument& argument : command_.arguments) {
    if (argument.flag->name == name) found = &argument;
  }
  return found;
}

std::optional<std::int64_t> MegatronArguments::Int(std::string_view name) const {
  const MegatronArgument* argument = Find(name);
  if (argument == nullptr || argument->values.empty() || !Known(*argument, argument->values[0]))
    return std::nullopt;
  const std::optional<std::int64_t> value = ShellInteger(argument->values[0].text);
  if (!value) BadValue(*argument, argument->values[0], "a whole number");
  return value;
}

std::optional<double> MegatronArguments::Number(std::string_view name) const {
  const MegatronArgument* argument = Find(name);
  if (argument == nullptr || argument->values.empty() || !Known(*argument, argument->values[0]))
    return std::nullopt;
  const std::string& text = argument->values[0].text;
  const std::size_t sign = !text.empty() && text[0] == '+' ? 1 : 0;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data() + sign, text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && std::isfinite(value)) return value;
  BadValue(*argument, argument->values[0], "a number");
  return std::nullopt;
}

std::optional<std::string> MegatronArguments::Text(std::string_view name) const {
  const MegatronArgument* argument = Find(name);
  if (argument == nullptr || argument->values.empty() || !Known(*argument, argument->values[0]))
    return std::nullopt;
  return argument->values[0].text;
}

std::vector<std::string> MegatronArguments::List(std::string_view name) const {
  std::vector<std::string> list;
  const MegatronArgument* argument = Find(name);
  if (argument == nullptr) return list;
  for (const ShellText& value : argument->values) {
    if (!Known(*argument, value)) return {};
    list.push_back(value.text);
  }
  return list;
}

void MegatronArguments::Error(std::string_view name, std::string message, std::string hint) const {
  diagnostics_->push_back(source_.Error(PlaceOf(name), std::move(message), std::move(hint)));
}

void MegatronArguments::Note(std::string_view name, std::string message) const {
  Diagnostic note = source_.Error(PlaceOf(name), std::move(message));
  note.severity = Severity::kNote;
  diagnostics_->push_back(std::move(note));
}

recipe::Mark MegatronArguments::PlaceOf(std::string_view name) const {
  const MegatronArgument* argument = Find(name);
  return MarkOf(source_, argument == nullptr ? command_.script : argument->name);
}

bool MegatronArguments::Known(const MegatronArgument& argument, const ShellText& value) const {
  if (value.unknown.empty()) return true;
  diagnostics_->push_back(source_.Error(
      MarkOf(source_, value), fmt::format("{} needs its value, but {}", argument.flag->name, value.unknown),
      kMegatronSetHint));
  return false;
}

void MegatronArguments::BadValue(const MegatronArgument& argument, const ShellText& value,
                                 const char* expected) const {
  diagnostics_->push_back(source_.Error(
      MarkOf(source_, value),
      fmt::format("{} must be {}, not '{}'", argument.flag->name, expected, Shown(value.text))));
}

}  // namespace engine::import
