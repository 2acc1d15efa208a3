#include "engine/recipe/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "engine/base/status.h"
#include "engine/recipe/document.h"
#include "engine/recipe/parse.h"
#include "engine/recipe/set_argument.h"
#include "engine/recipe/shipped.h"
#include "engine/recipe/source.h"
#include "engine/recipe/text.h"
#include "engine/recipe/validate.h"

namespace engine::recipe {
namespace {

using Origin = Provenance::Origin;

constexpr std::size_t kMaxExtendsDepth = 16;
constexpr std::size_t kMaxFiles = 256;

// Reads a tree of files that extend each other, each file once.
class FileLoader {
 public:
  FileLoader(const std::string& root, std::vector<Diagnostic>* diagnostics)
      : root_(root), diagnostics_(diagnostics) {}

  // False if a file was not read or not parsed: what is missing then is not the author's omission.
  bool complete() const { return complete_; }

  Settings LoadRoot(const std::string& path) {
    return LoadFile(path, [&](const std::string& message) {
      diagnostics_->push_back({Severity::kError, {path, 0, 0, 1}, message, "", ""});
    });
  }

  // What a parsed document says, on top of all that it extends.
  Settings Resolve(const Document& document, const std::string& path) {
    std::vector<ExtendsEntry> extends;
    const Settings own = ParseSettings(document, Origin::kFile, &extends, diagnostics_);
    if (own.broken.contains(kExtendsKey)) complete_ = false;
    Settings settings;
    for (const ExtendsEntry& entry : extends) {
      settings.Override(LoadFile(PathFrom(path, entry.path), [&](const std::string& message) {
        diagnostics_->push_back(document.source->Error(entry.mark, "extends: " + message));
      }));
    }
    settings.Override(own);
    return settings;
  }

 private:
  struct Open {
    std::string canonical;
    std::string shown;
  };

  template <typename Report>
  Settings LoadFile(const std::string& path, const Report& report) {
    const absl::StatusOr<std::string> canonical = ResolvePath(path, root_);
    if (!canonical.ok()) return Fail(report, Message(canonical.status()));
    const std::string shown = NormalPath(path);
    if (std::optional<std::string> problem = Recursion(*canonical, shown)) return Fail(report, *problem);
    if (const auto known = resolved_.find(*canonical); known != resolved_.end()) return known->second;
    if (resolved_.size() + stack_.size() >= kMaxFiles) {
      return Fail(report, fmt::format("'{}' is one file too many; a recipe reads at most {}", Shown(shown),
                                      kMaxFiles));
    }
    absl::StatusOr<std::string> text = ReadRecipeFile(*canonical, shown);
    if (!text.ok()) return Fail(report, Message(text.status()));
    stack_.push_back({*canonical, shown});
    Settings settings;
    const auto source = std::make_shared<const Source>(shown, *std::move(text));
    if (const std::optional<Document> document = ParseToml(source, diagnostics_)) {
      settings = Resolve(*document, path);
    } else {
      complete_ = false;
    }
    stack_.pop_back();
    return resolved_[*canonical] = std::move(settings);
  }

  template <typename Report>
  Settings Fail(const Report& report, const std::string& message) {
    complete_ = false;
    report(message);
    return {};
  }

  std::optional<std::string> Recursion(const std::string& canonical, const std::string& shown) const {
    const auto first = std::find_if(stack_.begin(), stack_.end(),
                                    [&](const Open& open) { return open.canonical == canonical; });
    if (first != stack_.end()) {
      std::string chain;
      for (auto open = first; open != stack_.end(); ++open) chain += ShownPath(open->shown) + " → ";
      return fmt::format("a cycle: {}{}", chain, ShownPath(first->shown));
    }
    if (stack_.size() < kMaxExtendsDepth) return std::nullopt;
    return fmt::format("'{}' is {} files deep; at most {} may extend one another", Shown(shown),
                       stack_.size() + 1, kMaxExtendsDepth);
  }

