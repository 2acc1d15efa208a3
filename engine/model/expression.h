// Arithmetic over named dims: "H/K+2", "(I/Q)*(I/Q)+1", "D**-0.5".
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace engine::model {

// The value of a name; an error where there is none.
using DimValue = std::function<absl::StatusOr<std::int64_t>(std::string_view name)>;

// Operators, from the loosest: + and −; * and / and // ; unary − ; ** (to the right). Parentheses. In integers, / must leave
// no remainder and // rounds down; there is no **-1 and no overflow of 63 bits.
// Errors: InvalidArgument, which says what is wrong and where in the expression.
absl::StatusOr<std::int64_t> EvaluateInteger(std::string_view expression, const DimValue& value);
// The same in float64: / is a division, and ** takes any exponent.
absl::StatusOr<double> EvaluateReal(std::string_view expression, const DimValue& value);

// Whether the text is one name, of letters, digits and _, that begins with a letter.
bool IsName(std::string_view text);

}  // namespace engine::model
