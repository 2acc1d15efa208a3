#include "engine/recipe/study.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "engine/base/status.h"
#include "engine/recipe/document.h"
#include "engine/recipe/parse.h"
#include "engine/recipe/print.h"
#include "engine/recipe/shipped.h"
#include "engine/recipe/source.h"

namespace engine::recipe {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostVariants = 1000;
constexpr std::size_t kLongestName = 100;  // bytes; file systems take 255
constexpr const char* kBaseName = "base";
constexpr const char* kValidationLoss = "validation_loss";
constexpr const char* kTrainLoss = "train_loss";

// One value, or table of values, that a list of the study gives to a key.
struct FactorLevel {
  Settings settings;
  Mark mark;
};
using Factor = std::vector<FactorLevel>;

// What the file names, before any recipe is resolved.
struct Named {
  std::string name;
  Settings settings;
  Mark mark;
};

bool IsFolderName(std::string_view name) {
  const auto allowed = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '+' || c == '=' || c == ',' || c == '.';
  };
  return !name.empty() && name.size() <= kLongestName && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), allowed);
}

// "activation=swiglu,hidden=341": the last words of keys, values without quotes.
std::string NameOf(const Settings& settings) {
  std::string name;
  for (const auto& [key, setting] : settings.values) {
    std::string value = ToToml(setting.value);
    std::string kept;
    for (const char c : value) {
      if (c == '"' || c == '[' || c == ']' || c == ' ') continue;
      kept += IsFolderName(std::string("x") + c) ? c : '-';
    }
    name += fmt::format("{}{}={}", name.empty() ? "" : ",", key.substr(key.rfind('.') + 1), kept);
  }
  return name;
}

class StudyParser {
 public:
  StudyParser(const Document& document, std::vector<Diagnostic>* diagnostics)
      : document_(document), source_(*document.source), diagnostics_(diagnostics) {}

  // What [study] says; `base` stays empty where it was not usable.
  void Parse() {
    for (const Entry& entry : document_.root.entries) {
      const bool table = entry.value.kind == Node::Kind::kTable;
      if (!IsSection(entry.key)) {
        Unknown(entry, table ? "section" : "key", "", {kSections.begin(), kSections.end()});
      } else if (!table) {
        Error(entry.value.mark, fmt::format("{} must be a table, found {}", entry.key, Describe(entry.value)),
              fmt::format("write [{}], and its keys below", entry.key));
      } else if (entry.key == "study") {
        ParseHead(entry.value);
      } else {
        ParseVariants(entry);
      }
    }
    if (broken_) return;
    if (head_.line == 0) head_ = {1, 1, 1};
    if (base.empty()) Error(head_, "study.base is required", "the path of a recipe, relative to the study");
    if (variants_at_.line == 0) {
      Error(head_, "a study needs variants", "one of [variants.NAME], [grid] and [one_at_a_time]");
    }
  }

  std::string base;
  Mark base_mark;
  std::string title;
  std::string metric = kValidationLoss;
  Mark metric_mark;  // the base's where no metric is given
  std::int64_t metric_iterations = Study{}.metric_iterations;
  std::vector<std::int64_t> seeds;
  std::vector<Named> variants;
  bool alone = false;  // the base is a variant too, whether or not it is named
  bool skips_base = false;

 private:
  static constexpr std::array<const char*, 4> kSections = {"study", "variants", "grid", "one_at_a_time"};

  static bool IsSection(const std::string& key) {
    return std::find(kSections.begin(), kSections.end(), key) != kSections.end();
  }

  void Error(const Mark& mark, std::string message, std::string hint = "") {
    broken_ = true;
    diagnostics_->push_back(source_.Error(mark, std::move(message), std::move(hint)));
  }

  void Unknown(const Entry& entry, const char* what, const std::string& table,
               const std::vector<std::string>& known) {
    const std::string nearest = NearestWord(entry.key, known);
    Error(entry.key_mark,
          fmt::format("unknown {} '{}'{}", what, Shown(entry.key),
                      table.empty() ? " of a study" : fmt::format(" in [{}]", table)),
          nearest.empty() ? "" : fmt::format("did you mean '{}'?", nearest));
  }

  bool Is(const Entry& entry, Node::Kind kind, const char* what) {
    if (entry.value.kind == kind) return true;
    Error(entry.value.mark,
          fmt::format("study.{} must be {}, found {}", entry.key, what, Describe(entry.value)));
    return false;
  }

