#include "engine/cli/completion.h"

#include <absl/strings/str_split.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "engine/cli/app.h"
#include "engine/cli/man.h"
#include "tests/cli/run_binary.h"
#include "tests/cli/run_command.h"
#include "tests/data/temp_dir.h"

namespace engine::cli {
namespace {

CommandInfo Program() {
  CLI::App app("", "engine");
  int exit_code = 0;
  AddCommands(&app, &exit_code);
  return DescribeCommands(app);
}

// What bash offers after these words, of which the last is being written. Its own word breaks are applied by
// hand.
std::set<std::string> Offered(const std::vector<std::string>& words) {
  std::string quoted;
  for (const std::string& word : words) quoted += " '" + word + "'";
  const ProgramResult result =
      RunShell("bash -c \"source <(" ENGINE_BINARY " completion bash); COMP_WORDS=(" + quoted +
               "); COMP_CWORD=" + std::to_string(words.size() - 1) +
               "; _engine 2>/dev/null; printf '%s\\n' \\\"\\${COMPREPLY[@]}\\\"\"");
  std::set<std::string> offered;
  for (const absl::string_view line : absl::StrSplit(result.output, '\n', absl::SkipEmpty())) {
    offered.emplace(line);
  }
  return offered;
}

bool Has(const std::string& program) { return RunShell("command -v " + program).exit_code == 0; }

}  // namespace

TEST_CASE("bash: every command, and every option of each") {
  const CommandInfo program = Program();
  for (const CommandInfo* command : AllCommands(program)) {
    CAPTURE(command->path);
    std::vector<std::string> words = absl::StrSplit(command->path, ' ');
    words.emplace_back("-");
    std::set<std::string> options;
    for (const OptionInfo& option : command->options)
      options.insert(option.names.begin(), option.names.end());
    CHECK(options.size() >= 3);
    CHECK((Offered(words) == options));
    if (command->commands.empty()) continue;
    words.back() = "";
    std::set<std::string> names;
    for (const CommandInfo& below : command->commands) names.insert(below.name());
    CHECK((Offered(words) == names));
  }
}

TEST_CASE("bash: words, keys, files and folders") {
  using Words = std::set<std::string>;
  CHECK(Offered({"engine", "che"}) == Words{"check", "checkpoint"});
  CHECK(Offered({"engine", "data", "b"}) == Words{"build"});
  CHECK(Offered({"engine", "check", "--format", ""}) == Words{"text", "json", "sarif", "junit", "github"});
  CHECK(Offered({"engine", "check", "--format", "=", "s"}) == Words{"sarif"});
  CHECK(Offered({"engine", "check", "--format", "="}).size() == 5);
  CHECK(Offered({"engine", "run", "x.toml", "--set", "parallelism.t"}) == Words{"parallelism.tp="});
  CHECK(Offered({"engine", "run", "x.toml", "--set", "model.layers", "="}).empty());
  CHECK(Offered({"engine", "run", "x.toml", "--set", "model.layers", "=", "R"}).empty());
  CHECK(Offered({"engine", "search", "x.toml", "--fix", "parallelism.t"}) == Words{"parallelism.tp"});
  CHECK(Offered({"engine", "completion", ""}) == Words{"bash", "zsh", "fish"});
  const data::TempDir folder;
  data::WriteFile(folder / "a file.toml", "");
  REQUIRE(RunShell("mkdir " + folder / "a-folder").exit_code == 0);
  CHECK(Offered({"engine", "check", folder / "a"}) == Words{folder / "a file.toml", folder / "a-folder"});
  CHECK(Offered({"engine", "run", "--out", folder / "a"}) == Words{folder / "a-folder"});
  CHECK(Offered({"engine", "diff", "--format", "json", folder / "a f"}) == Words{folder / "a file.toml"});
}

TEST_CASE("zsh and fish: every command and option is there, and the shells read their scripts") {
  const CommandInfo program = Program();
  const std::string zsh = ZshCompletion(program);
  const std::string fish = FishCompletion(program);
  for (const CommandInfo* command : AllCommands(program)) {
    for (const OptionInfo& option : command->options) {
      for (const std::string& name : option.names) {
        CHECK_MESSAGE(zsh.find(name + "[") != std::string::npos, name);
        const std::string flag = name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
        CHECK_MESSAGE(fish.find(flag + " ") != std::string::npos, name);
      }
    }
  }
  CHECK(RunProgram("completion zsh").output == zsh);
  CHECK(RunProgram("completion fish").output == fish);
  for (const char* shell : {"bash", "zsh", "fish"}) {
    if (!Has(shell)) continue;  // only bash is always there
    const ProgramResult read =
        RunShell(std::string(ENGINE_BINARY " completion ") + shell + " | " + shell + " -n /dev/stdin");
    CHECK_MESSAGE(read.exit_code == 0, read.output);
  }
}

TEST_CASE("the manual page: every command and option, and troff has no complaint") {
  const CommandInfo program = Program();
  const std::string page = ManualPage(program, "1.2");
  CHECK(page.starts_with(".TH ENGINE 1 \"\" \"engine 1.2\"\n.SH NAME\nengine \\- "));
  for (const CommandInfo* command : AllCommands(program)) {
    if (!command->commands.empty()) continue;
    CHECK_MESSAGE(page.find(".SS \\fB" + command->path + "\\fR") != std::string::npos, command->path);
  }
  CHECK(page.find("\\fB\\-\\-join\\-timeout\\fR \\fISECONDS\\fR\n") != std::string::npos);
  CHECK(page.find("\\fB\\-\\-coordinator\\fR \\fIHOST:PORT\\fR\n") != std::string::npos);
  if (!Has("groff")) return;
  const ProgramResult shown = RunShell(ENGINE_BINARY " man | groff -man -Tutf8 -ww -z");
  CHECK(shown.exit_code == 0);
  CHECK(shown.output.empty());
}

}  // namespace engine::cli
