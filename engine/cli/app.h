// The program's command line as a whole: all commands, what they have in common, and what is said of a wrong
// one.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>

namespace engine::cli {

// Declares every command on the app, and on each of them --color and --version. A command that runs sets
// `*exit_code`; both must outlive the parse.
void AddCommands(CLI::App* app, int* exit_code);

// Parses, which runs the command. The exit code where none ran, or where none is to: 0 after --help and
// --version, 2 after wrong usage, of which a word that is nearly a command's or an option's is named.
std::optional<int> Parse(CLI::App* app, int argc, char** argv);

}  // namespace engine::cli