  void ParseHead(const Node& table) {
    head_ = table.mark;
    for (const Entry& entry : table.entries) {
      const Node& value = entry.value;
      if (entry.key == "base") {
        if (!Is(entry, Node::Kind::kString, "a path")) continue;
        base = value.string;
        base_mark = value.mark;
        if (metric_mark.line == 0) metric_mark = value.mark;
      } else if (entry.key == "title") {
        if (Is(entry, Node::Kind::kString, "a string")) title = value.string;
      } else if (entry.key == "metric") {
        if (Is(entry, Node::Kind::kString, "a string")) ParseMetric(value);
      } else if (entry.key == "metric_iterations") {
        if (!Is(entry, Node::Kind::kInteger, "an integer")) continue;
        metric_iterations = value.integer;
        if (value.integer < 1) {
          Error(value.mark,
                fmt::format("study.metric_iterations must be at least 1, found {}", value.integer));
        }
      } else if (entry.key == "seeds") {
        if (Is(entry, Node::Kind::kArray, "a list of integers")) ParseSeeds(value);
      } else {
        Unknown(entry, "key", "study", {"base", "title", "metric", "metric_iterations", "seeds"});
      }
    }
  }

  void ParseMetric(const Node& value) {
    metric = value.string;
    metric_mark = value.mark;
    if (metric == kValidationLoss || metric == kTrainLoss) return;
    const std::string nearest = NearestWord(metric, {kValidationLoss, kTrainLoss});
    Error(value.mark,
          fmt::format("study.metric must be one of \"{}\", \"{}\", found {}", kValidationLoss, kTrainLoss,
                      Describe(value)),
          nearest.empty() ? "" : fmt::format("did you mean \"{}\"?", nearest));
  }

  void ParseSeeds(const Node& list) {
    if (list.items.empty())
      Error(list.mark, "study.seeds is empty", "leave it out to train with the base's seed");
    for (const Node& item : list.items) {
      const std::optional<Settings> seed = SettingsOf({"training", "seed"}, item);
      if (!seed) continue;
      const std::int64_t number = std::get<std::int64_t>(seed->values.at("training.seed").value);
      if (std::find(seeds.begin(), seeds.end(), number) != seeds.end()) {
        Error(item.mark, fmt::format("seed {} is there twice", number));
      }
      seeds.push_back(number);
    }
  }

  // The settings of a recipe in which the keys, one below the other, lead to `leaf`; nullopt (reported) where
  // they are not lawful.
  std::optional<Settings> SettingsOf(const std::vector<std::string>& keys, const Node& leaf) {
    Node node = leaf;
    for (auto key = keys.rbegin(); key != keys.rend(); ++key) {
      Node table;
      table.kind = Node::Kind::kTable;
      table.mark = leaf.mark;
      table.entries.push_back({*key, key == keys.rbegin() ? key_mark_ : leaf.mark, std::move(node)});
      node = std::move(table);
    }
    return Checked({document_.source, std::move(node)});
  }

  // What a variant says counts as set on top of the base: a mistake that both make is the variant's.
  std::optional<Settings> Checked(const Document& document) {
    const std::size_t before = diagnostics_->size();
    Settings settings = ParseSettings(document, Provenance::Origin::kSet, nullptr, diagnostics_);
    if (diagnostics_->size() == before) return settings;
    broken_ = true;
    return std::nullopt;
  }

  void ParseVariants(const Entry& section) {
    if (variants_at_.line != 0) {
      Error(section.key_mark,
            fmt::format("[{}] beside [{}]: a study has one of them", section.key, variants_in_));
      return;
    }
    variants_at_ = section.key_mark;
    variants_in_ = section.key;
    if (section.key == "variants") {
      ParseList(section.value);
      return;
    }
    std::vector<Factor> factors;
    std::vector<std::string> keys;
    FindFactors(section.value, &keys, &factors);
    if (broken_) return;
    if (factors.empty()) {
      Error(section.key_mark, fmt::format("[{}] is empty", section.key),
            "such as optimizer.learning_rate = [1e-3, 3e-3]");
      return;
    }
    if (section.key == "grid") {
      AddGrid(factors);
    } else {
      alone = skips_base = true;
      for (const Factor& factor : factors) {
        for (const FactorLevel& choice : factor) Add(choice.settings, choice.mark);
      }
    }
  }

