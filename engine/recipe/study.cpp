#include "engine/recipe/study.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "engine/base/status.h"
#include "engine/recipe/document.h"
#include "engine/recipe/parse.h"
#include "engine/recipe/print.h"
#include "engine/recipe/shipped.h"
#include "engine/recipe/source.h"
#include "engine/recipe/study_text.h"

namespace engine::recipe {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBaseName = "base";

// Resolves the variants' recipes, each different from the others.
class VariantLoader {
 public:
  VariantLoader(const StudyText& text, const Source& source, StudyResult* result)
      : head_(text.head),
        variants_(text.variants),
        source_(source),
        result_(*result),
        diagnostics_(result->diagnostics) {}

  void Load(const LoadOptions& options, const Loader& load) {
    const std::string path = PathFrom(source_.name(), head_.base);
    LoadResult base = load(path, options, {});
    if (!base.ok()) {
      diagnostics_.push_back(source_.Error(head_.base_mark, "the base recipe has errors"));
      diagnostics_.insert(diagnostics_.end(), base.diagnostics.begin(), base.diagnostics.end());
      return;
    }
    result_.study.base = std::move(base.recipe);
    for (const NamedSettings& named : variants_.list) {
      LoadResult loaded = load(path, options, named.settings);
      diagnostics_.insert(diagnostics_.end(), loaded.diagnostics.begin(), loaded.diagnostics.end());
      if (loaded.ok()) Add(named, std::move(loaded.recipe));
    }
    if (variants_.adds_base && !has_base_) AddBase();
    for (const Variant& variant : result_.study.variants) {
      CheckUpload(variant);
      CheckMetric(variant);
    }
    CheckMetricIterations();
  }

 private:
  void Add(const NamedSettings& named, Recipe recipe) {
    const bool is_base = Diff(result_.study.base, recipe).empty();
    if (is_base && variants_.skips_base) return;  // it is there under the base's name
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
    variants.insert(variants.begin(), {kBaseName, source_.Span(head_.base_mark), result_.study.base});
  }

  // All runs of the study would keep theirs in one place.
  void CheckUpload(const Variant& variant) {
    const std::string& upload = variant.recipe.checkpoint.upload;
    if (upload.empty()) return;
    diagnostics_.push_back(Diagnostic{
        Severity::kError, variant.span,
        fmt::format(
            "variant '{}' keeps its checkpoints in {}, which is a place for one run, and a study has several",
            variant.name, upload),
        "checkpoint.upload = \"\" keeps those of each run in its folder", ""});
  }

  void CheckMetric(const Variant& variant) {
    const Recipe& recipe = variant.recipe;
    if (head_.metric == kValidationLoss && recipe.evaluation.interval == 0) {
      diagnostics_.push_back(source_.Error(
          head_.metric_mark,
          fmt::format(
              "the metric is validation_loss, but variant '{}' never evaluates: evaluation.interval is 0",
              variant.name),
          "set evaluation.interval in the base recipe, or metric = \"train_loss\""));
    }
  }

  // Once for all variants, as it is one key that is wrong.
  void CheckMetricIterations() {
    if (head_.metric != kTrainLoss) return;
    const Variant* shortest = nullptr;
    std::int64_t too_short = 0;
    for (const Variant& variant : result_.study.variants) {
      if (variant.recipe.iterations() >= head_.metric_iterations) continue;
      ++too_short;
      if (shortest == nullptr || variant.recipe.iterations() < shortest->recipe.iterations())
        shortest = &variant;
    }
    if (shortest == nullptr) return;
    const std::int64_t least = shortest->recipe.iterations();
    diagnostics_.push_back(source_.Error(
        head_.metric_iterations_mark,
        fmt::format("the metric is a mean of {} iterations, but variant '{}' has {}{}",
                    head_.metric_iterations, shortest->name, least,
                    too_short > 1 ? fmt::format(", and {} more have too few", too_short - 1) : ""),
        fmt::format("metric_iterations = {}, or less", least)));
  }

  const StudyHead& head_;
  const StudyVariants& variants_;
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
  const auto load = [](const std::string& recipe, const LoadOptions& with, const Settings& overrides) {
    return Load(recipe, with, overrides);
  };
  return LoadStudy(path, options, load);
}

StudyResult LoadStudy(const std::string& path, const LoadOptions& options, const Loader& load) {
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
  const StudyText said = ParseStudy(*document, &result.diagnostics);
  if (result.ok()) VariantLoader(said, *source, &result).Load(options, load);
  Study& study = result.study;
  study.title = said.head.title.empty() ? fs::path(shown).stem().string() : said.head.title;
  study.seeds = said.head.seeds.empty() ? std::vector{study.base.training.seed} : said.head.seeds;
  study.metric = said.head.metric;
  study.metric_iterations = said.head.metric_iterations;
  for (Diagnostic& diagnostic : result.diagnostics) {
    const bool is_note = diagnostic.severity == Severity::kNote;
    if (diagnostic.code.empty() && !is_note) diagnostic.code = kBadStudy;
  }
  SortAndUnique(&result.diagnostics);
  return result;
}

}  // namespace engine::recipe
