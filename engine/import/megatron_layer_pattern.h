// Patterns of layers as Megatron-LM's flags say them: a number, or a list in Python's notation, "([0]*3+[1])*4".
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/import/megatron_arguments.h"

namespace engine::import {

// The list that an expression of digits, brackets, parentheses, commas, + and * comes to. nullopt: it is no such expression,
// comes to no list, or to one of more than `most` numbers.
std::optional<std::vector<std::int64_t>> EvaluateLayerList(std::string_view text, std::size_t most);

// What a number N as a flag's value means: layers i with (i + first) % N = 0 get `value`, the others 1 − value.
struct EveryNth {
  std::int64_t first = 1;
  std::int64_t value = 1;
};

// The flag's value for each layer, 1 or 0: of a number as `every` says, else of a list. nullopt: it is not given, or neither, or
// a list of another length, which are reported; or `layers` is out of bounds, which the recipe's rules report.
std::optional<std::vector<std::int64_t>> LayersOfFlag(const MegatronArguments& arguments, const char* flag,
                                                      std::int64_t layers, const EveryNth& every);

// How many of the first elements are repeated by all that follow, at least 1: 2 of 1 0 1 0 1.
std::size_t PeriodOf(const std::vector<std::int64_t>& list);

}  // namespace engine::import
