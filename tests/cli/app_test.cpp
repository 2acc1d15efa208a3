// What holds for the command line as a whole: wrong words, help, version, colours.
#include "engine/cli/app.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <regex>
#include <string>

#include "engine/cli/command_tree.h"
#include "tests/cli/run_binary.h"
#include "tests/cli/run_command.h"
#include "tests/cli/tiny_run.h"

namespace engine::cli {
namespace {

std::string RecipeWithError() { return SourcePath("tests/recipe/bad/unknown_key.toml"); }

constexpr const char* kRedError = "\x1b[1;31merror:\x1b[0m";

}  // namespace

TEST_CASE("a wrong command or option: the nearest is named, and the exit code is 2") {
  const auto said = [](const std::string& arguments) {
    const ProgramResult result = RunProgram(arguments);
    CHECK(result.exit_code == 2);
    return result.output;
  };
  CHECK(said("chekc x") ==
        "engine: there is no command 'chekc'; did you mean 'check'? (`engine --help` lists them)\n");
  CHECK(said("zzzzz") == "engine: there is no command 'zzzzz' (`engine --help` lists them)\n");
  CHECK(
      said("checkpoint inof x") ==
      "engine checkpoint: there is no command 'inof'; did you mean 'info'? (`engine checkpoint --help` lists "
      "them)\n");
  CHECK(said("check x --formt json") ==
        "engine check: there is no option '--formt'; did you mean '--format'? (`engine check --help` lists "
        "them)\n");
  CHECK(said("check --set a=1 --strct=2 x") ==
        "engine check: there is no option '--strct'; did you mean '--strict'? (`engine check --help` lists "
        "them)\n");
  CHECK(said("--verison") ==
        "engine: there is no option '--verison'; did you mean '--version'? (`engine --help` lists them)\n");
}

TEST_CASE("what is missing, or a wrong value: the command is named, and the exit code is 2") {
  const auto said = [](const std::string& arguments) {
    const ProgramResult result = RunProgram(arguments);
    CHECK(result.exit_code == 2);
    return result.output;
  };
  CHECK(said("plan") == "engine plan: file is required (`engine plan --help` says how it is used)\n");
  CHECK(said("check x --format xml").starts_with("engine check: --format: xml not in {text,"));
  CHECK(said("check x --color red").starts_with("engine check: --color: red not in {auto,"));
  CHECK(said("run x y") ==
        "engine run: The following argument was not expected: y (`engine run --help` says how it is used)\n");
  CHECK(said("run x --profile 0").starts_with("engine run: --profile: Value 0 not in range 1 to 100 ("));
  CHECK(
      said("data build").starts_with("engine data build: --input is required (`engine data build --help` "));
  CHECK(said("checkpoint").starts_with("engine checkpoint: A subcommand is required ("));
  CHECK(said("") == "engine: A subcommand is required (`engine --help` says how it is used)\n");
}

TEST_CASE("help of the program and of each command, by --help and by engine help") {
  const ProgramResult all = RunProgram("help");
  CHECK(all.exit_code == 0);
  CHECK(all.output == RunProgram("--help").output);
  CHECK(Contains(all.output, "  checkpoint "));
  for (const char* command : {"run", "data build", "checkpoint info", "data"}) {
    const ProgramResult help = RunProgram(std::string("help ") + command);
    CHECK(help.exit_code == 0);
    CHECK(help.output == RunProgram(std::string(command) + " --help").output);
  }
  const ProgramResult none = RunProgram("help chekc");
  CHECK(none.exit_code == 2);
  CHECK(none.output == "engine help: there is no command 'engine chekc'; did you mean 'check'?\n");
}

TEST_CASE("every command that does something says its exit codes") {
  CLI::App app("", "engine");
  int exit_code = 0;
  AddCommands(&app, &exit_code);
  const CommandInfo root = DescribeCommands(app);
  int commands = 0;
  for (const CommandInfo* command : AllCommands(root)) {
    const std::string name = command->name();
    const bool only_prints = name == "help" || name == "man" || name == "completion" || name == "schema";
    if (!command->commands.empty() || only_prints) continue;
    CAPTURE(command->path);
    CHECK(command->footer.find("Exit code") != std::string::npos);
    ++commands;
  }
  CHECK(commands >= 13);
}

TEST_CASE("the version: in short and long, of each command, in checkpoints") {
  const std::string version = RunProgram("--version").output;
  CHECK(std::regex_search(version, std::regex(R"(^engine 0\.1\.0(\+[0-9a-f]{7,}(-dirty)?)? \()")));
  if (RunShell("git -C " + SourcePath("") + " rev-parse HEAD").exit_code == 0) {
    CHECK(version.starts_with("engine 0.1.0+"));
  }
  CHECK(RunProgram("-V").output == version);
  CHECK(RunProgram("check --version").output == version);
  CHECK(RunProgram("checkpoint info --version").output == version);
  CHECK(RunProgram("checkpoint info --version").exit_code == 0);
  const TinyRun tiny;
  REQUIRE(RunProgram("run " + tiny.recipe + " --out " + tiny.out).exit_code == 0);
  const std::string number = version.substr(7, version.find(' ', 7) - 7);
  CHECK(Contains(
      RunProgram("checkpoint info " + tiny.out + "/checkpoints/" +
                 std::filesystem::directory_iterator(tiny.out + "/checkpoints")->path().filename().string())
          .output,
      "engine            " + number + "\n"));
}

TEST_CASE("the commit: of a tree that is a repository, with -dirty where it has been changed") {
  const data::TempDir folder;
  const auto commit = [&] {
    const ProgramResult made =
        RunShell("cmake -DSOURCE=" + folder / "tree" + " -DOUTPUT=" + folder / "commit.cpp" + " -P " +
                 SourcePath("tools/commit.cmake") + " && cat " + folder / "commit.cpp");
    std::smatch found;
    CAPTURE(made.output);
    REQUIRE(std::regex_search(made.output, found, std::regex("return \"(.*)\";")));
    return found[1].str();
  };
  REQUIRE(RunShell("mkdir " + folder / "tree" + " && echo a > " + folder / "tree/a").exit_code == 0);
  CHECK(commit().empty());  // as unpacked from an archive
  const std::string git = "git -C " + folder / "tree" + " -c user.name=a -c user.email=a@a ";
  REQUIRE(RunShell(git + "init -q && " + git + "add a && " + git + "commit -q -m a").exit_code == 0);
  const std::string clean = commit();
  CHECK(RunShell(git + "rev-parse --short=7 HEAD").output == clean + "\n");
  const auto written = std::filesystem::last_write_time(folder / "commit.cpp");
  CHECK(commit() == clean);
  CHECK(std::filesystem::last_write_time(folder / "commit.cpp") == written);  // nothing is compiled again
  REQUIRE(RunShell("echo b > " + folder / "tree/a").exit_code == 0);
  CHECK(commit() == clean + "-dirty");
}

TEST_CASE("colours: on a terminal, or as asked for; never in what programs read") {
  const std::string check = "check " + RecipeWithError();
  const std::string plain = RunProgram(check).output;
  CHECK(plain.find('\x1b') == std::string::npos);
  const std::string colored = RunProgram(check + " --color always").output;
  CHECK(Contains(colored, kRedError));
  CHECK(Contains(colored, "\x1b[1;32m^~~~~\x1b[0m\n    \x1b[1;36mhint:\x1b[0m did you mean"));
  CHECK(std::regex_replace(colored, std::regex("\x1b\\[[0-9;]*m"), "") == plain);
  CHECK(Contains(RunProgram("check --color always --set optimizer.weight_decay=0 " +
                            SourcePath("recipes/gpt2-124m-1gpu.toml"))
                     .output,
                 "\x1b[1;33mwarning:\x1b[0m"));
  CHECK(Contains(RunProgram("resolve --color always " + RecipeWithError()).output, kRedError));  // of stderr
  for (const char* format : {"json", "sarif", "junit", "github"}) {
    CHECK(RunProgram(check + " --color always --format " + format).output.find('\x1b') == std::string::npos);
  }
  CHECK(Contains(RunProgram(check, "CLICOLOR_FORCE=1").output, kRedError));
  CHECK(RunProgram(check, "CLICOLOR_FORCE=1 NO_COLOR=1").output == plain);
  CHECK(Contains(RunProgram(check + " --color always", "NO_COLOR=1").output, kRedError));
  CHECK(RunProgram(check + " --color blue").exit_code == 2);

  // `script` gives the program a terminal.
  const auto on_terminal = [&](const std::string& environment) {
    return RunShell("script -qec '" + environment + " " ENGINE_BINARY " " + check + "' /dev/null").output;
  };
  CHECK(Contains(on_terminal("TERM=xterm"), kRedError));
  CHECK(on_terminal("TERM=dumb").find('\x1b') == std::string::npos);
  CHECK(on_terminal("TERM=xterm NO_COLOR=1").find('\x1b') == std::string::npos);
}

}  // namespace engine::cli
