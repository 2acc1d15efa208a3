#include "engine/checkpoint/tensor_difference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/base/half.h"
#include "engine/base/shown.h"

namespace engine::checkpoint {
namespace {

template <typename T>
T At(const std::byte* data, std::int64_t element) {  // of no alignment
  T value;
  std::memcpy(&value, data + element * static_cast<std::int64_t>(sizeof(T)), sizeof value);
  return value;
}

double NumberAt(DType type, const std::byte* data, std::int64_t element) {
  switch (type) {
    case DType::kF64:
      return At<double>(data, element);
    case DType::kF32:
      return static_cast<double>(At<float>(data, element));
    case DType::kBF16:
      return static_cast<double>(FloatFromBFloat16(At<std::uint16_t>(data, element)));
    default:
      return static_cast<double>(FloatFromHalf(At<std::uint16_t>(data, element)));
  }
}

std::string NumbersOf(const TensorDifference& tensor) {
  if (!tensor.what.empty()) return tensor.what;
  return fmt::format("{:.3g} of {:.3g}, {} of {} numbers", tensor.largest, tensor.of, tensor.differ,
                     tensor.elements);
}

}  // namespace

void AddDifferences(DType type_a, const std::byte* a, DType type_b, const std::byte* b, std::int64_t count,
                    TensorDifference* difference) {
  for (std::int64_t i = 0; i < count; ++i) {
    const double x = NumberAt(type_a, a, i), y = NumberAt(type_b, b, i);
    if (!std::isnan(x)) difference->of = std::max(difference->of, std::abs(x));
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    ++difference->differ;
    const double apart = std::abs(x - y);
    difference->largest =
        std::isnan(apart) ? std::numeric_limits<double>::infinity() : std::max(difference->largest, apart);
  }
}

std::string ToText(const std::vector<TensorDifference>& tensors, bool markdown) {
  if (tensors.empty()) return "";
  std::string text = markdown ? "\n| tensor | largest difference |\n|---|---|\n"
                              : "\ntensors: largest difference of the largest number\n";
  for (const TensorDifference& tensor : tensors) {
    text += markdown ? fmt::format("| {} | {} |\n", MarkdownCode(tensor.name), NumbersOf(tensor))
                     : fmt::format("  {}: {}\n", tensor.name, NumbersOf(tensor));
  }
  return text;
}

nlohmann::json ToJson(const std::vector<TensorDifference>& tensors) {
  nlohmann::json json = nlohmann::json::array();
  for (const TensorDifference& tensor : tensors) {
    // JSON has no infinity.
    const nlohmann::json largest = std::isfinite(tensor.largest) ? nlohmann::json(tensor.largest) : nullptr;
    json.push_back({{"name", tensor.name},
                    {"what", tensor.what},
                    {"largest_difference", largest},
                    {"largest_number", tensor.of},
                    {"numbers_that_differ", tensor.differ},
                    {"numbers", tensor.elements}});
  }
  return json;
}

}  // namespace engine::checkpoint
