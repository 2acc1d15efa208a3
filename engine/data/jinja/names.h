// Which filters, tests and functions there are, by name; the tables are beside what they do.
#pragma once

#include <string>
#include <string_view>

namespace engine::jinja {

bool IsFilter(std::string_view name);
bool IsTest(std::string_view name);
bool IsFunction(std::string_view name);
std::string FilterNames();  // "abs, capitalize, …"
std::string TestNames();

}  // namespace engine::jinja
