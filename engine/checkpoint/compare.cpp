#include "engine/checkpoint/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <set>

#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/base/units.h"

namespace engine::checkpoint {
namespace {

constexpr std::int64_t kElementsAtATime = std::int64_t{1} << 22;

std::string GuardText(const GuardState& guard) {
  return fmt::format("{} losses, {} ranges left out, {} rewinds, {} skips", guard.losses.size(),
                     guard.left_out.size(), guard.rewinds, guard.skips);
}

std::vector<Differences::Entry> CompareMetadata(const Metadata& a, const Metadata& b) {
  std::vector<Differences::Entry> differ;
  const auto compare = [&](const char* name, std::int64_t of_a, std::int64_t of_b) {
    if (of_a != of_b) differ.push_back({name, WithThousands(of_a), WithThousands(of_b)});
  };
  compare("iteration", a.iteration, b.iteration);
  compare("consumed samples", a.consumed_samples, b.consumed_samples);
  // One of a checkpoint that was written before they were kept is not known.
  if (a.schedule_samples >= 0 && b.schedule_samples >= 0)
    compare("schedule samples", a.schedule_samples, b.schedule_samples);
  compare("optimizer steps", a.optimizer_steps, b.optimizer_steps);
  compare("version of attention's draws", a.attention_draws, b.attention_draws);
  compare("version of dropout's draws", a.dropout_draws, b.dropout_draws);
  std::set<std::string> names;
  for (const Metadata* metadata : {&a, &b}) {
    for (const auto& [name, fingerprint] : metadata->fingerprints) names.insert(name);
  }
  for (const std::string& name : names) {
    const auto of_a = a.fingerprints.find(name), of_b = b.fingerprints.find(name);
    const std::string value_a = of_a == a.fingerprints.end() ? "" : of_a->second;
    const std::string value_b = of_b == b.fingerprints.end() ? "" : of_b->second;
    if (value_a != value_b) differ.push_back({"read " + name, value_a, value_b});
  }
  if (!(a.guard == b.guard)) {
    const std::string of_a = GuardText(a.guard), of_b = GuardText(b.guard);
    differ.push_back({"guard", of_a, of_b + (of_a == of_b ? ", of other values" : "")});
  }
  return differ;
}

// The boxes of at most kElementsAtATime that a tensor is read in: rows of the first dim, or where one is too large, parts of
// each row, and so on.
void AddBoxes(const Shape& shape, int dim, const Box& box, std::vector<Box>* boxes) {
  if (box.count.elements() <= kElementsAtATime || dim == shape.rank()) {
    boxes->push_back(box);
    return;
  }
  const std::int64_t rows =
      std::max<std::int64_t>(1, kElementsAtATime / box.count.elements(dim + 1, shape.rank()));
  for (std::int64_t begin = 0; begin < shape[dim]; begin += rows) {
    Box part = box;
    part.start[dim] = begin;
    part.count[dim] = std::min(rows, shape[dim] - begin);
    AddBoxes(shape, dim + 1, part, boxes);
  }
}

struct Buffers {
  std::vector<std::byte> a, b;
};

// Nothing where they have the same numbers.
absl::StatusOr<std::optional<TensorDifference>> CompareTensors(const Reader& a, const TensorInfo& of_a,
                                                               const Reader& b, const TensorInfo& of_b,
                                                               Buffers* buffers) {
  TensorDifference difference{.name = of_a.name, .what = "", .elements = of_a.shape.elements()};
  const bool are_floats = IsFloat(of_a.dtype) && IsFloat(of_b.dtype);
  if (of_a.shape != of_b.shape) {
    difference.what = fmt::format("{} and {}", of_a.shape.ToString(), of_b.shape.ToString());
  } else if (!are_floats && of_a.dtype != of_b.dtype) {
    difference.what = fmt::format("{} and {}", Name(of_a.dtype), Name(of_b.dtype));
  }
  if (!difference.what.empty()) return difference;
  std::vector<Box> boxes;
  AddBoxes(of_a.shape, 0, WholeBox(of_a.shape), &boxes);
  for (const Box& box : boxes) {
    const std::int64_t count = box.count.elements();
    buffers->a.resize(static_cast<std::size_t>(count * SizeOf(of_a.dtype)));
    buffers->b.resize(static_cast<std::size_t>(count * SizeOf(of_b.dtype)));
    RETURN_IF_ERROR(a.Read(of_a.name, box, buffers->a.data()));
    RETURN_IF_ERROR(b.Read(of_b.name, box, buffers->b.data()));
    if (are_floats) {
      AddDifferences(of_a.dtype, buffers->a.data(), of_b.dtype, buffers->b.data(), count, &difference);
    } else if (buffers->a != buffers->b) {
      difference.what = fmt::format("other bytes of {}", Name(of_a.dtype));
      return difference;
    }
  }
  if (difference.differ == 0) return std::nullopt;
  return difference;
}

TensorDifference OnlyIn(const char* side, const TensorInfo& tensor) {
  return {.name = tensor.name,
          .what = fmt::format("only in {}, {}", side, tensor.shape.ToString()),
          .elements = tensor.shape.elements()};
}

constexpr std::size_t kMostShown = 200;  // bytes of a value; fingerprints are a run's own text

std::string OrDash(const std::string& value, bool markdown) {
  if (value.empty()) return "–";
  const std::string shown = Shown(value, kMostShown);
  return markdown ? MarkdownCode(shown) : shown;
}

}  // namespace

absl::StatusOr<Differences> Compare(const Reader& a, const Reader& b) {
  Differences differences{.metadata = CompareMetadata(a.metadata(), b.metadata()), .tensors = {}};
  Buffers buffers;
  for (const TensorInfo& of_a : a.tensors()) {
    const TensorInfo* of_b = b.Find(of_a.name);
    if (of_b == nullptr) {
      differences.tensors.push_back(OnlyIn("a", of_a));
      continue;
    }
    ASSIGN_OR_RETURN(const std::optional<TensorDifference> difference,
                     CompareTensors(a, of_a, b, *of_b, &buffers));
    if (difference)
      differences.tensors.push_back(*difference);
    else
      ++differences.equal;
  }
  for (const TensorInfo& of_b : b.tensors()) {
    if (a.Find(of_b.name) == nullptr) differences.tensors.push_back(OnlyIn("b", of_b));
  }
  return differences;
}

std::string ToText(const Differences& differences, bool markdown) {
  std::string text;
  if (!differences.metadata.empty())
    text += markdown ? "\n| checkpoint | a | b |\n|---|---|---|\n" : "\ncheckpoint\n";
  for (const Differences::Entry& entry : differences.metadata) {
    const std::string name = ShownPath(entry.name);
    const std::string of_a = OrDash(entry.a, markdown), of_b = OrDash(entry.b, markdown);
    text += markdown ? fmt::format("| {} | {} | {} |\n", MarkdownCode(name), of_a, of_b)
                     : fmt::format("  {}: {} → {}\n", name, of_a, of_b);
  }
  text += ToText(differences.tensors, markdown);
  return text + fmt::format("\n{} tensors have the same numbers\n", differences.equal);
}

nlohmann::json ToJson(const Differences& differences) {
  nlohmann::json metadata = nlohmann::json::array();
  for (const Differences::Entry& entry : differences.metadata)
    metadata.push_back({{"name", entry.name}, {"a", entry.a}, {"b", entry.b}});
  return {{"metadata", std::move(metadata)},
          {"tensors", ToJson(differences.tensors)},
          {"equal_tensors", differences.equal}};
}

}  // namespace engine::checkpoint
