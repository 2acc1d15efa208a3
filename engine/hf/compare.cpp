#include "engine/hf/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/hf/folder.h"
#include "engine/hf/model_folder.h"

namespace engine::hf {
namespace {

constexpr std::int64_t kElementsAtATime = std::int64_t{1} << 22;

// Values by their dotted keys; lists are values.
void Flatten(const nlohmann::json& value, const std::string& prefix,
             std::map<std::string, std::string>* out) {
  constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
  for (const auto& [key, item] : value.items()) {
    const std::string name = prefix.empty() ? key : fmt::format("{}.{}", prefix, key);
    if (item.is_object() && !item.empty())
      Flatten(item, name, out);
    else
      (*out)[name] = item.dump(-1, ' ', false, kReplace);
  }
}

void CompareConfigs(const nlohmann::json& a, const nlohmann::json& b, ModelDifferences* differences) {
  std::map<std::string, std::string> of_a, of_b;
  Flatten(a, "", &of_a);
  Flatten(b, "", &of_b);
  std::set<std::string> keys;
  for (const auto& [key, value] : of_a) keys.insert(key);
  for (const auto& [key, value] : of_b) keys.insert(key);
  for (const std::string& key : keys) {
    if (of_a[key] != of_b[key]) differences->keys.push_back({key, of_a[key], of_b[key]});
  }
}

// The type whose numbers can be subtracted; nothing where bytes are compared.
std::optional<DType> FloatOf(const StoredTensor& tensor) {
  const std::optional<DType> dtype = DTypeOf(tensor.type);
  return dtype && checkpoint::IsFloat(*dtype) ? dtype : std::nullopt;
}

void CompareNumbers(const Folder::Entry& a, DType type_a, const Folder::Entry& b, DType type_b,
                    checkpoint::TensorDifference* difference) {
  const std::byte* of_a = a.file->DataOf(*a.tensor).data();
  const std::byte* of_b = b.file->DataOf(*b.tensor).data();
  const std::int64_t width_a = SizeOf(type_a), width_b = SizeOf(type_b);
  for (std::int64_t begin = 0; begin < difference->elements; begin += kElementsAtATime) {
    const std::int64_t count = std::min(kElementsAtATime, difference->elements - begin);
    a.file->Prefetch(*a.tensor, begin * width_a, count * width_a);
    b.file->Prefetch(*b.tensor, begin * width_b, count * width_b);
    checkpoint::AddDifferences(type_a, of_a + begin * width_a, type_b, of_b + begin * width_b, count,
                               difference);
  }
}

// Nothing where they have the same numbers.
std::optional<checkpoint::TensorDifference> CompareTensors(const std::string& name, const Folder::Entry& a,
                                                           const Folder::Entry& b) {
  checkpoint::TensorDifference difference{.name = name, .what = "", .elements = a.tensor->shape.elements()};
  if (a.tensor->shape != b.tensor->shape) {
    difference.what = fmt::format("{} and {}", a.tensor->shape.ToString(), b.tensor->shape.ToString());
    return difference;
  }
  const std::optional<DType> float_a = FloatOf(*a.tensor), float_b = FloatOf(*b.tensor);
  if (float_a && float_b) {
    CompareNumbers(a, *float_a, b, *float_b, &difference);
    a.file->Release(*a.tensor);
    b.file->Release(*b.tensor);
    return difference.differ > 0 ? std::optional(difference) : std::nullopt;
  }
  if (a.tensor->type != b.tensor->type) {
    difference.what = fmt::format("{} and {}", Name(a.tensor->type), Name(b.tensor->type));
    return difference;
  }
  const auto of_a = a.file->DataOf(*a.tensor), of_b = b.file->DataOf(*b.tensor);
  const bool equal = of_a.empty() || std::memcmp(of_a.data(), of_b.data(), of_a.size()) == 0;
  a.file->Release(*a.tensor);
  b.file->Release(*b.tensor);
  if (equal) return std::nullopt;
  difference.what = fmt::format("other bytes of {}", Name(a.tensor->type));
  return difference;
}

std::string OrDash(const std::string& value, bool markdown) {
  if (value.empty()) return "–";
  return markdown ? MarkdownCode(value) : value;
}

}  // namespace

absl::StatusOr<ModelDifferences> CompareModels(const std::string& a, const std::string& b) {
  ModelDifferences differences;
  ASSIGN_OR_RETURN(const nlohmann::json config_a, ReadConfig(a));
  ASSIGN_OR_RETURN(const nlohmann::json config_b, ReadConfig(b));
  CompareConfigs(config_a, config_b, &differences);
  ASSIGN_OR_RETURN(const Folder folder_a, Folder::Open(a));
  ASSIGN_OR_RETURN(const Folder folder_b, Folder::Open(b));
  std::set<std::string> names;
  for (const Folder* folder : {&folder_a, &folder_b}) {
    for (const std::string& name : folder->names()) names.insert(name);
  }
  for (const std::string& name : names) {
    const std::optional<Folder::Entry> of_a = folder_a.Find(name), of_b = folder_b.Find(name);
    if (!of_a || !of_b) {
      const Folder::Entry& there = of_a ? *of_a : *of_b;
      differences.tensors.push_back(
          {.name = name,
           .what = fmt::format("only in {}, {}", of_a ? "a" : "b", there.tensor->shape.ToString()),
           .elements = there.tensor->shape.elements()});
      continue;
    }
    if (const auto difference = CompareTensors(name, *of_a, *of_b))
      differences.tensors.push_back(*difference);
    else
      ++differences.equal;
  }
  return differences;
}

std::string ToText(const ModelDifferences& differences, const std::string& a, const std::string& b,
                   bool markdown) {
  std::string text = fmt::format("a: {}\nb: {}\n", a, b);
  if (markdown) text = fmt::format("a: `{}`, b: `{}`\n", a, b);
  if (!differences.keys.empty()) {
    text += markdown ? "\n| key | a | b |\n|---|---|---|\n" : "\nconfig.json\n";
    for (const ModelDifferences::Key& key : differences.keys) {
      const std::string of_a = OrDash(key.a, markdown), of_b = OrDash(key.b, markdown);
      text += markdown ? fmt::format("| {} | {} | {} |\n", MarkdownCode(key.key), of_a, of_b)
                       : fmt::format("  {}: {} → {}\n", key.key, of_a, of_b);
    }
  }
  text += checkpoint::ToText(differences.tensors, markdown);
  return text + fmt::format("\n{} tensors have the same numbers\n", differences.equal);
}

nlohmann::json ToJson(const ModelDifferences& differences) {
  nlohmann::json json = {{"config", nlohmann::json::array()},
                         {"tensors", checkpoint::ToJson(differences.tensors)},
                         {"equal_tensors", differences.equal}};
  for (const ModelDifferences::Key& key : differences.keys)
    json["config"].push_back({{"key", key.key}, {"a", key.a}, {"b", key.b}});
  return json;
}

}  // namespace engine::hf