  std::string root_;
  std::vector<Diagnostic>* diagnostics_;
  std::vector<Open> stack_;
  std::map<std::string, Settings> resolved_;  // by canonical path
  bool complete_ = true;
};

// A text that is no file's; nothing where it cannot be read, which `diagnostics` say.
std::optional<Document> ParseText(const std::string& text, const std::string& name,
                                  std::vector<Diagnostic>* diagnostics) {
  const auto source = std::make_shared<const Source>(name, text);
  if (text.size() <= kMaxRecipeBytes) return ParseToml(source, diagnostics);
  diagnostics->push_back(source->Error(
      {}, fmt::format("the text has {} bytes, and a recipe has at most {}", text.size(), kMaxRecipeBytes)));
  return std::nullopt;
}

void ApplySettings(const Settings& settings, Recipe* recipe) {
  for (const Field& field : Fields()) {
    const auto setting = settings.values.find(field.key);
    if (setting == settings.values.end()) {
      recipe->provenance[field.key] = settings.PlaceFor(field.key);
      continue;
    }
    Set(field, setting->second.value, recipe);
    recipe->provenance[field.key] = setting->second.provenance;
  }
}

// Steps make a model of its own; who writes them need not say so twice.
void SetFamily(Settings* settings, std::vector<Diagnostic>* diagnostics) {
  const auto add = [&](Diagnostic diagnostic) {
    diagnostic.code = "E208";
    diagnostics->push_back(std::move(diagnostic));
  };
  const Node* main = settings->text.Find("model.main");
  const auto said = settings->values.find(kModelFamilyKey);
  if (main != nullptr) {
    Provenance place{Origin::kFile, main->source->Span(main->mark), main->source->Line(main->mark.line)};
    if (said != settings->values.end() && said->second.value == FieldValue(std::string(kDecoderFamily))) {
      add({Severity::kError, said->second.provenance.span,
           "a decoder has no steps of its own, and model.main has some",
           "leave model.family out; or model.main", said->second.provenance.source_line});
    }
    settings->values[kModelFamilyKey] = {FieldValue(std::string(kTextFamily)), std::move(place)};
    return;
  }
  for (const Entry& entry : settings->text.entries) {
    if (entry.key.starts_with("model.")) {
      add(ErrorAt(entry, fmt::format("{} is of a model with steps, and there is no model.main", entry.key),
                  "write main = [ steps ] in [model], or extend a file that has one"));
    }
    if (entry.key != "block") continue;
    for (const Entry& block : entry.value.entries) {
      add(ErrorAt(
          block,
          fmt::format(
              "block.{} is of a model with steps, and there is no model.main: a decoder's blocks are as its "
              "keys say",
              block.key),
          "`engine resolve --expand RECIPE` prints a decoder as steps, of which a file can be made that has "
          "blocks to change"));
    }
  }
  if (said != settings->values.end() && said->second.value == FieldValue(std::string(kTextFamily))) {
    add({Severity::kError, said->second.provenance.span,
         "a model of family \"text\" needs steps, and there is no model.main",
         "write main = [ steps ] in [model], or extend a file that has one",
         said->second.provenance.source_line});
  }
}

// Keys of a decoder say nothing beside steps.
void RefuseKeysOfOtherFamilies(const Recipe& recipe, const Settings& settings,
                               std::vector<Diagnostic>* diagnostics) {
  if (recipe.text == nullptr || recipe.text->Find("model.main") == nullptr) return;
  for (const auto& [key, setting] : settings.values) {
    const Field* field = FindField(key);
    if (field->ConditionOn(kModelFamilyKey) == nullptr || Applies(*field, recipe)) continue;
    const Provenance& steps = recipe.provenance.at(kModelFamilyKey);
    diagnostics->push_back(
        {Severity::kError, setting.provenance.span,
         fmt::format("{} is a key of the decoder, and this model has steps of its own ({}:{})", key,
                     steps.span.file, steps.span.line),
         "say it in the steps, or in model.dims", setting.provenance.source_line, "E208"});
  }
}

bool IsRequired(const Field& field, const Settings& settings) {
  if (const Condition* condition = field.ConditionOn(kModelFamilyKey)) {
    const auto family = settings.values.find(kModelFamilyKey);
    if (family != settings.values.end() && family->second.value != FieldValue(condition->word)) return false;
  }
  return field.required;
}

// Missing keys are reported where they would stand.
void ReportMissing(const Settings& settings, std::vector<Diagnostic>* diagnostics,
                   std::set<std::string>* missing) {
  for (const Field& field : Fields()) {
    if (!IsRequired(field, settings)) continue;
    if (settings.values.contains(field.key) || settings.broken.contains(field.key)) continue;
    missing->insert(field.key);
    const Provenance place = settings.PlaceFor(field.key);
    diagnostics->push_back({Severity::kError, place.span, fmt::format("{} is required", field.key), field.doc,
                            place.source_line, "E103"});
  }
}

LoadResult Finish(Settings settings, bool complete, const std::string& path, const LoadOptions& options,
                  std::vector<Diagnostic> diagnostics, const Settings& overrides = {}) {
  LoadResult result;
  result.recipe.path = path;
  for (std::size_t i = 0; i < options.sets.size(); ++i) {
    settings.OverrideValues(ParseSetArgument(options.sets[i], static_cast<int>(i) + 1, &diagnostics));
  }
  settings.OverrideValues(overrides);
  diagnostics.insert(diagnostics.end(), settings.text_mistakes.begin(), settings.text_mistakes.end());
  SetFamily(&settings, &diagnostics);
  ApplySettings(settings, &result.recipe);
  for (const Entry& entry : settings.text.entries) {
    const Node& node = entry.value;
    result.recipe.provenance[entry.key] = {Origin::kFile, node.source->Span(node.mark),
                                           node.source->Line(node.mark.line)};
  }
  if (!settings.text.entries.empty())
    result.recipe.text = std::make_shared<const Node>(std::move(settings.text));
  RefuseKeysOfOtherFamilies(result.recipe, settings, &diagnostics);
  if (complete) {
    std::set<std::string> unusable = settings.broken;
    ReportMissing(settings, &diagnostics, &unusable);
    const std::vector<Diagnostic> clashes = Validate(result.recipe, unusable);
    diagnostics.insert(diagnostics.end(), clashes.begin(), clashes.end());
  }
  for (Diagnostic& diagnostic : diagnostics) {
    const bool is_note = diagnostic.severity == Severity::kNote;
    if (diagnostic.code.empty() && !is_note) diagnostic.code = "E104";  // of the files themselves
  }
  SortAndUnique(&diagnostics);
  result.diagnostics = std::move(diagnostics);
  return result;
}

}  // namespace

LoadResult Load(const std::string& path, const LoadOptions& options) { return Load(path, options, {}); }

LoadResult Load(const std::string& path, const LoadOptions& options, const Settings& overrides) {
  std::vector<Diagnostic> diagnostics;
  FileLoader loader(options.root, &diagnostics);
  Settings settings = loader.LoadRoot(path);
  const std::string shown = NormalPath(path);
  return Finish(std::move(settings), loader.complete(), shown, options, std::move(diagnostics), overrides);
}

LoadResult LoadText(const std::string& text, const std::string& name, const LoadOptions& options) {
  std::vector<Diagnostic> diagnostics;
  Settings settings;
  const std::optional<Document> document = ParseText(text, name, &diagnostics);
  if (document) settings = ParseSettings(*document, Origin::kFile, nullptr, &diagnostics);
  return Finish(std::move(settings), document.has_value(), name, options, std::move(diagnostics));
}

LoadResult LoadExtendingText(const std::string& text, const std::string& name, const LoadOptions& options) {
  std::vector<Diagnostic> diagnostics;
  FileLoader loader(options.root, &diagnostics);
  Settings settings;
  const std::optional<Document> document = ParseText(text, name, &diagnostics);
  if (document) settings = loader.Resolve(*document, name);
  const bool complete = document.has_value() && loader.complete();
  return Finish(std::move(settings), complete, name, options, std::move(diagnostics));
}

}  // namespace engine::recipe