  void ParseList(const Node& table) {
    alone = true;
    for (const Entry& entry : table.entries) {
      if (!IsFolderName(entry.key)) {
        Error(entry.key_mark, fmt::format("'{}' is no name for a variant", Shown(entry.key)),
              fmt::format("letters, digits and _ - + = , . and at most {} of them: a folder is called so",
                          kLongestName));
        continue;
      }
      if (entry.value.kind != Node::Kind::kTable) {
        Error(entry.value.mark,
              fmt::format("variants.{} must be a table, found {}", entry.key, Describe(entry.value)),
              fmt::format("write [variants.{}], and keys of a recipe below", entry.key));
        continue;
      }
      if (const std::optional<Settings> settings = Checked({document_.source, entry.value})) {
        variants.push_back({entry.key, *settings, entry.key_mark});
      }
    }
    if (table.entries.empty())
      Error(table.mark, "[variants] is empty", "write [variants.NAME], and keys of a recipe below");
  }

  // Lists anywhere below a table: each is a factor, with the keys that lead to it.
  void FindFactors(const Node& table, std::vector<std::string>* keys, std::vector<Factor>* factors) {
    for (const Entry& entry : table.entries) {
      keys->push_back(entry.key);
      if (entry.value.kind == Node::Kind::kTable) {
        FindFactors(entry.value, keys, factors);
      } else if (entry.value.kind != Node::Kind::kArray || entry.value.items.empty()) {
        Error(entry.value.mark,
              fmt::format("{} must be a list of the values to try, found {}", entry.key,
                          entry.value.kind == Node::Kind::kArray ? "an empty one" : Describe(entry.value)));
      } else {
        key_mark_ = entry.key_mark;
        Factor& factor = factors->emplace_back();
        for (const Node& item : entry.value.items) {
          if (std::optional<Settings> settings = SettingsOf(*keys, item)) {
            factor.push_back({*std::move(settings), item.mark});
          }
        }
      }
      keys->pop_back();
    }
  }

  void AddGrid(const std::vector<Factor>& factors) {
    std::size_t count = 1;
    for (const Factor& factor : factors) {
      count *= factor.size();
      if (count <= kMostVariants) continue;
      Error(variants_at_, fmt::format("the grid has more than {} variants", kMostVariants));
      return;
    }
    for (std::size_t i = 0; i < count; ++i) {  // the last factor varies fastest
      Settings settings;
      std::size_t rest = i;
      for (auto factor = factors.rbegin(); factor != factors.rend(); ++factor) {
        settings.Override((*factor)[rest % factor->size()].settings);
        rest /= factor->size();
      }
      Add(settings, variants_at_);
    }
  }

  void Add(const Settings& settings, const Mark& mark) {
    std::string name = NameOf(settings);
    if (!IsFolderName(name)) {
      Error(mark, fmt::format("the variant would be called '{}', which is no name for a folder", Shown(name)),
            "give it a name: [variants.NAME]");
      return;
    }
    variants.push_back({std::move(name), settings, mark});
  }

  const Document& document_;
  const Source& source_;
  std::vector<Diagnostic>* diagnostics_;
  bool broken_ = false;
  Mark head_;
  Mark key_mark_;  // of the key whose values are being read
  Mark variants_at_;
  std::string variants_in_;
};

// The variants' recipes, each different from the others.
class VariantLoader {
 public:
  VariantLoader(const StudyParser& parsed, const Source& source, StudyResult* result)
      : parsed_(parsed), source_(source), result_(*result), diagnostics_(result->diagnostics) {}

  void Load(const LoadOptions& options) {
    const std::string path = PathFrom(source_.name(), parsed_.base);
    LoadResult base = recipe::Load(path, options);
    if (!base.ok()) {
      diagnostics_.push_back(source_.Error(parsed_.base_mark, "the base recipe has errors"));
      diagnostics_.insert(diagnostics_.end(), base.diagnostics.begin(), base.diagnostics.end());
      return;
    }
    result_.study.base = std::move(base.recipe);
    for (const Named& named : parsed_.variants) {
      LoadResult loaded = recipe::Load(path, options, named.settings);
      diagnostics_.insert(diagnostics_.end(), loaded.diagnostics.begin(), loaded.diagnostics.end());
      if (loaded.ok()) Add(named, std::move(loaded.recipe));
    }
    if (parsed_.alone && !has_base_) AddBase();
    for (const Variant& variant : result_.study.variants) CheckMetric(variant);
  }

