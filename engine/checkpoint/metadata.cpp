#include "engine/checkpoint/metadata.h"

#include <algorithm>
#include <string_view>

#include "engine/base/shown.h"
#include "engine/base/status.h"

namespace engine::checkpoint {
namespace {

constexpr std::size_t kMostNameBytes = 512;
constexpr int kMostDims = 32;
constexpr std::int64_t kMostTensorBytes = std::int64_t{1} << 62;

// Why `name` is no tensor name; empty if it is one.
std::string_view NameFault(std::string_view name) {
  if (name.empty() || name.size() > kMostNameBytes) return "is empty or longer than 512 bytes";
  for (char c : name) {
    const bool special = c == '%' || c == '@' || c == '"' || c == '\\';
    if (c <= ' ' || c > '~' || special) return "has a character that is not allowed";
  }
  for (std::string_view rest = name;;) {
    const std::size_t slash = rest.find('/');
    const std::string_view part = rest.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return "has an empty, \".\" or \"..\" part";
    if (slash == std::string_view::npos) return "";
    rest.remove_prefix(slash + 1);
  }
}

absl::Status ValidateShape(const TensorInfo& tensor) {
  const Shape& shape = tensor.shape;
  if (shape.rank() > kMostDims) {
    return InvalidArgument("tensor {}: {} dims; at most {} are possible", tensor.name, shape.rank(),
                           kMostDims);
  }
  std::int64_t bytes = SizeOf(tensor.dtype);
  for (std::int64_t size : shape) {
    if (size < 1)
      return InvalidArgument("tensor {}: a dim of {} has no elements", tensor.name, shape.ToString());
    if (__builtin_mul_overflow(bytes, size, &bytes) || bytes >= kMostTensorBytes) {
      return InvalidArgument("tensor {}: shape {} is too large", tensor.name, shape.ToString());
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateTensors(const std::vector<TensorInfo>& tensors) {
  std::vector<std::string> names;
  names.reserve(tensors.size());
  for (const TensorInfo& tensor : tensors) {
    if (const std::string_view fault = NameFault(tensor.name); !fault.empty()) {
      return InvalidArgument("tensor name \"{}\" {}", Shown(tensor.name), fault);
    }
    RETURN_IF_ERROR(ValidateShape(tensor));
    names.push_back(tensor.name);
  }
  std::sort(names.begin(), names.end());
  for (std::size_t i = 0; i + 1 < names.size(); ++i) {
    if (names[i] == names[i + 1]) return InvalidArgument("tensor {} is named twice", names[i]);
  }
  for (const std::string& name : names) {
    for (std::size_t slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1)) {
      const std::string folder = name.substr(0, slash);
      if (std::binary_search(names.begin(), names.end(), folder)) {
        return InvalidArgument("tensor {} cannot also be the folder of tensor {}", folder, name);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateMetadata(const Metadata& metadata) {
  if (metadata.iteration < 0 || metadata.consumed_samples < 0 || metadata.optimizer_steps < 0) {
    return InvalidArgument("iteration {}, consumed samples {} and optimizer steps {} cannot be negative",
                           metadata.iteration, metadata.consumed_samples, metadata.optimizer_steps);
  }
  for (const auto& [axis, size] : metadata.mesh) {
    if (size < 1) return InvalidArgument("mesh axis {} has size {}; the smallest is 1", Shown(axis), size);
  }
  return absl::OkStatus();
}

}  // namespace engine::checkpoint
