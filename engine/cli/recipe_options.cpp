#include "engine/cli/recipe_options.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "engine/base/status.h"
#include "engine/cli/color.h"

namespace engine::cli {

void AddSetOption(CLI::App* command, const std::string& name, const std::string& text,
                  recipe::LoadOptions* options) {
  // One value an occurrence, taken as it stands: "--set a=1 FILE" does not take FILE, and lists keep their
  // commas.
  command->add_option(name, options->sets, text)
      ->type_name("SECTION.KEY=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
}

void AddLoadOptions(CLI::App* command, recipe::LoadOptions* options) {
  AddSetOption(command, "--set", "Override a key of the recipe; repeatable", options);
  command->add_option("--root", options->root, "Read no recipe file outside of this folder")
      ->type_name("DIR");
}

void PrintDiagnostics(const std::vector<Diagnostic>& diagnostics) {
  const bool colors = UsesColor(stderr);
  for (const Diagnostic& diagnostic : diagnostics) std::fputs(Format(diagnostic, colors).c_str(), stderr);
}

absl::Status FirstError(const std::vector<Diagnostic>& diagnostics) {
  const auto first = std::find_if(diagnostics.begin(), diagnostics.end(), [](const Diagnostic& diagnostic) {
    return diagnostic.severity == Severity::kError;
  });
  ENGINE_CHECK(first != diagnostics.end(), "no error among {} diagnostics", diagnostics.size());
  const std::string text = Format(*first);
  return absl::InvalidArgumentError(text.substr(0, text.find('\n')));
}

}  // namespace engine::cli
