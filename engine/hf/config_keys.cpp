#include "engine/hf/config_keys.h"

#include <fmt/format.h>

#include <cmath>

#include "engine/base/json.h"
#include "engine/base/shown.h"

namespace engine::hf {

using nlohmann::json;

namespace {

// Of a long list or object its beginning is enough.
constexpr std::size_t kMostShown = 60;

std::string FoundIn(const json& value) {
  return value.is_number() || value.is_null() ? ShownJson(value) : std::string(TypeOf(value));
}

}  // namespace

std::string ShownJson(const json& value) {
  return Shown(value.dump(-1, ' ', false, json::error_handler_t::replace), kMostShown);
}

bool ConfigKeys::Has(std::string_view key) const {
  const auto found = object_.find(key);
  return found != object_.end() && !found->is_null();
}

bool ConfigKeys::IsNull(std::string_view key) const {
  const auto found = object_.find(key);
  return found != object_.end() && found->is_null();
}

const json* ConfigKeys::Take(std::string_view key) {
  taken_.emplace(key);
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<std::int64_t> ConfigKeys::Whole(std::string_view key, std::int64_t least, std::int64_t most) {
  const json* value = Take(key);
  if (value == nullptr) return std::nullopt;
  const bool fits = value->is_number_unsigned() ? value->get<std::uint64_t>() <= INT64_MAX : true;
  if (!value->is_number_integer() || !fits || value->get<std::int64_t>() < least ||
      value->get<std::int64_t>() > most) {
    Refuse(key, fmt::format("it must be a whole number from {} to {}, not {}", least, most, FoundIn(*value)));
    return std::nullopt;
  }
  return value->get<std::int64_t>();
}

std::optional<double> ConfigKeys::Number(std::string_view key, double least, double most) {
  const json* value = Take(key);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : NAN;
  if (!(number >= least && number <= most)) {
    Refuse(key, fmt::format("it must be a number from {} to {}, not {}", least, most, FoundIn(*value)));
    return std::nullopt;
  }
  return number;
}

std::optional<bool> ConfigKeys::Flag(std::string_view key) {
  const json* value = Take(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) {
    Refuse(key, fmt::format("it must be true or false, not {}", FoundIn(*value)));
    return std::nullopt;
  }
  return value->get<bool>();
}

std::optional<std::string> ConfigKeys::Word(std::string_view key) {
  const json* value = Take(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) {
    Refuse(key, fmt::format("it must be a string, not {}", FoundIn(*value)));
    return std::nullopt;
  }
  return value->get<std::string>();
}

std::optional<std::vector<double>> ConfigKeys::Numbers(std::string_view key, double least, double most) {
  const json* value = Take(key);
  if (value == nullptr) return std::nullopt;
  std::vector<double> numbers;
  bool good = value->is_array();
  for (std::size_t i = 0; good && i < value->size(); ++i) {
    const json& item = (*value)[i];
    numbers.push_back(item.is_number() ? item.get<double>() : NAN);
    good = numbers.back() >= least && numbers.back() <= most;
  }
  if (!good) {
    Refuse(key, fmt::format("it must be a list of numbers from {} to {}", least, most));
    return std::nullopt;
  }
  return numbers;
}

void ConfigKeys::Refuse(std::string_view key, const std::string& why) {
  taken_.emplace(key);
  const auto found = object_.find(key);
  problems_->push_back(found == object_.end()
                           ? fmt::format("{}{}: {}", prefix_, Shown(key), why)
                           : fmt::format("{}{} = {}: {}", prefix_, Shown(key), ShownJson(*found), why));
}

std::vector<std::string> ConfigKeys::Rest() const {
  std::vector<std::string> rest;
  for (const auto& [key, value] : object_.items()) {
    if (!value.is_null() && !taken_.contains(key)) rest.push_back(key);
  }
  return rest;
}

}  // namespace engine::hf
