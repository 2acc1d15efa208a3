// JSON values as YAML 1.2 in block style, for files that people read and change.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace engine::jobs {

// Strings that YAML 1.1 could take for something else than a string are quoted as JSON quotes them, which YAML reads alike.
std::string ToYaml(const nlohmann::ordered_json& value);

}  // namespace engine::jobs