 private:
  void Add(const Named& named, Recipe recipe) {
    const bool is_base = Diff(result_.study.base, recipe).empty();
    if (is_base && parsed_.skips_base) return;  // it is there under the base's name
    has_base_ = has_base_ || is_base;
    for (const Variant& other : result_.study.variants) {
      const bool same_name = other.name == named.name;
      if (!same_name && !Diff(other.recipe, recipe).empty()) continue;
      diagnostics_.push_back(source_.Error(
          named.mark,
          same_name ? fmt::format("two variants are called '{}'", named.name)
                    : fmt::format("the variants '{}' and '{}' are the same recipe", other.name, named.name),
          same_name ? "give them names: [variants.NAME]" : ""));
      return;
    }
    result_.study.variants.push_back({named.name, source_.Span(named.mark), std::move(recipe)});
  }

  void AddBase() {
    std::vector<Variant>& variants = result_.study.variants;
    for (const Variant& variant : variants) {
      if (variant.name != kBaseName) continue;
      diagnostics_.push_back(Diagnostic{
          Severity::kError, variant.span,
          "the variant 'base' is not the base recipe, which is run under that name", "another name", ""});
      return;
    }
    variants.insert(variants.begin(), {kBaseName, source_.Span(parsed_.base_mark), result_.study.base});
  }

  void CheckMetric(const Variant& variant) {
    const Recipe& recipe = variant.recipe;
    if (parsed_.metric == kValidationLoss && recipe.evaluation.interval == 0) {
      diagnostics_.push_back(source_.Error(
          parsed_.metric_mark,
          fmt::format(
              "the metric is validation_loss, but variant '{}' never evaluates: evaluation.interval is 0",
              variant.name),
          "set evaluation.interval in the base recipe, or metric = \"train_loss\""));
    }
    if (parsed_.metric == kTrainLoss && recipe.iterations() < parsed_.metric_iterations) {
      diagnostics_.push_back(source_.Error(
          parsed_.metric_mark, fmt::format("the metric is a mean of {} iterations, but variant '{}' has {}",
                                           parsed_.metric_iterations, variant.name, recipe.iterations())));
    }
  }

  const StudyParser& parsed_;
  const Source& source_;
  StudyResult& result_;
  std::vector<Diagnostic>& diagnostics_;
  bool has_base_ = false;
};

}  // namespace

bool IsStudy(const std::string& path, const LoadOptions& options) {
  const absl::StatusOr<std::string> canonical = ResolvePath(path, options.root);
  if (!canonical.ok()) return false;
  absl::StatusOr<std::string> text = ReadRecipeFile(*canonical, path);
  if (!text.ok()) return false;
  std::vector<Diagnostic> ignored;
  const std::optional<Document> document =
      ParseToml(std::make_shared<const Source>(path, *std::move(text)), &ignored);
  return document.has_value() && StudyOf(document->root) != nullptr;
}

StudyResult LoadStudy(const std::string& path, const LoadOptions& options) {
  StudyResult result;
  const std::string shown = NormalPath(path);
  result.study.path = shown;
  const auto fail = [&](const absl::Status& status) {
    result.diagnostics.push_back({Severity::kError, {shown, 0, 0, 1}, Message(status), "", "", "E104"});
  };
  const absl::StatusOr<std::string> canonical = ResolvePath(path, options.root);
  if (!canonical.ok()) return fail(canonical.status()), result;
  absl::StatusOr<std::string> text = ReadRecipeFile(*canonical, shown);
  if (!text.ok()) return fail(text.status()), result;
  const auto source = std::make_shared<const Source>(shown, *std::move(text));
  const std::optional<Document> document = ParseToml(source, &result.diagnostics);
  if (!document) return result;
  StudyParser parser(*document, &result.diagnostics);
  parser.Parse();
  if (result.ok()) VariantLoader(parser, *source, &result).Load(options);
  Study& study = result.study;
  study.title = parser.title.empty() ? fs::path(shown).stem().string() : parser.title;
  study.seeds = parser.seeds.empty() ? std::vector{study.base.training.seed} : parser.seeds;
  study.metric = parser.metric;
  study.metric_iterations = parser.metric_iterations;
  for (Diagnostic& diagnostic : result.diagnostics) {
    if (diagnostic.code.empty()) diagnostic.code = kBadStudy;
  }
  SortAndUnique(&result.diagnostics);
  return result;
}

}  // namespace engine::recipe
