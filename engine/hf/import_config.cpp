#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "engine/base/diagnostic.h"
#include "engine/base/json.h"
#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/hf/family.h"
#include "engine/hf/family_def.h"

namespace engine::hf {
namespace {

using nlohmann::json;

// Bounds under which no product of dims of one parameter overflows.
std::int64_t MostOf(std::string_view dim) {
  if (dim == "L" || dim == "J") return 2000;
  if (dim == "V") return std::int64_t{1} << 28;
  if (dim == "H" || dim == "K" || dim == "X") return 65536;
  return 1 << 20;
}

// "H", "D//H", "4*D": what a count is where the file does not say it. 0: it comes to nothing, or needs a dim that has been
// reported.
std::int64_t DefaultCount(const std::string& expression, const Draft& draft) {
  const auto dim = [&](const std::string& name) { return draft.Dim(name).value_or(0); };
  if (const std::size_t slash = expression.find("//"); slash != std::string::npos)
    return dim(expression.substr(0, slash)) / std::max<std::int64_t>(1, dim(expression.substr(slash + 2)));
  if (const std::size_t star = expression.find('*'); star != std::string::npos)
    return std::stoll(expression.substr(0, star)) * dim(expression.substr(star + 1));
  return dim(expression);
}

// The name under which the file has a row's key: one of its aliases, or the key itself.
std::string_view NameInFile(const KeyRow& row, Importing& in) {
  std::string_view name = row.key;
  for (const std::string_view alias : row.aliases) {
    if (!in.keys.Has(alias)) continue;
    if (in.keys.Has(name) && *in.keys.Take(name) != *in.keys.Take(alias))
      in.keys.Refuse(alias, fmt::format("it is another name of {}, which has another value", name));
    if (!in.keys.Has(name)) name = alias;
  }
  return name;
}

void ReadCount(const KeyRow& row, std::string_view key, Importing& in) {
  std::int64_t most = 1 << 20;
  for (const std::string_view to : row.to) most = to.find('/') == to.npos ? MostOf(to) : most;
  std::optional<std::int64_t> value = in.keys.Whole(key, 1, most);
  if (!value && in.keys.Has(key)) return;  // reported
  const json& otherwise = in.keys.IsNull(key) && !row.if_null.is_null() ? row.if_null : row.initial;
  if (!value && otherwise.is_string()) value = DefaultCount(otherwise.get<std::string>(), in.draft);
  if (!value && otherwise.is_number()) value = otherwise.get<std::int64_t>();
  if (!value || *value < 1) {
    if (row.initial.is_null() || in.problems->empty()) in.Problem(fmt::format("{} is missing", key));
    return;
  }
  for (const std::string_view to : row.to) {
    if (to.find('/') == to.npos) {
      in.draft.SetDim(to, *value);
    } else {
      in.draft.Set(to, *value);
    }
  }
}

void ReadNumber(const KeyRow& row, std::string_view key, Importing& in) {
  std::optional<double> value = in.keys.Number(key, 0, 1e15);
  if (!value && in.keys.Has(key)) return;
  if (!value && row.initial.is_number()) value = row.initial.get<double>();
  if (!value) return in.Problem(fmt::format("{} is missing", key));
  for (const std::string_view to : row.to) in.draft.Set(to, *value);
}

// Steps of ours have no flag that is on by default, so that one that is off is not said.
void ReadFlag(const KeyRow& row, std::string_view key, Importing& in) {
  std::optional<bool> value = in.keys.Flag(key);
  if (!value && in.keys.Has(key)) return;
  if (!value && row.initial.is_boolean()) value = row.initial.get<bool>();
  if (!value) return in.Problem(fmt::format("{} is missing", key));
  for (const std::string_view to : row.to) in.draft.SetFlag(to, *value);
}

void ReadAct(const KeyRow& row, std::string_view key, Importing& in) {
  std::optional<std::string> value = in.keys.Word(key);
  if (!value && in.keys.Has(key)) return;
  if (!value && row.initial.is_string()) value = row.initial.get<std::string>();
  if (!value) return in.Problem(fmt::format("{} is missing", key));
  const std::string_view act = ActOfName(*value);
  if (act.empty()) {
    return in.keys.Refuse(
        key,
        "no activation that is supported: silu, gelu, gelu_pytorch_tanh, quick_gelu, relu, relu2 and kin");
  }
  for (const std::string_view to : row.to) in.draft.SetWord(to, act);
}

void ReadRow(const KeyRow& row, Importing& in) {
  const std::string_view key = NameInFile(row, in);
  switch (row.is) {
    case Is::kCount:
      return ReadCount(row, key, in);
    case Is::kNumber:
      return ReadNumber(row, key, in);
    case Is::kFlag:
      return ReadFlag(row, key, in);
    case Is::kAct:
      return ReadAct(row, key, in);
    case Is::kFixed:
    case Is::kUnread: {
      const json* value = in.keys.Take(key);
      if (value != nullptr && *value != row.initial)
        in.keys.Refuse(key, fmt::format("only {} is supported{}{}", ShownJson(row.initial),
                                        row.note.empty() ? "" : ": ", row.note));
      return;
    }
    case Is::kIgnored:
      if (const json* value = in.keys.Take(key); value != nullptr)
        in.notes.push_back(fmt::format("{} = {}: {}", key, ShownJson(*value), row.note));
      return;
  }
}

// Common keys that the family has no row of its own for.
void ReadCommon(Importing& in) {
  for (const KeyRow& row : CommonKeys()) {
    if (!in.keys.IsTaken(row.key)) ReadRow(row, in);
  }
}

void ReadQuantization(Importing& in) {
  const json* quantization = in.keys.Take("quantization_config");
  if (quantization == nullptr) return;
  const json method = quantization->is_object() ? quantization->value("quant_method", json()) : json();
  const json block = quantization->is_object() ? quantization->value("weight_block_size", json()) : json();
  if (method != "fp8" || block != json({128, 128})) {
    return in.keys.Refuse(
        "quantization_config",
        "only FP8 with a scale for each block of 128 x 128 is read; ask for the weights that "
        "were quantised");
  }
  in.notes.emplace_back(
      "quantization_config: weights in FP8 are multiplied by their blocks' scales when they are read");
}

void ReadArchitectures(const Family& family, const json& config, Remarks* problems) {
  const auto found = config.find("architectures");
  if (found == config.end() || found->is_null()) return;
  const bool good = found->is_array() && !found->empty() &&
                    std::all_of(found->begin(), found->end(), [&](const json& name) {
                      return name.is_string() &&
                             std::find(family.architectures.begin(), family.architectures.end(),
                                       name.get_ref<const std::string&>()) != family.architectures.end();
                    });
  if (!good) {
    problems->push_back(fmt::format("architectures = {}: only {} is supported", ShownJson(*found),
                                    fmt::join(family.architectures, " or ")));
  }
}

void FillSizes(const Draft& draft, Sizes* sizes) {
  const std::pair<std::string_view, std::int64_t*> places[] = {
      {"D", &sizes->hidden},   {"V", &sizes->vocab},    {"H", &sizes->heads},   {"K", &sizes->kv_heads},
      {"E", &sizes->head_dim}, {"F", &sizes->ffn},      {"X", &sizes->experts}, {"R", &sizes->rope_dim},
      {"N", &sizes->nope_dim}, {"U", &sizes->value_dim}};
  for (const auto& [name, place] : places) {
    if (*place == 0) *place = draft.Dim(name).value_or(0);
  }
  if (sizes->kv_heads == 0) sizes->kv_heads = sizes->heads;
}

const Family* FamilyOfType(const std::string& type) {
  for (const Family& family : Families()) {
    if (std::find(family.model_types.begin(), family.model_types.end(), type) != family.model_types.end())
      return &family;
  }
  return nullptr;
}

absl::StatusOr<const Family*> FamilyOf(const json& config, const std::string& path) {
  if (!config.is_object())
    return InvalidArgument("{}: error: a model's configuration is an object, and this is {}", path,
                           TypeOf(config));
  const auto type = config.find("model_type");
  if (type == config.end() || !type->is_string()) {
    return InvalidArgument(
        "{}: error: it has no \"model_type\" that is a string, so that nothing says what it is", path);
  }
  const auto& name = type->get_ref<const std::string&>();
  if (const Family* family = FamilyOfType(name); family != nullptr) return family;
  std::vector<std::string> known;
  for (const Family& family : Families())
    known.insert(known.end(), family.model_types.begin(), family.model_types.end());
  const std::string nearest = NearestWord(name, known);
  return InvalidArgument("{}: error: model_type \"{}\" is not supported{}; there are {}", path, Shown(name),
                         nearest.empty() ? "" : fmt::format("; did you mean \"{}\"?", nearest),
                         fmt::join(known, ", "));
}

absl::Status Failed(const std::string& path, const Family& family, const Remarks& problems) {
  std::string text = fmt::format("{}: error: {} of a model of type {} cannot be imported:", path,
                                 problems.size() == 1 ? "a key" : fmt::format("{} keys", problems.size()),
                                 family.model_types.front());
  for (const std::string& problem : problems) text += "\n  " + problem;
  return absl::InvalidArgumentError(text);
}

void ReadAll(const Family& family, Importing& in) {
  for (const KeyRow& row : family.keys) ReadRow(row, in);
  for (const Feature& feature : family.features) feature.read(in);
  if (!in.keys.IsTaken("quantization_config")) ReadQuantization(in);
  ReadCommon(in);
  for (const std::string& key : in.keys.Rest()) {
    in.keys.Refuse(key, fmt::format("what it asks for is not known of {}", family.model_types.front()));
  }
}

// The keys around those of the text.
void ReadAround(const Family& family, const json& config, Importing* inner) {
  ConfigKeys keys(config, "", inner->problems);
  Importing in{.keys = keys,
               .draft = Draft(""),
               .sizes = {},
               .rows = {},
               .other_rows = {},
               .ignored = {},
               .notes = {},
               .problems = inner->problems};
  keys.Take(family.nested);
  for (const KeyRow& row : family.around) ReadRow(row, in);
  ReadCommon(in);
  for (const std::string& key : keys.Rest())
    keys.Refuse(key, fmt::format("what it asks for is not known of {}", family.model_types.front()));
  inner->notes.insert(inner->notes.begin(), in.notes.begin(), in.notes.end());
}

}  // namespace

absl::StatusOr<ImportedModel> ImportConfig(const json& config, const std::string& path) {
  return ImportFor(config, path, /*long_sequences=*/false);
}

absl::StatusOr<ImportedModel> ImportFor(const json& config, const std::string& path, bool long_sequences) {
  ASSIGN_OR_RETURN(const Family* const family, FamilyOf(config, path));
  Remarks problems;
  ReadArchitectures(*family, config, &problems);
  const json* own = &config;
  if (!family->nested.empty()) {
    const auto inner = config.find(family->nested);
    if (inner == config.end() || !inner->is_object()) {
      return InvalidArgument(
          "{}: error: a model of type {} has its text's keys in an object \"{}\", and there is none", path,
          family->model_types.front(), family->nested);
    }
    own = &*inner;
  }
  ConfigKeys keys(*own, family->nested.empty() ? "" : fmt::format("{}.", family->nested), &problems);
  Importing in{.keys = keys,
               .draft = Draft(family->blocks),
               .sizes = {},
               .rows = family->weights,
               .other_rows = family->other_weights,
               .ignored = family->ignored,
               .notes = {},
               .problems = &problems,
               .long_sequences = long_sequences};
  ReadAll(*family, in);
  if (own != &config) ReadAround(*family, config, &in);
  if (!problems.empty()) return Failed(path, *family, problems);
  FillSizes(in.draft, &in.sizes);
  ImportedModel model{.family = std::string(family->name),
                      .recipe = in.draft.Text(),
                      .notes = std::move(in.notes),
                      .rows = std::move(in.rows),
                      .sizes = in.sizes,
                      .ignored = std::move(in.ignored),
                      .other_rows = std::move(in.other_rows)};
  // What is wrong with the numbers together: heads that do not make whole groups, an odd width of heads.
  const auto graph = GraphOfText(model.recipe, path);
  if (absl::IsNotFound(graph.status())) return graph.status();  // of the installation's blocks
  if (!graph.ok())
    return InvalidArgument("{}: error: its numbers make no model: {}", path, Message(graph.status()));
  return model;
}

std::vector<std::string_view> FamilyNames() {
  std::vector<std::string_view> names;
  for (const Family& family : Families()) names.push_back(family.name);
  return names;
}

}  // namespace engine::hf
