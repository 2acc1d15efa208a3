// Patterns of layers as Megatron-LM's flags say them: a number, or a list in Python's notation, "([0]*3+[1])*4".
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace engine::import {

// The list that an expression of digits, brackets, parentheses, commas, + and * comes to. nullopt: it is no such expression,
// comes to no list, or to one of more than `most` numbers.
std::optional<std::vector<std::int64_t>> EvaluateLayerList(std::string_view text, std::size_t most);

// How many of the first elements are repeated by all that follow, at least 1: 2 of 1 0 1 0 1.
std::size_t PeriodOf(const std::vector<std::int64_t>& list);

}  // namespace engine::import
