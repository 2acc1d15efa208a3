// A config.json of a recipe: what a family's rows and features read off the model's graph. That it is right is not taken on
// trust: the config is imported again, and the graph that comes of it must compute what the recipe's does.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/base/status.h"
#include "engine/hf/family.h"
#include "engine/hf/family_def.h"
#include "engine/recipe/shipped.h"

namespace engine::hf {
namespace {

using nlohmann::json;

// Of the release whose form of keys is written; 5.x reads it too.
constexpr std::string_view kWrittenVersion = "4.57.0";

// The value that a row writes; null: it writes none.
json ValueOf(const KeyRow& row, const GraphView& graph) {
  switch (row.is) {
    case Is::kCount:
      if (const auto value = graph.Whole(row.from)) return *value;
      return nullptr;
    case Is::kNumber:
      if (const auto value = graph.Number(row.from)) return *value;
      return nullptr;
    case Is::kFlag:
      if (const auto value = graph.Flag(row.from)) return *value;
      return nullptr;
    case Is::kAct: {
      const auto act = graph.Act(row.from);
      if (!act) return nullptr;
      // The class's own name for it, where it has one.
      if (row.initial.is_string() && ActOfName(row.initial.get_ref<const std::string&>()) == *act)
        return row.initial;
      return NameOfAct(*act);
    }
    case Is::kFixed:
      return row.initial;
    case Is::kUnread:
    case Is::kIgnored:
      return nullptr;
  }
  return nullptr;
}

bool Writes(const KeyRow& row) {
  return row.is != Is::kIgnored && row.is != Is::kFixed && row.is != Is::kUnread &&
         row.from.kind != Place::Kind::kNone;
}

json DerivedConfig(const Family& family, const recipe::Recipe& recipe, const GraphView& graph,
                   Remarks* problems) {
  Exporting out{.graph = graph, .recipe = recipe, .config = json::object(), .problems = {}};
  for (const KeyRow& row : family.keys) {
    json value = ValueOf(row, graph);
    if (value.is_null() && Writes(row)) {
      out.problems.push_back(fmt::format("there is no '{}' that {}'s {} would be read from", row.from.name,
                                         family.name, row.key));
    } else if (!value.is_null()) {
      out.config[std::string(row.key)] = std::move(value);
    }
  }
  for (const Feature& feature : family.features) feature.write(out);
  out.config["architectures"] = json::array({family.architectures.front()});
  out.config["model_type"] = family.model_types.front();
  out.config["transformers_version"] = kWrittenVersion;
  out.config["dtype"] = "bfloat16";
  out.config["initializer_range"] = recipe.model.init_std;
  *problems = std::move(out.problems);
  return std::move(out.config);
}

// What separates the model of a config from the recipe's; empty: nothing does.
std::vector<std::string> DifferencesFrom(const json& config, const Family& family, const graph::Graph& ours,
                                         ImportedModel* model) {
  std::vector<std::string> differences;
  for (const bool long_sequences : {false, true}) {
    absl::StatusOr<ImportedModel> imported = ImportFor(config, "config.json", long_sequences);
    if (!imported.ok()) return {Message(imported.status())};
    if (long_sequences && imported->recipe == model->recipe) break;
    const absl::StatusOr<graph::Graph> theirs = GraphOfText(imported->recipe, "config.json");
    if (!theirs.ok()) return {Message(theirs.status())};
    *model = *std::move(imported);
    std::vector<std::string> found = Differences(ours, *theirs, family.name);
    if (found.empty()) return {};
    if (differences.empty()) differences = std::move(found);
  }
  return differences;
}

// Whether a row's key comes to the same in both.
bool ComesToTheSame(const KeyRow& row, const json& a, const json& b) {
  if (row.is == Is::kAct && a.is_string() && b.is_string())
    return ActOfName(a.get_ref<const std::string&>()) == ActOfName(b.get_ref<const std::string&>());
  return a == b;
}

void Replace(const std::vector<std::string_view>& keys, const json& from, json* into) {
  for (const std::string_view key : keys) {
    into->erase(std::string(key));
    if (const auto value = from.find(key); value != from.end()) (*into)[std::string(key)] = *value;
  }
}

// The source with the values that are others now; with keys that it has not only where `adds`.
json Merged(const Family& family, const json& source, const json& derived, bool adds) {
  json merged = source;
  for (const KeyRow& row : family.keys) {
    if (!Writes(row)) continue;
    std::string name(row.key);
    for (const std::string_view alias : row.aliases) {
      if (source.contains(alias)) name = alias;
    }
    const json& value = derived.at(std::string(row.key));
    const auto old = source.find(name);
    if (old == source.end() ? !adds : ComesToTheSame(row, *old, value)) continue;
    merged[name] = value;
  }
  for (const Feature& feature : family.features) Replace(feature.keys, derived, &merged);
  return merged;
}

struct Candidate {
  std::optional<ExportedModel> model;
  std::vector<std::string> differences;
  bool has_config =
      false;  // of the family, which comes to some model; else the differences are why there is none
};

Candidate Exported(const Family& family, json config, const ImportedModel& imported) {
  return {.model = ExportedModel{.family = std::string(family.name),
                                 .config = std::move(config),
                                 .rows = imported.rows,
                                 .sizes = imported.sizes},
          .differences = {},
          .has_config = true};
}

// A config that keeps as much of the source as holds.
std::optional<Candidate> FromSource(const Family& family, const json& source, const json& derived,
                                    const graph::Graph& ours) {
  ImportedModel imported;
  if (DifferencesFrom(source, family, ours, &imported).empty()) return Exported(family, source, imported);
  if (derived.is_null()) return std::nullopt;
  json merged = Merged(family, source, derived, /*adds=*/false);
  if (!DifferencesFrom(merged, family, ours, &imported).empty())
    merged = Merged(family, source, derived, /*adds=*/true);
  if (!DifferencesFrom(merged, family, ours, &imported).empty()) return std::nullopt;
  // Where the source says a feature in another form, that form stays.
  for (const Feature& feature : family.features) {
    json trial = merged;
    Replace(feature.keys, source, &trial);
    if (trial != merged && DifferencesFrom(trial, family, ours, &imported).empty()) merged = std::move(trial);
  }
  if (!DifferencesFrom(merged, family, ours, &imported).empty()) return std::nullopt;
  return Exported(family, std::move(merged), imported);
}

Candidate TryFamily(const Family& family, const recipe::Recipe& recipe, const graph::Graph& ours,
                    const GraphView& view, const json* source) {
  Candidate candidate;
  json derived = DerivedConfig(family, recipe, view, &candidate.differences);
  const bool complete = candidate.differences.empty();
  if (source != nullptr) {
    if (std::optional<Candidate> kept = FromSource(family, *source, complete ? derived : json(), ours))
      return *std::move(kept);
  }
  if (!complete) return candidate;
  ImportedModel imported;
  candidate.differences = DifferencesFrom(derived, family, ours, &imported);
  candidate.has_config = !imported.family.empty();
  if (candidate.differences.empty()) return Exported(family, std::move(derived), imported);
  return candidate;
}

// Of a source its text's keys, without what the weights that are written do not have.
json OwnKeys(const json& source) {
  json own = source;
  for (const Family& family : Families()) {
    if (family.nested.empty() || !source.is_object()) continue;
    const auto type = source.find("model_type");
    const auto inner = source.find(family.nested);
    const bool is = type != source.end() && type->is_string() && inner != source.end() &&
                    inner->is_object() &&
                    std::find(family.model_types.begin(), family.model_types.end(),
                              type->get_ref<const std::string&>()) != family.model_types.end();
    if (is) own = *inner;
  }
  if (own.is_object()) own.erase("quantization_config");
  return own;
}

bool IsOf(const Family& family, const json& source) {
  const auto type = source.find("model_type");
  return type != source.end() && type->is_string() &&
         std::find(family.model_types.begin(), family.model_types.end(),
                   type->get_ref<const std::string&>()) != family.model_types.end();
}

// That of the source first.
std::vector<const Family*> CandidatesOf(const json* source, const std::string& name) {
  std::vector<const Family*> candidates;
  for (const Family& family : Families()) {
    if (!family.nested.empty() || (!name.empty() && family.name != name)) continue;
    candidates.push_back(&family);
  }
  if (source != nullptr) {
    std::stable_partition(candidates.begin(), candidates.end(),
                          [&](const Family* family) { return IsOf(*family, *source); });
  }
  return candidates;
}

}  // namespace

absl::StatusOr<ExportedModel> ExportConfig(const recipe::Recipe& recipe, const json* source,
                                           const std::string& family) {
  const graph::Graph ours = GraphOfRecipe(recipe);
  const GraphView view(ours);
  const json own = source != nullptr ? OwnKeys(*source) : json();
  const std::vector<const Family*> candidates = CandidatesOf(source != nullptr ? &own : nullptr, family);
  if (candidates.empty()) {
    return InvalidArgument("there is no family '{}' that can be written; there are {}", family,
                           fmt::join(FamilyNames(), ", "));
  }
  const Family* nearest = nullptr;
  Candidate least;
  for (const Family* candidate : candidates) {
    Candidate tried = TryFamily(*candidate, recipe, ours, view,
                                source != nullptr && IsOf(*candidate, own) ? &own : nullptr);
    if (tried.model) return *std::move(tried.model);
    const auto distance = [](const Candidate& c) { return std::pair(!c.has_config, c.differences.size()); };
    if (nearest != nullptr && distance(tried) >= distance(least)) continue;
    nearest = candidate;
    least = std::move(tried);
  }
  // Without the files that families are made of nothing was compared.
  for (const Family* candidate : candidates) {
    const std::string blocks(candidate->blocks);
    if (!recipe::IsShipped(blocks)) continue;
    const absl::Status found = recipe::FindShipped(blocks).status();
    if (!found.ok())
      return FailedPrecondition(
          "files that come with the program are missing, by which it knows the families: {}", Message(found));
  }
  std::string text =
      fmt::format("no family expresses this model exactly; from {}, the nearest, it differs:", nearest->name);
  if (!family.empty()) text = fmt::format("the family {} does not express this model exactly:", family);
  for (const std::string& difference : least.differences) text += "\n  " + difference;
  return absl::FailedPreconditionError(text);
}

void SetDtype(std::string_view dtype, json* config) {
  const bool old = config->contains("torch_dtype") && !config->contains("dtype");
  (*config)[old ? "torch_dtype" : "dtype"] = dtype;
}

std::string ConfigText(const json& config) {
  return config.dump(2, ' ', true, json::error_handler_t::replace) + "\n";
}

}  // namespace engine::hf
