// The options that every command with a recipe has: --set and --root.
#pragma once

#include <absl/status/status.h>

#include <CLI/CLI.hpp>
#include <string>

#include "engine/recipe/load.h"

namespace engine::cli {

// Declares both on the command, to be stored in `options`, which must outlive the parse.
void AddLoadOptions(CLI::App* command, recipe::LoadOptions* options);

// An option of another name that does what --set does.
void AddSetOption(CLI::App* command, const std::string& name, const std::string& text,
                  recipe::LoadOptions* options);

// Prints the diagnostics to standard error, in their text form.
void PrintDiagnostics(const std::vector<Diagnostic>& diagnostics);

// The first of them that is an error, as a line: "recipes/a.toml:3:1: error: …". There is one.
absl::Status FirstError(const std::vector<Diagnostic>& diagnostics);

}  // namespace engine::cli
